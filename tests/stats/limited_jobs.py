"""Helpers for tests of the figures of limits: they add jobs with a limit key and claim them on Django's connection."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from django_pgqueue.declared.limit_policies import policy_of
from django_pgqueue.declared.limits import Limit, name_of
from django_pgqueue.lifecycle import completions, limits
from django_pgqueue.lifecycle.limits import KeyToClaim
from django_pgqueue.lifecycle.types import Claimed, Cursor, Lane, Released
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry
from tests import helpers

LIMITS = {
    limit.name: limit
    for limit in (
        Limit("two", key="{key}", concurrency=2),
        Limit("rate", key="{key}", rate="1/m", burst=2),
        Limit("fair", key="{key}"),
        Limit("one", key="{key}", ordered=True),
        Limit("block", key="{key}", ordered=True, on_dead="block"),
        Limit("heavy", concurrency=10, rate="6/m", burst=5),
    )
}


def add(limit_key: str, count: int = 1, *, delay: float = 0.0, **changes: Any) -> list[int]:
    """Add ready jobs with a limit key, and return their ids."""
    limit = LIMITS.get(name_of(limit_key))
    values: dict[str, Any] = {
        "task_name": helpers.NOOP,
        "arguments": {"args": [], "kwargs": {}},
        "limit_key": limit_key,
        "limit_order": limit.order if limit else None,
        "run_after": timezone.now() + timedelta(seconds=delay),
    }
    return [job.pk for job in Job.objects.bulk_create(Job(**values | changes) for _ in range(count))]


def claim(limit_key: str, count: int = 100, *, queue_name: str = "default", priority: int = 0) -> list[Claimed]:
    """Claim the due jobs of a key in a lane, as many as its limit admits."""
    limit = registry.limits()[name_of(limit_key)]
    limits.lock_keys(connection, [limit_key])
    found = limits.claim_keys(
        connection,
        Lane(queue_name, priority, is_limited=True),
        [KeyToClaim(limit_key, policy_of(limit), Cursor())],
        limit=count,
        free_slots=count,
        worker_id=1,
        lease_seconds=30.0,
    )
    return found.claimed


def die(job: Claimed) -> int:
    """Let a claimed job become a dead letter, and return its id."""
    completions.fail(connection, helpers.failed(job.key, None))
    return job.job_id


def throttle(job: Claimed, seconds: float) -> None:
    """End a claimed job as by a task that raises `Throttled`."""
    completions.snooze(connection, [Released(job.key, seconds, holds_key=True)])
