"""Change chosen jobs in batches, each only if it is still as it was seen, and write the audit.

The admin and `manage.py pgqueue` call it; workers execute bulk acts with `lifecycle.bulk_acts`. It protects two
invariants: the audit agrees with what was changed, because each batch records its jobs in its own transaction; and each
chosen job counts once, whichever batch changes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.lifecycle import audit as lifecycle_audit
from django_pgqueue.models import BATCH_SIZE, Job
from django_pgqueue.models.operations_link import ChangeTally, JobsToChange, superseded_ids
from django_pgqueue.states import ActOutcome, Seen, TransitionName

from . import RETRY, JobAct, OperatorAct


def edited_jobs(connection: BaseDatabaseWrapper, act: OperatorAct, job_ids: Sequence[int]) -> dict[int, int | None]:
    """Return which of these jobs a retry of many leaves out, because *Edit and retry* has made new jobs of them.

    Each has its latest new job, or None if that no longer exists. Other acts leave out none.
    """
    return lifecycle_audit.edited_jobs(connection, job_ids) if act is RETRY and job_ids else {}


class ActAudit:
    """The entry of the audit for one act. `record()` begins it, so an act that changes no job has none."""

    def __init__(self, connection: BaseDatabaseWrapper, action: str, chosen: Mapping[str, Any], **options: Any) -> None:
        self.is_stop_asked = False
        self._connection = connection
        self._begin = partial(lifecycle_audit.begin_audit, connection, action, chosen, **options)
        self._id: int | None = None
        self._left = 0

    def begin(self) -> None:
        """Write the entry, if it is not written yet."""
        self._id = self._id or self._begin()

    def leave(self, count: int) -> None:
        """Count chosen jobs that no batch visits, because they are left out. The next `record()` writes it."""
        self._left += count

    def record(self, changed: Sequence[int], left: int = 0) -> None:
        """Add the jobs that a batch has changed, in the same transaction. `left` more jobs are left."""
        self._left += left
        if changed:
            self.begin()
        if self._id:
            self.is_stop_asked = lifecycle_audit.record_audit(self._connection, self._id, changed, left=self._left)
            self._left = 0

    def end(self, outcome: ActOutcome = ActOutcome.DONE, **problem: Any) -> None:
        """Write how the act ended."""
        if self._id:
            lifecycle_audit.end_audit(self._connection, self._id, outcome, **problem)


class ActRun:
    """One act on chosen jobs. `batches()` runs it, and `changed` has the ids of those that it has changed."""

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        act: JobAct,
        seen: Mapping[int, Seen],
        audit: ActAudit,
        options: Mapping[str, Any] | None = None,
        edited: Collection[int] = (),
    ) -> None:
        """Choose the jobs in `seen`. `options` are those of the act, such as the queue of a move.

        A retry revives only the latest job of a unique key, and none of the jobs `edited`, which *Edit and retry* has
        made new jobs of. It takes the jobs in the order of their ids: a node that is retried before its dependency
        would be ready at once.
        """
        self.act, self._seen, self._audit, self._options = act, seen, audit, dict(options or {})
        self._connection = connection
        self._jobs = Job.objects.using(connection.alias)
        self.ids = list(seen)
        if act.transition is TransitionName.RETRY:
            left_out = superseded_ids(self._jobs, self.ids).union(edited)
            self.ids = sorted(job_id for job_id in self.ids if job_id not in left_out)
        self.edited = edited
        audit.leave(len(edited))
        self._tally = ChangeTally(self.ids)

    @property
    def changed(self) -> Collection[int]:
        return self._tally.changed

    @property
    def unchanged_count(self) -> int:
        """How many of the jobs in `seen` have not changed, without those that were edited."""
        return len(self._seen) - len(self.edited) - len(self._tally.changed)

    def batches(self, size: int = 0, *, alone: bool = False) -> Iterator[dict[int, str]]:
        """Change the jobs, and yield the task names of those that each batch has changed, also of other batches."""
        size = size or BATCH_SIZE
        for start in range(0, len(self.ids), size):
            batch, found = self.ids[start : start + size], list[int]()
            names = self._names(batch)
            seen = {job_id: self._seen[job_id] for job_id in names}
            record = partial(self._record, found, batch)
            jobs = JobsToChange(self._connection, names, seen, alone=alone, record=record)
            self.act.change(jobs, **self._options)
            names |= self._names([job_id for job_id in found if job_id not in names])
            yield {job_id: names[job_id] for job_id in found if job_id in names}

    def _names(self, ids: Sequence[int]) -> dict[int, str]:
        return dict(self._jobs.filter(pk__in=ids).values_list("pk", "task_name")) if ids else {}

    def _record(self, found: list[int], batch: Collection[int], changed: Collection[int]) -> None:
        new, left = self._tally.add(batch, changed)
        self._audit.record(new, left)
        found.extend(new)
