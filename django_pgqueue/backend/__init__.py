"""Django's tasks framework on this queue: `"BACKEND": "django_pgqueue.backend.PgQueueBackend"` in TASKS.

The adapter maps words: the same registry, worker and tables as for this package's own tasks.
"""

from .adapter import JobContext
from .results import JobResult
from .store import PgQueueBackend
from .tasks import PgQueueTask, task

__all__ = ["JobContext", "JobResult", "PgQueueBackend", "PgQueueTask", "task"]
