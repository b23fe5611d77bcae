"""The limits and chunks of the suite's tasks: for the tasks, and for the checker, which has no Django set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django_pgqueue.declared.breakers import Breaker
from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.declared.limits import RATE, UNIT_SECONDS, CallLimit, Limit


def weight_of(weight: int = 1, **others: object) -> int:
    """Return the argument that says how much a job weighs."""
    return weight


SLOTS: Final = Limit("slots", key="{key}", concurrency=3, weight=weight_of)
TOKENS: Final = Limit("tokens", key="{key}", rate="2/s", burst=5, weight=weight_of)
ORDER: Final = Limit("order", key="{key}", ordered=True)
BLOCKED: Final = Limit("blocked", key="{key}", ordered=True, on_dead="block")
HELD: Final = Limit("held", key="{key}", concurrency=2)
BREAKER: Final = Breaker(failures=0.5, attempts=6, seconds=10, pause=1)
SERVICE: Final = Limit("service", key="{key}", concurrency=4, breaker=BREAKER)
LIMITS: Final = {limit.name: limit for limit in (SLOTS, TOKENS, ORDER, BLOCKED, HELD, SERVICE)}
OF_TASK: Final = {
    "limited.slotted": SLOTS,
    "limited.rated": TOKENS,
    "limited.in_order": ORDER,
    "limited.blocking": BLOCKED,
    "limited.throttled": HELD,
    "limited.sheltered": SERVICE,
}
"""The limit of each task of the module `limited`, as its decorator has it."""
CHUNK: Final = 5
"""How many jobs a chunk has at most."""
CHUNKED: Final = ("chunked.separate", "chunked.together")
"""The tasks with `chunk`. Each of their jobs gets a dictionary, not named arguments."""


def of_call(task: str, arguments: Mapping[str, Any]) -> CallLimit | None:
    """Return the columns that `enqueue()` writes for a call of one of the suite's tasks."""
    if task in CHUNKED:
        return CallLimit(chunk_key(f"tests.tools.faults.app.tasks.{task}"), None, None)
    limit = OF_TASK.get(task)
    if limit is None:
        return None
    weight = arguments.get("weight", 1)
    return CallLimit(f"{limit.name}:{arguments['key']}", None if weight == 1 else weight, limit.order)


def calls_of(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of one of the suite's tasks, as a job stores them."""
    return {"args": [arguments], "kwargs": {}} if task in CHUNKED else {"args": [], "kwargs": arguments}


def slots_of(limit: Limit) -> int | None:
    """Return how much weight of a key may be open at a time; None: any."""
    return 1 if limit.ordered else limit.concurrency


def period_of(rate: str | None) -> tuple[float, int] | None:
    """Return the period of a rate in seconds, and how many starts it admits in a period."""
    found = RATE.fullmatch(rate or "")
    return (int(found[2] or 1) * UNIT_SECONDS[found[3]], int(found[1])) if found else None
