"""The tables as Django models: the read side. Nothing here writes state: `lifecycle` does, and only it.

There are no foreign keys in the database: one on executions cost 15 % of the throughput, and no act needs it.
"""

from .executions import Execution
from .holds import Hold
from .jobs import DeadJob, Job, JobQuerySet
from .operator import BATCH_SIZE
from .pauses import Pause
from .schedules import Schedule, ScheduleRun
from .workers import Worker

__all__ = [
    "BATCH_SIZE",
    "DeadJob",
    "Execution",
    "Hold",
    "Job",
    "JobQuerySet",
    "Pause",
    "Schedule",
    "ScheduleRun",
    "Worker",
]
