"""Change the jobs of one batch of a bulk act. `bulk_acts` calls it, in the transaction that records the changes.

It protects three invariants: a job that the database refuses to change never stops the act; a job is passed by only if
the act can change others; and each chosen job is counted once, as changed or as left. A batch of one job, at a rate of
one job per second, must obey them too.

A cancellation or a retry of a job of a workflow also changes the jobs that depend on it. The act may have chosen these
too, and an earlier or a later batch visits them. The batch that changes a job records it, so a later batch, which finds
it in another state, does not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.states import Seen, State, TransitionName

from . import history, operator
from .audit import record_audit
from .bulk_filters import Selection
from .bulk_selection import ChosenJob, ChosenPage, chosen_of
from .erased_callbacks import CallbackWalk
from .execute import savepoint
from .graphs import AdvancedJob, Restored
from .refused_rows import FAILURES, may_divide

LOCK_SECONDS = 0.25
"""How long a batch tries to get rows that other sessions have locked. A request to stop waits for the batch."""


class Act(NamedTuple):
    """The values of a locked entry that a batch needs. `position` is behind the last job that the act has visited.

    `cancelled_again` are jobs that count as left: the act has retried them or restored them, and they were cancelled
    again because another dependency of theirs has failed. If the act retries that dependency later, they are changed.
    `callbacks` is how far an erasure of arguments has looked for the callbacks of its next jobs.
    """

    audit_id: int
    action: TransitionName
    selection: Selection
    position: list[Any] | None
    callbacks: CallbackWalk | None
    cancelled_again: frozenset[int]
    previewed_at: datetime
    began_at: datetime
    rate: float | None
    stops_on_repeat: bool
    has_changed: bool


class Changed(NamedTuple):
    """The result of a batch: the jobs that it has passed, and those of them that it has changed.

    `rate_count` jobs count for the rate: those of its last part. `is_last`: no jobs come behind it. `again` is the next
    value of `Act.cancelled_again`.
    """

    rows: Sequence[ChosenJob]
    changed: dict[int, State]
    rate_count: int
    is_last: bool
    advanced: list[AdvancedJob]
    again: set[int]


def change_batch(connection: Connection, act: Act, page: ChosenPage, size: int, *, passes_refused: bool) -> Changed:
    """Change the first `size` jobs of a page, and record them. If all are refused, go on until one was changed.

    Then try the refused ones again: since they were refused, the same statement has changed another job. If
    `passes_refused`, a page of which all jobs are refused is passed by.

    Raises the error of the first refused job if the database refuses all jobs of the page, unless `passes_refused`.
    """
    changes, rest = _Changes(connection, act), page
    passed, refused, first_error = list[ChosenJob](), list[ChosenJob](), None
    while True:
        batch = rest.up_to(size)
        rest = ChosenPage(rest.rows[len(batch.rows) :], rest.is_last)
        passed += batch.rows
        error = changes.change(batch.rows)
        if error is None or changes.changed:
            break
        first_error = first_error or error
        refused += batch.rows
        if not rest.rows:
            break
    if changes.changed and refused:
        changes.change(refused)
    if first_error is not None and not changes.changed and not passes_refused:
        raise first_error
    rate_count = sum(row.is_fitting for row in batch.rows)
    if left := changes.left(passed):
        record_audit(connection, act.audit_id, [], left=left)
    is_last = rest.is_last and not rest.rows
    return Changed(passed, changes.changed, rate_count, is_last, changes.advanced, changes.again)


class _Changes:
    """The changes of one batch. `recorded` are the chosen jobs that it has changed, also as dependents of others."""

    def __init__(self, connection: Connection, act: Act) -> None:
        self._connection, self._act = connection, act
        self._transition = _transition(act)
        self.changed: dict[int, State] = {}
        self.recorded: set[int] = set()
        self.again = set(act.cancelled_again)
        self.advanced: list[AdvancedJob] = []

    def change(self, rows: Sequence[ChosenJob]) -> Exception | None:
        """Change and record jobs. Return the error if the database has refused all of them."""
        job_ids = [row.job_id for row in rows if row.is_fitting]
        if not job_ids:
            return None
        try:
            self._change_at_once(job_ids, {row.job_id: Seen(row.state, row.finished_at, row.run_after) for row in rows})
        except JobLocked:  # each of them, or a dependent that its retry restores: the act continues with the others
            return None
        except FAILURES as error:
            if not may_divide(self._connection, error):
                raise
            if len(rows) == 1:
                return error
            refusal: Exception = error
        else:
            return None
        count, error_of_one = len(self.changed), None
        for row in rows:
            error_of_one = self.change([row])
        return None if len(self.changed) > count else error_of_one or refusal

    def left(self, passed: Sequence[ChosenJob]) -> int:
        """Return by how many more jobs are left now than before the batch, which has passed these jobs."""
        counted = self._act.cancelled_again
        visited = {row.job_id for row in passed if row.is_chosen}
        return len((visited | self.again) - self.recorded - counted) - len(counted & self.recorded)

    def _change_at_once(self, job_ids: Sequence[int], seen: Mapping[int, Seen]) -> None:
        advanced, restored = list[AdvancedJob](), dict[int, Restored]()
        dependents: dict[TransitionName, dict[str, Any]] = {
            TransitionName.CANCEL: {"advanced": advanced},
            TransitionName.RETRY: {"restored": restored},
        }
        options = dependents.get(self._act.action, {})
        with savepoint(self._connection):
            changed = self._transition(self._connection, job_ids, seen=seen, lock_seconds=LOCK_SECONDS, **options)
            chosen = self._chosen(job_ids, restored)
            again = {job_id for job_id in chosen if restored[job_id].state is State.CANCELLED}
            cancelled = {job.job_id for job in advanced if job.state is State.CANCELLED}
            recorded = {*changed, *(chosen - again), *cancelled.intersection(self._act.selection.job_ids)}
            record_audit(self._connection, self._act.audit_id, sorted(recorded))
        self.changed |= changed
        self.advanced += advanced
        self.recorded |= recorded
        self.again = (self.again | again) - recorded

    def _chosen(self, job_ids: Sequence[int], restored: Mapping[int, Restored]) -> set[int]:
        """Return which of the restored jobs the act has chosen. `job_ids` are those that it has just retried."""
        known = {*job_ids, *self.again}
        ends = {job_id: job.finished_at for job_id, job in restored.items() if job.finished_at and job_id not in known}
        others = chosen_of(self._connection, self._act.selection, self._act.previewed_at, ends)
        return restored.keys() & known | others


def _transition(act: Act) -> Callable[..., dict[int, State]]:
    transitions: dict[TransitionName, Callable[..., dict[int, State]]] = {
        TransitionName.RETRY: operator.retry,
        TransitionName.ACKNOWLEDGE: operator.acknowledge,
        TransitionName.CANCEL: operator.cancel,
        TransitionName.RUN_NOW: operator.run_now,
        TransitionName.MOVE: partial(
            operator.move, queue_name=act.selection.to_queue, priority=act.selection.to_priority
        ),
        TransitionName.DELETE: operator.delete,
        TransitionName.ERASE: partial(history.erase_seen, audit_id=act.audit_id, kinds=act.selection.erased),
    }
    return transitions[act.action]
