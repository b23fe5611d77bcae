"""The indexes and the constraints of the table of jobs. The model `Job` has them in its `Meta`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from django.db import models
from django.db.models import Q
from django.db.models.functions import Greatest, Least
from django.db.models.lookups import GreaterThan, GreaterThanOrEqual, LessThanOrEqual

from django_pgqueue.db.fields import MOST_ID, OneOf, Untyped, are_instants

RUN_AFTER_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
RUN_AFTER_LAST = datetime(9000, 1, 1, tzinfo=UTC)
"""Bounds of `run_after`. No driver can read a timestamp after the year 9999; one such row would make a claim fail."""

IN_ORDER: Final = Q(limit_order__isnull=False) & (Q(state__in=["ready", "running"]) | Q(state="dead", limit_order=2))
"""The jobs of ordered keys that have not ended, and dead ones that block their key."""

INDEXES: Final = [
    # Each lane (one queue at one priority) is an exact range of this index. The predicate keeps out finished
    # jobs, and jobs with a limit, which plain claims must not see.
    models.Index(
        models.F("queue_name"),
        models.F("priority").desc(),
        models.F("run_after"),
        models.F("id"),
        name="pgqueue_job_ready",
        condition=Q(state="ready", limit_key__isnull=True),
    ),
    # Contains only jobs that can expire.
    models.Index("expires_at", name="pgqueue_job_expiring", condition=Q(state="ready", expires_at__isnull=False)),
    # Contains only jobs with a limit. Each key of a lane is a range of it, so a claim finds the next key with
    # one index search.
    models.Index(
        models.F("queue_name"),
        models.F("priority").desc(),
        models.F("limit_key"),
        models.F("run_after"),
        models.F("id"),
        name="pgqueue_job_limited",
        condition=Q(state="ready", limit_key__isnull=False),
    ),
    # Contains only running jobs: it finds the open executions of a worker. An index of open executions in their own
    # table would cost more. A completion would change it, so its update would not be HOT and would write an entry for
    # each index there. One entry costs about 11,000 instructions.
    models.Index(
        "worker_id", "execution_id", name="pgqueue_job_running", condition=Q(state="running", worker_id__isnull=False)
    ),
    # Contains only running jobs with a limit or a chunk: a claim counts those of a key. The executions of a key grow in
    # the order of their claims, so a claim can skip entries that it knows to be dead. No statement can be answered by
    # both this index and the one above. When the planner believed that no job is running, it counted the slots of a key
    # in the other one.
    models.Index(
        "limit_key",
        "execution_id",
        name="pgqueue_job_running_key",
        condition=Q(state="running", limit_key__isnull=False),
    ),
    # Contains only jobs of ordered keys that have not ended, and dead ones that block their key. The first
    # entry of a key is its next job.
    models.Index(
        "limit_key",
        "id",
        name="pgqueue_job_ordered",
        condition=IN_ORDER,
    ),
    # Contains only jobs of batches. Each batch and state is a range of it, so it finds an unfinished or a failed
    # job with one index search, and counts the jobs of a batch without reading the table.
    models.Index(fields=["batch_id", "state"], name="pgqueue_job_batch", condition=Q(batch_id__isnull=False)),
    # Contains only jobs that wait for others. The sweep reads it page by page.
    models.Index(fields=["id"], name="pgqueue_job_waiting", condition=Q(state="waiting")),
    models.Index("state", "finished_at", name="pgqueue_job_finished", condition=Q(finished_at__isnull=False)),
    # Contains only dead letters: acknowledged jobs are not among them. The lists and counts of dead letters read it, so
    # their cost does not depend on how many jobs were acknowledged.
    models.Index(
        "finished_at",
        name="pgqueue_job_dead",
        condition=Q(state="dead", acknowledged_at__isnull=True),
    ),
    models.Index("task_name", "finished_at", name="pgqueue_job_task", condition=Q(finished_at__isnull=False)),
    # Contains only finished jobs with a unique key. A bulk retry finds out whether a job is the latest of its key.
    models.Index(
        "task_name",
        "unique_key",
        "state",
        "finished_at",
        "id",
        name="pgqueue_job_keyed",
        condition=Q(unique_key__isnull=False, finished_at__isnull=False),
    ),
]
CONSTRAINTS: Final = [
    # Contains the jobs that keep others with the same key away. Jobs without a key are not in it.
    models.UniqueConstraint(
        fields=["task_name", "unique_key"],
        name="pgqueue_job_unique",
        condition=Q(unique_key__isnull=False) & (Q(state="ready") | Q(state="running", unique_ready_only__isnull=True)),
    ),
    models.CheckConstraint(
        name="pgqueue_job_run_after",
        condition=Q(run_after__gte=RUN_AFTER_FIRST, run_after__lt=RUN_AFTER_LAST),
    ),
    # Statements on many rows rely on these checks: one row that violates them could block all others. Each statement
    # that writes a job parses all checks anew, so there are few, and a check has as few operations as it needs.
    models.CheckConstraint(
        name="pgqueue_job_state",
        condition=Q(finished_at__isnull=True) & Q(OneOf("state", "ready", "running", "waiting"))
        | Q(finished_at__isnull=False) & Q(OneOf("state", "succeeded", "dead", "cancelled")),
    ),
    # The claim adds one to the attempt. So the check refuses the claim of a job without an attempt left, which somebody
    # made ready without RETRY, and the worker sets it aside as dead.
    models.CheckConstraint(
        name="pgqueue_job_counters",
        condition=Q(
            GreaterThanOrEqual(Least("attempt", "crashes"), 0),
            LessThanOrEqual(Greatest("attempt", Untyped(1)), models.F("max_attempts")),
            id__lt=MOST_ID,
        ),
    ),
    models.CheckConstraint(name="pgqueue_job_unique_ready_only", condition=Q(unique_ready_only=True)),
    models.CheckConstraint(
        name="pgqueue_job_limit",
        condition=Q(limit_key__gt="", limit_weight__gte=1)
        & (Q(limit_key__isnull=False) | Q(limit_weight__isnull=True, limit_order__isnull=True)),
    ),
    # A check of the characters of `queue_name` cost 7 % of an INSERT of 500 jobs. This one is not measurable.
    models.CheckConstraint(name="pgqueue_job_names", condition=Q(GreaterThan(Least("task_name", "queue_name"), ""))),
    models.CheckConstraint(
        name="pgqueue_job_instants",
        condition=are_instants("enqueued_at", "finished_at", "unknown_since", "expires_at"),
    ),
]
