"""Erase arguments, results, errors and kept log lines of finished jobs, and record it in the audit.

The arguments of callbacks are erased with them: the rows of complete batches have these as long as they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import connections

from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.search_text import Scalar
from django_pgqueue.lifecycle import audit, erased_callbacks, history
from django_pgqueue.lifecycle.erased_callbacks import Call
from django_pgqueue.lifecycle.pruning import EVER
from django_pgqueue.states import FINISHED

from .finished_pages import Choice, Pace, alias, check_rate, counted, finished_states, names_of_queues, names_of_tasks

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

BATCH: Final = 1000
"""Finished jobs that one statement looks at."""


class Erased(NamedTuple):
    """The result of an erasure.

    `left` jobs were not changed: call it again. Unfinished work needs `needed` of them. The others were locked by
    another session, have changed, or the database refused the write (the log has the reason). `unfinished` are ids of
    jobs that have not ended yet, and `missing` are ids without a job. `callbacks` of complete batches were erased too.
    """

    erased: int
    left: int
    unfinished: list[int]
    missing: list[int]
    audit_id: int
    callbacks: int = 0
    needed: int = 0


def erase(
    *,
    tasks: Iterable[Any] = (),
    queues: Iterable[str] = (),
    before: datetime | None = None,
    jobs: Iterable[int] = (),
    search: tuple[str, Scalar] | None = None,
    arguments: bool = True,
    results: bool = True,
    errors: bool = True,
    logs: bool = True,
    rate: float | None = None,
    by: str = "",
    reason: str = "",
    database: str | None = None,
    on_batch: Callable[[int], None] = lambda count: None,
) -> Erased:
    """Erase values of finished jobs, and keep the jobs: their task, times, states and attempts.

    The choice is recorded in `pgqueue_audit` before the first job is changed, and each batch adds its number of jobs to
    that entry in its own transaction. If a transaction is open on the database, everything is part of it.

    Args:
        tasks: Tasks, or names of tasks, whose jobs are chosen. By default those of all tasks.
        queues: Names of queues whose jobs are chosen. By default those of all queues.
        before: Choose only jobs that have finished before this time: an aware datetime.
        jobs: Ids of jobs, instead of the other filters.
        search: Name and value of a search key, instead of the other filters: every job that has it, however many there
            are. The audit stores the name alone, because the value is an argument.
        arguments: Whether to erase arguments, headers, unique keys, search keys, and the values of limit keys and of
            the keys of events, also those of callbacks that the rows of complete batches keep. A callback belongs to a
            given job if it has its task and its arguments. A dead job that blocks an ordered limit key keeps its key.
        results: Whether to erase results and the messages of progress. Jobs of a workflow are left while another job
            of it is unfinished, because that job can need a result.
        errors: Whether to erase the error messages and tracebacks of all attempts, which can quote values.
        logs: Whether to erase the log lines that a task with `keep_logs` has kept, which can quote values too.
        rate: Jobs to change per second at most. None: no limit.
        by: The person or program that erases, for people to read. 150 characters are stored.
        reason: Text for people to read.
        database: Alias of the database of the jobs. By default the database routers choose it.
        on_batch: Called after each batch with the number of jobs erased so far.

    Returns:
        How many jobs were changed and how many were left.

    Raises:
        TypeError: `tasks` or `queues` is a string instead of a list.
        ValueError: No filter is given, `jobs` or `search` is combined with another filter, nothing is to be erased, or
            `before` has no time zone.

    Example:
        >>> history.erase(tasks=[send_letter], before=timezone.now() - timedelta(days=30), reason="data policy")
        >>> history.erase(search=("customer_id", 4711), reason="request 91")
    """
    check_rate(rate)
    kinds = {"arguments": arguments, "results": results, "errors": errors, "logs": logs}
    choice = _chosen(tasks, queues, before, given := set(jobs), search)
    if not any(kinds.values()):
        raise ValueError("erase() has nothing to erase: pass arguments, results, errors or logs as True")
    connection = connections[alias(database)]
    job_ids = _ids_of(connection, given, search)
    by_id = job_ids is not None
    audit_id = audit.begin_audit(
        connection, "erase", _described(choice, job_ids, search, kinds), done_by=by[:150], reason=reason
    )
    found = _FinishedJobs(connection, job_ids or [])
    is_vain = by_id and not found.finished
    callbacks = erase_callbacks(connection, choice, list(found.finished)) if arguments and not is_vain else 0
    pace = Pace(rate)
    pages = found.pages() if by_id else choice.pages(connection, pace.limit(BATCH))
    erased = ((page, history.erase(connection, page, audit_id=audit_id, **kinds)) for page in pages)
    done = counted(connection, erased, pace, on_batch)
    audit.end_audit(connection, audit_id)
    return Erased(done.changed, done.left, found.unfinished, found.missing, audit_id, callbacks, done.needed)


def count_erasable(
    *,
    tasks: Iterable[Any] = (),
    queues: Iterable[str] = (),
    before: datetime | None = None,
    jobs: Iterable[int] = (),
    search: tuple[str, Scalar] | None = None,
    database: str | None = None,
) -> int:
    """Return how many finished jobs `erase()` would look at with these filters. It changes nothing.

    Args:
        tasks: As in `erase()`. So are the others.
        queues: Names of queues.
        before: An aware datetime.
        jobs: Ids of jobs, instead of the other filters.
        search: Name and value of a search key, instead of the other filters.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Raises:
        TypeError: `tasks` or `queues` is a string instead of a list.
        ValueError: No filter is given, `jobs` or `search` is combined with another filter, or `before` has no time
            zone.
    """
    filters: dict[str, Any] = {"tasks": tasks, "queues": queues, "before": before, "jobs": jobs, "search": search}
    return sum(map(len, erasable_pages(**filters, database=database)))


def erasable_pages(
    *,
    tasks: Iterable[Any],
    queues: Iterable[str],
    before: datetime | None,
    jobs: Iterable[int],
    search: tuple[str, Scalar] | None,
    database: str | None,
) -> Iterable[Collection[int]]:
    """Return the ids of the finished jobs that `erase()` would look at, page by page. Arguments as `count_erasable()`.

    A page is read when it is used, so the caller can stop after some.
    """
    choice = _chosen(tasks, queues, before, given := set(jobs), search)
    connection = connections[alias(database)]
    job_ids = _ids_of(connection, given, search)
    return choice.pages(connection, BATCH) if job_ids is None else _FinishedJobs(connection, job_ids).pages()


def _chosen(
    tasks: Iterable[Any],
    queues: Iterable[str],
    before: datetime | None,
    jobs: Collection[int],
    search: tuple[str, Scalar] | None,
) -> Choice:
    """Return the choice of jobs by their tasks, queues and times. Raise an error for filters that do not go together.

    Without any, all finished jobs would be erased.
    """
    choice = Choice(
        states=finished_states(FINISHED),
        task_names=names_of_tasks(tasks),
        queue_names=names_of_queues(queues),
        before=before or EVER,
    )
    has_filters = bool(choice.task_names or choice.queue_names or choice.before != EVER)
    ways = [bool(jobs), search is not None, has_filters]
    if sum(ways) > 1:
        raise ValueError("erase() takes either jobs, or search, or a filter of tasks, queues and before")
    if not any(ways):
        raise ValueError(
            "erase() needs jobs, search, tasks, queues or before: without them it would erase all finished jobs"
        )
    if choice.before.tzinfo is None:
        raise ValueError(f"before must be an aware datetime, not {choice.before}: add a time zone")
    return choice


def _ids_of(
    connection: BaseDatabaseWrapper, jobs: Collection[int], search: tuple[str, Scalar] | None
) -> list[int] | None:
    """Return the ids of the jobs that are chosen by their ids or by a search key. None: other filters choose them."""
    if search is None:
        return sorted(set(jobs)) or None
    from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

    found = Job.objects.using(connection.alias).with_search_key(*search)
    return sorted(found.values_list("pk", flat=True))


def _described(
    choice: Choice, job_ids: list[int] | None, search: tuple[str, Scalar] | None, kinds: dict[str, bool]
) -> dict[str, Any]:
    """Return the choice as the audit stores it."""
    described: dict[str, Any] = {"erased": [kind for kind, is_erased in kinds.items() if is_erased]}
    if search is not None:
        return {**described, "search": search[0]}
    if job_ids:
        return {**described, "jobs": job_ids}
    before = None if choice.before == EVER else choice.before.isoformat()
    return {**described, "tasks": list(choice.task_names), "queues": list(choice.queue_names), "before": before}


class _FinishedJobs:
    """The jobs with given ids: those that have finished, and why the others are left alone."""

    def __init__(self, connection: Any, job_ids: list[int]) -> None:
        self.finished: dict[int, datetime] = {}
        self.unfinished: list[int] = []
        self.missing: list[int] = []
        from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

        ends: dict[int, datetime | None] = {}
        for start in range(0, len(job_ids), BATCH):
            rows = Job.objects.using(connection.alias).filter(pk__in=job_ids[start : start + BATCH])
            ends.update(rows.values_list("pk", "finished_at"))
        for job_id in job_ids:
            if job_id not in ends:
                self.missing.append(job_id)
            elif (finished_at := ends[job_id]) is None:
                self.unfinished.append(job_id)
            else:
                self.finished[job_id] = finished_at

    def pages(self) -> Iterator[dict[int, datetime]]:
        """Yield the finished jobs, `BATCH` at a time."""
        finished = list(self.finished.items())
        for start in range(0, len(finished), BATCH):
            yield dict(finished[start : start + BATCH])


def erase_callbacks(connection: Connection, choice: Choice, job_ids: Sequence[int]) -> int:
    """Erase the arguments of the chosen callbacks. Return how many these are.

    `erase()` calls it before it erases the jobs, because a callback of a chosen job is found by the job's arguments.
    The callback of a batch that is not complete stays, as an unfinished job does.

    Args:
        connection: A connection to the database of the batches.
        choice: The tasks, the queues and the time before which the batch has completed.
        job_ids: Finished jobs. If there are any, those callbacks are chosen that have added such a job: callbacks with
            its task and its arguments.
    """
    calls = set[erased_callbacks.KnownCall]()
    for start in range(0, len(job_ids), BATCH):
        calls |= erased_callbacks.calls_of(connection, job_ids[start : start + BATCH])

    def is_chosen(call: Call) -> bool:
        if job_ids:
            return erased_callbacks.is_among(call, calls)
        return (not choice.task_names or call["task_name"] in choice.task_names) and (
            not choice.queue_names or call["queue_name"] in choice.queue_names
        )

    pages = history.used_callbacks(connection, choice.before, BATCH)
    return sum(erased_callbacks.erase_page(connection, page, is_chosen) for page in pages)
