"""Delete jobs and batches for `delete()` of the models and of their querysets.

The models reach this module through `job_operations`. `lifecycle` deletes the rows of the queue. It leaves the jobs and
batches that unfinished work needs. Django's own `Collector` then applies the `on_delete` of the foreign keys in
the project's models, and sends the signals of the deleted instances.

All of it is one transaction, as it is for other models: if a foreign key protects a job, nothing is deleted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.db import connections, transaction
from django.db.models import Count, F, Model, signals
from django.db.models.deletion import Collector, get_candidate_relations_to_delete

from django_pgqueue.db.notifications import PAUSES_CHANGED, wake_workers_after_commit
from django_pgqueue.exceptions import CannotDelete
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import batches, operator
from django_pgqueue.lifecycle.pruning import Needed, needs_of
from django_pgqueue.states import FINISHED, KEPT_BY_DELETE, NEED_TEXTS, Need, Seen, State

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

    from django_pgqueue.models import Job, JobBatch, JobQuerySet

Deleted = tuple[int, dict[str, int]]
"""The number of deleted rows, and the numbers by the label of the model, as Django's `delete()` returns them."""

logger = logging.getLogger("django_pgqueue.deletion")

APP: Final = "pgqueue"
JOB: Final = f"{APP}.Job"
BATCH: Final = f"{APP}.JobBatch"
GOES_WITH_JOB: Final = {
    "Execution": "job_id",
    "ExecutionLog": "execution__job_id",
    "JobDependency": "job_id",
    "JobStep": "job_id",
    "SearchKey": "job_id",
}
"""The models of the queue whose rows are deleted with a job, and how they name it."""


class ProjectRows(Collector):
    """Collect the rows of other apps that refer to the deleted rows of the queue. The queue's own rows are gone."""

    def related_objects(self, related_model: type[Model], related_fields: Iterable[Any], objs: Iterable[Any]) -> Any:
        found: Any = super().related_objects(related_model, related_fields, objs)  # type: ignore[arg-type]
        return found.none() if _is_of_the_queue(related_model) else found


def delete_job(job: Job, using: str | None) -> Deleted:
    """Delete one job, if it has ended and unfinished work does not need it. Return Django's counts.

    Raises:
        CannotDelete: The job has not ended.
        JobLocked: Another session has kept the job's row locked for 5 s.
    """
    if job.pk is None:
        raise ValueError("A job that was never enqueued cannot be deleted.")
    alias, job_id = using or job.write_alias, job.pk
    connection = connections[alias]
    with transaction.atomic(using=alias):
        own = _own_rows(alias, [job_id])
        referred = _referred_rows(alias, [job_id])
        removed = operator.delete(connection, [job_id], alone=True)
        wake_for_keys(connection, removed)
        left = needs_of(connection, [job_id])
        if job_id in left and left[job_id].need is Need.UNFINISHED:
            raise _unfinished(job_id, left[job_id].state)
        _log_kept(left)
        groups = [[job], *referred] if removed else []
        return _counted(_with_project_rows(alias, groups, job), removed, own)


def wake_for_keys(connection: BaseDatabaseWrapper, removed: Mapping[int, State]) -> None:
    """Let the workers look at limit keys after the commit if a dead job was removed, which may have blocked its key."""
    if State.DEAD in removed.values():
        wake_workers_after_commit(connection, PAUSES_CHANGED)


def delete_jobs(jobs: JobQuerySet, alias: str) -> Deleted:
    """Delete the jobs of a queryset, as `delete_job()`. Jobs that other sessions keep locked for 5 s are left alone."""
    from django_pgqueue.models.operations_link import ChosenJobs  # models load only after the apps

    total: Counter[str] = Counter()
    with transaction.atomic(using=alias):
        while True:
            count, left = total.total(), dict[int, Needed]()
            for task_names, seen in ChosenJobs(jobs).batches():
                unfinished = [(job_id, job.state) for job_id, job in seen.items() if job.state not in FINISHED]
                if unfinished:
                    raise _unfinished(*unfinished[0])
                total.update(_delete_page(jobs, alias, list(task_names), seen, left))
            # A succeeded job of a workflow can be deleted after the dead ones, which a retry would run again.
            if total.total() == count or not left:
                break
        _log_kept(left)
    return total.total(), dict(total)


def _delete_page(
    jobs: JobQuerySet, alias: str, job_ids: list[int], seen: Mapping[int, Seen], left: dict[int, Needed]
) -> dict[str, int]:
    """Delete some finished jobs that are as they were seen. Add the others to `left`."""
    own = _own_rows(alias, job_ids)
    referred = _referred_rows(alias, job_ids)
    chosen = jobs.model._base_manager.using(alias).filter(pk__in=job_ids).annotate(of_job=F("pk"))
    rows = list(chosen) if _is_referred_to(jobs.model) else []
    removed = operator.delete(connections[alias], job_ids, seen=seen)
    wake_for_keys(connections[alias], removed)
    left |= needs_of(connections[alias], seen.keys() - removed.keys())
    groups = [[row for row in group if row.of_job in removed] for group in (rows, *referred)]
    return _counted(_with_project_rows(alias, groups, jobs), removed, own)[1]


