"""The limits of the suite's tasks: for the tasks themselves, and for the checker, which has no Django set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django_pgqueue.limits import RATE, UNIT_SECONDS, CallLimit, Limit


def weight_of(weight: int = 1, **others: object) -> int:
    """Return the argument that says how much a job weighs."""
    return weight


SLOTS: Final = Limit("slots", key="{key}", concurrency=3, weight=weight_of)
TOKENS: Final = Limit("tokens", key="{key}", rate="2/s", burst=5, weight=weight_of)
ORDER: Final = Limit("order", key="{key}", ordered=True)
BLOCKED: Final = Limit("blocked", key="{key}", ordered=True, on_dead="block")
HELD: Final = Limit("held", key="{key}", concurrency=2)
LIMITS: Final = {limit.name: limit for limit in (SLOTS, TOKENS, ORDER, BLOCKED, HELD)}
OF_TASK: Final = {
    "limited.slotted": SLOTS,
    "limited.rated": TOKENS,
    "limited.in_order": ORDER,
    "limited.blocking": BLOCKED,
    "limited.throttled": HELD,
}
"""The limit of each task of the module `limited`, as its decorator has it."""


def of_call(task: str, arguments: Mapping[str, Any]) -> CallLimit | None:
    """Return the columns that `enqueue()` writes for a call of one of the suite's tasks."""
    limit = OF_TASK.get(task)
    if limit is None:
        return None
    weight = arguments.get("weight", 1)
    return CallLimit(f"{limit.name}:{arguments['key']}", None if weight == 1 else weight, limit.order)


def slots_of(limit: Limit) -> int | None:
    """Return how much weight of a key may be open at a time; None: any."""
    return 1 if limit.ordered else limit.concurrency


def period_of(limit: Limit) -> tuple[float, int] | None:
    """Return the period of a rate in seconds, and how much weight may start in any such period."""
    found = RATE.fullmatch(limit.rate or "")
    return (int(found[2] or 1) * UNIT_SECONDS[found[3]], int(found[1]) + limit.burst - 1) if found else None
