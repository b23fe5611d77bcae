"""Read-only figures about a queue: depth by state, rates, percentiles, workers, and why a job does not start.

The admin, the commands and metrics call these functions, and so can you. Each answer is a frozen dataclass. The cost of
each function is bounded, however many jobs there are: counting stops at a limit, and `Count.is_exact` says so. All
functions only read, and take part in the transaction that is open on the connection. Times are the database's.
"""

from .answers import (
    BusyTask,
    Count,
    Depth,
    LaneStats,
    Overview,
    PauseStats,
    QueueStats,
    Reason,
    TaskStats,
    Why,
    WorkerStats,
)
from .causes.cause import Cause, CauseKind
from .causes.current import causes
from .explanation import why
from .figures import AttemptCounts, Durations, FailureCount, Point, TaskThroughput, Throughput
from .fleet import RunningJob, running_jobs, workers
from .incident_groups import (
    Incident,
    Incidents,
    MessageGroup,
    failure_classes,
    incident_messages,
    incidents,
    jobs_with_exception,
)
from .limits.answers import LimitFigures, LimitKeyFigures, LimitKeyPage, LimitValues, LimitWaitReason, OverrideStats
from .limits.figures import limits
from .limits.key_figures import limit_key, limit_keys
from .overall import QueueFigures, due_tasks, lanes, overview, queue_figures, queues, tasks
from .periods import failures, throughput, throughput_by_task
from .used_names import Names, first_id, first_id_since, last_id, names

__all__ = [
    "AttemptCounts",
    "BusyTask",
    "Cause",
    "CauseKind",
    "Count",
    "Depth",
    "Durations",
    "FailureCount",
    "Incident",
    "Incidents",
    "LaneStats",
    "LimitFigures",
    "LimitKeyFigures",
    "LimitKeyPage",
    "LimitValues",
    "LimitWaitReason",
    "MessageGroup",
    "Names",
    "OverrideStats",
    "Overview",
    "PauseStats",
    "Point",
    "QueueFigures",
    "QueueStats",
    "Reason",
    "RunningJob",
    "TaskStats",
    "TaskThroughput",
    "Throughput",
    "Why",
    "WorkerStats",
    "causes",
    "due_tasks",
    "failure_classes",
    "failures",
    "first_id",
    "first_id_since",
    "incident_messages",
    "incidents",
    "jobs_with_exception",
    "lanes",
    "last_id",
    "limit_key",
    "limit_keys",
    "limits",
    "names",
    "overview",
    "queue_figures",
    "queues",
    "running_jobs",
    "tasks",
    "throughput",
    "throughput_by_task",
    "why",
    "workers",
]