def delete_batches(chosen: QuerySet[JobBatch], alias: str, origin: Any) -> Deleted:
    """Delete complete batches whose jobs and nested batches are gone. Return Django's counts.

    Raises:
        CannotDelete: A batch is not complete.
    """
    connection = connections[alias]
    with transaction.atomic(using=alias):
        rows = {batch.pk: batch for batch in chosen.using(alias)}
        for batch in rows.values():
            if batch.completed_at is None:
                raise CannotDelete(
                    f"batch {batch.pk} is not complete, so nothing was deleted: call Batch.get({batch.pk}).cancel(), "
                    "and delete it when its jobs have ended"
                )
        removed: list[int] = []
        while gone := batches.delete_batches(connection, rows.keys() - set(removed)):
            removed += gone  # a batch goes after those that are nested in it
        for batch_id in sorted(rows.keys() - set(removed)):
            text = "batch %s was not deleted: it is locked, or has jobs or nested batches. Delete those first"
            logger.warning(text, batch_id, extra=event("batch_kept", batch_id=batch_id))
        counts = _with_project_rows(alias, [[rows[batch_id] for batch_id in removed]], origin)
        counts[BATCH] += len(removed)
    return counts.total(), dict(+counts)


def _unfinished(job_id: int, state: str) -> CannotDelete:
    return CannotDelete(
        f"job {job_id} is {state}, and delete() removes only jobs that have ended, so nothing was deleted: call "
        "cancel() first, or leave such jobs out by filter(finished_at__isnull=False). A test can call "
        "django_pgqueue.testing.delete_all_jobs()"
    )


def _log_kept(left: Mapping[int, Needed]) -> None:
    """Log how many jobs were left because of unfinished work, and why."""
    kept = Counter(job.need for job in left.values() if job.need in KEPT_BY_DELETE)
    for need, count in kept.items():
        example = min(job_id for job_id, job in left.items() if job.need is need)
        logger.warning(
            "%d job(s) were not deleted, for example job %s: %s",
            count,
            example,
            NEED_TEXTS[need],
            extra=event("jobs_kept", count=count, reason=NEED_TEXTS[need]),
        )


def _own_rows(alias: str, job_ids: Collection[int]) -> dict[str, Counter[int]]:
    """Return how many rows of the queue's other tables go with each job, by the label of their model."""
    found = {}
    for name, path in GOES_WITH_JOB.items():
        rows = _rows_of_jobs(alias, name, job_ids)
        found[f"{APP}.{name}"] = Counter(dict(rows.values_list(path).annotate(rows=Count("*"))))
    return found


def _referred_rows(alias: str, job_ids: Collection[int]) -> list[list[Any]]:
    """Return the rows that go with the jobs, of those models to which a model of the project refers."""
    named = [name for name in GOES_WITH_JOB if _is_referred_to(apps.get_model(APP, name))]
    return [list(_rows_of_jobs(alias, name, job_ids).annotate(of_job=F(GOES_WITH_JOB[name]))) for name in named]


def _rows_of_jobs(alias: str, name: str, job_ids: Collection[int]) -> QuerySet[Any]:
    rows: QuerySet[Any] = apps.get_model(APP, name)._base_manager.using(alias)
    return rows.filter(**{f"{GOES_WITH_JOB[name]}__in": job_ids})


def _is_referred_to(model: type[Model]) -> bool:
    """Return whether a model of the project has a foreign key to this one, or a receiver of its deletions."""
    relations = get_candidate_relations_to_delete(model._meta)
    return (
        any(not _is_of_the_queue(relation.related_model) for relation in relations)
        or signals.pre_delete.has_listeners(model)
        or signals.post_delete.has_listeners(model)
    )


def _is_of_the_queue(model: type[Model] | None) -> bool:
    return model is not None and model._meta.app_label == APP


def _with_project_rows(alias: str, groups: Iterable[Sequence[Model]], origin: Any) -> Counter[str]:
    """Apply the `on_delete` of the project's foreign keys to the deleted rows, and send the signals of these rows."""
    collector = ProjectRows(using=alias, origin=origin)
    for group in groups:
        if group:
            collector.collect(group)
    return Counter(collector.delete()[1])


def _counted(counts: Counter[str], removed: Mapping[int, object], own: Mapping[str, Counter[int]]) -> Deleted:
    counts[JOB] += len(removed)
    for label, rows in own.items():
        counts[label] += sum(rows[job_id] for job_id in removed)
    return counts.total(), dict(+counts)
