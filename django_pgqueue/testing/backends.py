"""Django's own backends for tests, with a task class that takes this package's options.

With Django's, `@task(max_attempts=5)` is a TypeError when the module is imported.
"""

from django_pgqueue.backend import PgQueueTask
from django_pgqueue.backend.compat import dummy, immediate


class ImmediateBackend(immediate.ImmediateBackend):
    """Runs a task at its enqueue, in the caller's thread, and stores nothing."""

    task_class = PgQueueTask


class DummyBackend(dummy.DummyBackend):
    """Keeps what was enqueued in `results`, and runs nothing."""

    task_class = PgQueueTask
