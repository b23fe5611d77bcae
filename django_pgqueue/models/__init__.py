"""Django models of the tables, for reading and for the admin. Only `lifecycle` writes the state of a job.

The database has no foreign keys: one on executions cost 15 % of the throughput, and no transition needs it.
"""

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

# Django's own error for the first model class does not say what to do.
if apps.apps_ready and not apps.is_installed("django_pgqueue"):
    raise ImproperlyConfigured(
        "django_pgqueue is used, but not installed: add 'django_pgqueue' to INSTALLED_APPS and run `manage.py migrate`."
    )

from .audit import AuditedJob, AuditEntry
from .batches import BatchRemoval, JobBatch
from .breakers import BreakerCount, OpenBreaker
from .change_results import ChangeResult
from .dependencies import JobDependency
from .execution_logs import ExecutionLog
from .executions import Execution
from .history import ArchivedJob
from .installations import Installation
from .jobs import DeadJob, Job, JobQuerySet
from .limits import LimitOverride, LimitState
from .operations_link import BATCH_SIZE
from .pauses import Pause
from .rollups import Rollup
from .schedules import Schedule, ScheduleRun
from .search_keys import SearchKey
from .steps import JobStep, SentEvent
from .uniqueness_windows import UniquenessWindow
from .workers import Worker, WorkerRequest

__all__ = [
    "BATCH_SIZE",
    "ArchivedJob",
    "AuditEntry",
    "AuditedJob",
    "BatchRemoval",
    "BreakerCount",
    "ChangeResult",
    "DeadJob",
    "Execution",
    "ExecutionLog",
    "Installation",
    "Job",
    "JobBatch",
    "JobDependency",
    "JobQuerySet",
    "JobStep",
    "LimitOverride",
    "LimitState",
    "OpenBreaker",
    "Pause",
    "Rollup",
    "Schedule",
    "ScheduleRun",
    "SearchKey",
    "SentEvent",
    "UniquenessWindow",
    "Worker",
    "WorkerRequest",
]
