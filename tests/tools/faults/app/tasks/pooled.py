"""Tasks for workers behind a transaction pooler."""

from __future__ import annotations

from django.db import connection

from django_pgqueue import TaskContext, task
from tests.tools.faults.app.tasks import body, effect, linger


@task(takes_context=True, backoff=0, max_attempts=1, timeout=1)
def slow_query(context: TaskContext, tag: str = "") -> None:
    """Wait for the server for longer than the timeout."""
    with body(context, "slow_query"), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(20)")


@task(takes_context=True, backoff=0, atomic=True, isolation="process")
def isolated(context: TaskContext, tag: str = "") -> None:
    """Have an effect, in a process of its own."""
    with body(context, "atomic"):
        effect(context, "atomic")


@task(takes_context=True, backoff=0)
def first_query_waits(context: TaskContext, tag: str = "") -> None:
    """Wait for the server for ever, at the first attempt."""
    with body(context, "first_query_waits"), connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_sleep({600 if context.attempt == 1 else 0})")


@task(takes_context=True, backoff=0)
def told_apart(context: TaskContext, tag: str = "", until: str | None = None) -> str:
    """Return what tells this job from all others."""
    with body(context, "told_apart"):
        linger(context, 0.0, until)
    return tag
