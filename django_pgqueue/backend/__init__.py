"""A backend for Django's tasks framework: `"BACKEND": "django_pgqueue.backend.PgQueueBackend"` in TASKS.

Applications import `task` and the classes from here. Tasks of the framework use the same registry, worker and tables as
this package's own tasks; this package only translates between the two interfaces.
"""

from .adapter import JobContext
from .backend import PgQueueBackend
from .result_translation import JobResult
from .task_class import PgQueueTask, task

__all__ = ["JobContext", "JobResult", "PgQueueBackend", "PgQueueTask", "task"]
