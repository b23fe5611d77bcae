"""Times single statements of ours, by `lifecycle` and on a connection such as a worker has: `statements.py`.

Prints one line of JSON: milliseconds, the median of 20 each, after ten that are not counted.
"""

import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import django

django.setup()
from app import tasks  # noqa: E402 -- Django first

from django_pgqueue.db import engine_connection  # noqa: E402 -- as above
from django_pgqueue.lifecycle import claims, leases, pruning, rescues  # noqa: E402 -- as above
from django_pgqueue.lifecycle.pruning import FIRST_FINISHED, PRUNE_LIMIT  # noqa: E402 -- as above
from django_pgqueue.lifecycle.types import Cursor, Lane  # noqa: E402 -- as above
from django_pgqueue.states import State  # noqa: E402 -- as above
from django_pgqueue.worker.claiming.lanes import Lanes  # noqa: E402 -- as above

OPEN = 500
DAY_SECONDS = 24 * 3600.0
WORKER_ID = 1_000_000
FEW_QUEUES = 65
"""Of three priorities each: about as many lanes as a worker accepts without a warning."""
connection = engine_connection.connect("default", "claim")


def milliseconds(call: Callable[[], object], warm: int = 10, times: int = 20) -> float:
    took = []
    for _ in range(warm + times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took[warm:]) * 1000


def claim(cursors: dict[Lane, Cursor], limit: int = 10) -> int:
    found = claims.claim(connection, cursors, limit=limit, free_slots=limit, worker_id=WORKER_ID, lease_seconds=60.0)
    return len(found)


def idle() -> dict[str, float]:
    """What a worker asks that finds nothing: in every lane, and where there are fewer of them."""
    every = claims.scan_lanes(connection).due_in
    few = [lane for lane in every if lane.queue_name in sorted({lane.queue_name for lane in every})[:FEW_QUEUES]]
    [[now]] = connection.execute("SELECT statement_timestamp()").fetchall()
    measured = {"lanes": float(len(every)), "lanes_ms": milliseconds(lambda: claims.scan_lanes(connection))}
    measured["idle_poll_ms"] = milliseconds(poll)
    for name, lanes in (("", every), (f"_{len(few)}_lanes", few)):
        by_cursor = dict.fromkeys(lanes, Cursor(now, 2**62))
        from_start = dict.fromkeys(lanes, Cursor())
        measured[f"claim_by_cursor{name}_ms"] = milliseconds(partial(claim, by_cursor))
        measured[f"claim_from_start{name}_ms"] = milliseconds(partial(claim, from_start))
    return measured


def poll() -> int:
    """What a worker does that wakes and finds nothing due."""
    cursors = Lanes(()).ordered(connection, from_start=True)
    return claim(cursors) if cursors else 0


def held() -> dict[str, float]:
    """What is asked about 500 open executions, none of them lost."""
    tasks.noop.enqueue_many(((number,), {}) for number in range(OPEN))
    if claim({Lane("default", 0): Cursor()}, OPEN) != OPEN:
        raise RuntimeError("there are not so many to claim")
    workers = [WORKER_ID]
    return {
        "extend_500_ms": milliseconds(lambda: leases.extend(connection, workers, lease_seconds=60.0)),
        "cancel_requests_ms": milliseconds(lambda: leases.cancel_requests(connection, workers)),
        "rescue_look_ms": milliseconds(lambda: rescues.rescue(connection, lambda _: None, error="")),
    }


def pruned() -> dict[str, float]:
    """A look that finds nothing to remove; batches of 1,000 that are removed."""
    after = FIRST_FINISHED

    def look() -> None:
        if pruning.prune(connection, State.SUCCEEDED, 30 * DAY_SECONDS).removed:
            raise RuntimeError("there was something to remove")

    def batch() -> None:
        nonlocal after
        done = pruning.prune(connection, State.SUCCEEDED, DAY_SECONDS, after=after)
        if done.removed != PRUNE_LIMIT:
            raise RuntimeError("there were not so many to remove")
        after = done.last

    return {"prune_look_ms": milliseconds(look), "prune_1000_ms": milliseconds(batch, warm=3)}


print(json.dumps(idle() | held() | pruned()))
