"""Erase the arguments of callbacks that the rows of complete batches keep.

`history.erase()` calls it, and so do the batches of a bulk act that erases arguments. A callback is found by the task
and the arguments of the job that it has added, so both call it before they erase these. The callbacks of a batch that
is not complete stay, as unfinished jobs do.

No index finds a callback. So a bulk act looks through the batches once for each page of its jobs, and one batch of the
act looks at `WALKED` pages of them at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.envelope import ERASED, seal

from . import history

PAGE: Final = 1000
"""Batches that one statement looks at."""
WALKED: Final = 5
"""Pages of batches that one batch of a bulk act looks at. A request to stop waits for it."""
ERASED_ARGUMENTS: Final = json.loads(seal(ERASED, b""))
Call = dict[str, Any]


class KnownCall(NamedTuple):
    """The task of a job or of a callback, and its arguments in a form that can be compared."""

    task_name: str
    arguments: str


class CallbackWalk(NamedTuple):
    """How far a bulk act has looked for the callbacks of its next jobs, up to the job `last_job_id`.

    `after_id` is the batch behind which it goes on. None: it has looked at all batches, and may erase these jobs.
    """

    last_job_id: int
    after_id: int | None


def calls_of(connection: Connection, job_ids: Sequence[int]) -> set[KnownCall]:
    """Return the calls of jobs."""
    rows = history.calls_of(connection, job_ids)
    return {KnownCall(task_name, _comparable(json.loads(arguments))) for task_name, arguments in rows}


def is_among(call: Call, calls: Collection[KnownCall]) -> bool:
    """Return whether a callback has the task and the arguments of one of these calls."""
    return KnownCall(call["task_name"], _comparable(call["arguments"])) in calls


def erase_page(connection: Connection, page: Sequence[history.UsedCallbacks], is_chosen: Callable[[Call], bool]) -> int:
    """Erase the arguments of the chosen callbacks of some batches. Return how many were not erased before."""
    erased = {row.batch_id: [_erased_if(call, is_chosen) for call in row.calls] for row in page}
    erased = {batch_id: calls for batch_id, calls in erased.items() if any(calls)}
    if erased:
        history.erase_callbacks(connection, erased)
    return sum(call is not None for calls in erased.values() for call in calls)


def walk(connection: Connection, job_ids: Sequence[int], before: datetime, after_id: int) -> int | None:
    """Erase the callbacks that have added these jobs, of the next batches behind one.

    Return the last batch that it has looked at, or None if it has looked at all that follow.
    """
    calls = calls_of(connection, job_ids)
    if not calls:
        return None
    for number, page in enumerate(history.used_callbacks(connection, before, PAGE, after_id), start=1):
        erase_page(connection, page, lambda call: is_among(call, calls))
        if number == WALKED and len(page) == PAGE:
            return page[-1].batch_id
    return None


def _erased_if(text: str | None, is_chosen: Callable[[Call], bool]) -> str | None:
    """Return a callback without the values that a caller has passed, or None to keep it. Its task and options stay."""
    call: Call | None = None if text is None else json.loads(text)
    if call is None or call["arguments"] == ERASED_ARGUMENTS or not is_chosen(call):
        return None
    gone = {"arguments": ERASED_ARGUMENTS, "headers": None, "search_keys": {}, "limit_key": None}
    return json.dumps({**call, **gone})


def _comparable(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)
