"""Django's own task backends for tests, with a task class that accepts this package's options.

With Django's backends themselves, `@task(max_attempts=5)` raises a TypeError when its module is imported.
"""

from django_pgqueue.backend import PgQueueTask
from django_pgqueue.backend.compat import dummy, immediate


class ImmediateBackend(immediate.ImmediateBackend):
    """A backend that runs a task when it is enqueued, in the caller's thread. It stores nothing."""

    task_class = PgQueueTask


class DummyBackend(dummy.DummyBackend):
    """A backend that keeps enqueued tasks in its `results` and runs nothing."""

    task_class = PgQueueTask
