"""Erase the arguments of callbacks, which the rows of complete batches keep as long as the batches are kept.

`erase()` calls it before it erases the jobs, because a callback of a chosen job is found by the job's arguments. The
callback of a batch that is not complete stays, as an unfinished job does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django_pgqueue.db.statements import Connection
from django_pgqueue.envelope import ERASED, seal
from django_pgqueue.lifecycle.history import calls_of, used_callbacks
from django_pgqueue.lifecycle.history import erase_callbacks as store_callbacks

from .batches import Choice

BATCH: Final = 1000
"""Batches that one statement reads."""
ERASED_ARGUMENTS: Final = json.loads(seal(ERASED, b""))
Call = dict[str, Any]


def erase_callbacks(connection: Connection, choice: Choice, job_ids: Sequence[int]) -> int:
    """Erase the arguments of the chosen callbacks. Return how many these are.

    Args:
        connection: A connection to the database of the batches.
        choice: The tasks, the queues and the time before which the batch has completed.
        job_ids: Finished jobs. If there are any, those callbacks are chosen that have added such a job: callbacks with
            its task and its arguments.
    """
    wanted = _calls_of(connection, job_ids) if job_ids else None
    count = 0
    for page in used_callbacks(connection, choice.before, BATCH):
        erased = {
            row.batch_id: [_erased(call) if _is_chosen(call, choice, wanted) else None for call in _read(row.calls)]
            for row in page
        }
        erased = {batch_id: calls for batch_id, calls in erased.items() if any(calls)}
        if erased:
            store_callbacks(connection, erased)
        count += sum(call is not None for calls in erased.values() for call in calls)
    return count


def _read(texts: Iterable[str | None]) -> list[Call | None]:
    return [None if text is None else json.loads(text) for text in texts]


def _is_chosen(call: Call | None, choice: Choice, wanted: set[tuple[str, str]] | None) -> bool:
    if call is None or call["arguments"] == ERASED_ARGUMENTS:
        return False
    if wanted is not None:
        return (call["task_name"], _canonical(call["arguments"])) in wanted
    return (not choice.task_names or call["task_name"] in choice.task_names) and (
        not choice.queue_names or call["queue_name"] in choice.queue_names
    )


def _calls_of(connection: Connection, job_ids: Sequence[int]) -> set[tuple[str, str]]:
    """Return the tasks and arguments of jobs."""
    return {
        (task_name, _canonical(json.loads(arguments)))
        for start in range(0, len(job_ids), BATCH)
        for task_name, arguments in calls_of(connection, job_ids[start : start + BATCH])
    }


def _canonical(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)


def _erased(call: Call | None) -> str:
    """Return a callback without the values that a caller has passed. Its task and options stay."""
    gone = {"arguments": ERASED_ARGUMENTS, "headers": None, "search_keys": {}, "limit_key": None}
    return json.dumps({**(call or {}), **gone})
