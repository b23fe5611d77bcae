"""The job state machine: one function per transition, and the only code that writes state.

The worker, `enqueue()`, the operator's methods, the admin and the testing tools call it. It protects one invariant:
a worker can complete an execution only while that execution is open. The fence is in each statement (see
`django_pgqueue.sql`).

Each function normally runs one statement (`rescue()` and `requeue()` run two) on the connection that it gets, in that
connection's transaction. It returns what happened to each id. A lost race is a return value, not an exception:

* `TransitionStatus.DONE`: this call made the transition.
* `TransitionStatus.ALREADY_DONE`: an earlier call of the same worker made it, and the reply was lost.
* `TransitionStatus.LOST`: another worker closed the execution, or its job is gone. This worker's result is discarded.
* `TransitionStatus.LOCKED`: another session has locked the rows. The execution is still open, so call again.

On engine connections, deadlocks, serialization failures and lock timeouts are retried. In a caller's transaction these
errors are raised, because only the caller can repeat the whole transaction.
"""

from django_pgqueue.options import JobOptions

from .claims import AHEAD_BYTES, claim, claim_one, next_in_line, scan_lanes, set_aside
from .completions import (
    SUCCEEDED,
    end_cancelled,
    fail,
    note_progress,
    release,
    remove_orphans,
    snooze,
    succeed,
    succeed_and_discard,
)
from .enqueueing import enqueue, enqueue_each, enqueue_many
from .execute import FAILURES, Divided, Refused, divided, may_divide, savepoint
from .expiry import expire
from .installations import Adopted, Identity, adopt, read_installations, record_installation
from .leases import cancel_requests, extend, extend_each, open_executions
from .operator import LOCK_WAIT_SECONDS, cancel, delete, existing, move, retry, run_now
from .pauses import pause, prune_pauses, resume
from .pruning import PRUNE_LIMIT, prunable, prune
from .requeues import Requeued, requeue
from .rescues import rescue
from .rollups import ROLLUPS_MERGED, append_rollups, merge_rollups, prune_rollups
from .schedules import (
    CONFIRMED_SECONDS,
    Definition,
    Fired,
    Scheduled,
    add_schedule,
    arguments_of,
    change_schedule,
    confirm_schedules,
    fire,
    note_problem,
    pause_schedule,
    plan_schedule,
    prune_schedule_runs,
    read_schedules,
    remove_schedules,
    resume_schedule,
    run_schedule,
)
from .types import (
    EPOCH,
    Cancelled,
    Claimed,
    Cursor,
    Enqueued,
    ExecutionKey,
    Failed,
    HeartbeatReply,
    Lane,
    LaneScan,
    Noted,
    OpenExecution,
    Pruned,
    Released,
    Succeeded,
    TransitionResult,
    TransitionStatus,
)
from .unique import (
    WINDOWS_PRUNED,
    enqueue_each_unique,
    enqueue_for_period,
    enqueue_many_unique,
    enqueue_unique,
    holders,
    open_windows,
    prune_windows,
    replace,
    replace_for_period,
)
from .workers import (
    prune_workers,
    record_heartbeats,
    register_worker,
    unregister_worker,
)

__all__ = [
    "AHEAD_BYTES",
    "CONFIRMED_SECONDS",
    "EPOCH",
    "FAILURES",
    "LOCK_WAIT_SECONDS",
    "PRUNE_LIMIT",
    "ROLLUPS_MERGED",
    "SUCCEEDED",
    "WINDOWS_PRUNED",
    "Adopted",
    "Cancelled",
    "Claimed",
    "Cursor",
    "Definition",
    "Divided",
    "Enqueued",
    "ExecutionKey",
    "Failed",
    "Fired",
    "HeartbeatReply",
    "Identity",
    "JobOptions",
    "Lane",
    "LaneScan",
    "Noted",
    "OpenExecution",
    "Pruned",
    "Refused",
    "Released",
    "Requeued",
    "Scheduled",
    "Succeeded",
    "TransitionResult",
    "TransitionStatus",
    "add_schedule",
    "adopt",
    "append_rollups",
    "arguments_of",
    "cancel",
    "cancel_requests",
    "change_schedule",
    "claim",
    "claim_one",
    "confirm_schedules",
    "delete",
    "divided",
    "end_cancelled",
    "enqueue",
    "enqueue_each",
    "enqueue_each_unique",
    "enqueue_for_period",
    "enqueue_many",
    "enqueue_many_unique",
    "enqueue_unique",
    "existing",
    "expire",
    "extend",
    "extend_each",
    "fail",
    "fire",
    "holders",
    "may_divide",
    "merge_rollups",
    "move",
    "next_in_line",
    "note_problem",
    "note_progress",
    "open_executions",
    "open_windows",
    "pause",
    "pause_schedule",
    "plan_schedule",
    "prunable",
    "prune",
    "prune_pauses",
    "prune_rollups",
    "prune_schedule_runs",
    "prune_windows",
    "prune_workers",
    "read_installations",
    "read_schedules",
    "record_heartbeats",
    "record_installation",
    "register_worker",
    "release",
    "remove_orphans",
    "remove_schedules",
    "replace",
    "replace_for_period",
    "requeue",
    "rescue",
    "resume",
    "resume_schedule",
    "retry",
    "run_now",
    "run_schedule",
    "savepoint",
    "scan_lanes",
    "set_aside",
    "snooze",
    "succeed",
    "succeed_and_discard",
    "unregister_worker",
]
