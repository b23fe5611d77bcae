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

from .claims import AHEAD_BYTES, claim, claim_one, look, next_in_line, set_aside
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
from .enqueueing import enqueue, enqueue_many
from .execute import FAILURES, Divided, Refused, divided, may_divide, savepoint
from .expiry import expire
from .leases import cancel_requests, extend, extend_each, open_executions
from .operator import LOCK_WAIT_SECONDS, cancel, existing, retry, run_now
from .pauses import pause, prune_pauses, resume
from .pruning import PRUNE_LIMIT, prunable, prune
from .requeues import Requeued, requeue
from .rescues import rescue
from .schedules import (
    VOUCHED_SECONDS,
    Definition,
    Fired,
    JobOptions,
    Scheduled,
    add_schedule,
    arguments_of,
    change_schedule,
    fire,
    note_problem,
    pause_schedule,
    plan_schedule,
    prune_schedule_runs,
    read_schedules,
    remove_schedules,
    resume_schedule,
    run_schedule,
    vouch,
)
from .types import (
    EPOCH,
    Beat,
    Cancelled,
    Claimed,
    Cursor,
    Enqueued,
    ExecutionKey,
    Failed,
    Held,
    Lane,
    LaneScan,
    Noted,
    Pruned,
    Released,
    Succeeded,
    TransitionResult,
    TransitionStatus,
)
from .unique import (
    HOLDS_PRUNED,
    enqueue_for_period,
    enqueue_many_unique,
    enqueue_unique,
    holders,
    holds,
    prune_holds,
    replace,
    replace_for_period,
)
from .workers import (
    beat_workers,
    prune_workers,
    register_worker,
    unregister_worker,
)

__all__ = [
    "AHEAD_BYTES",
    "EPOCH",
    "FAILURES",
    "HOLDS_PRUNED",
    "LOCK_WAIT_SECONDS",
    "PRUNE_LIMIT",
    "SUCCEEDED",
    "VOUCHED_SECONDS",
    "Beat",
    "Cancelled",
    "Claimed",
    "Cursor",
    "Definition",
    "Divided",
    "Enqueued",
    "ExecutionKey",
    "Failed",
    "Fired",
    "Held",
    "JobOptions",
    "Lane",
    "LaneScan",
    "Noted",
    "Pruned",
    "Refused",
    "Released",
    "Requeued",
    "Scheduled",
    "Succeeded",
    "TransitionResult",
    "TransitionStatus",
    "add_schedule",
    "arguments_of",
    "beat_workers",
    "cancel",
    "cancel_requests",
    "change_schedule",
    "claim",
    "claim_one",
    "divided",
    "end_cancelled",
    "enqueue",
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
    "holds",
    "look",
    "may_divide",
    "next_in_line",
    "note_problem",
    "note_progress",
    "open_executions",
    "pause",
    "pause_schedule",
    "plan_schedule",
    "prunable",
    "prune",
    "prune_holds",
    "prune_pauses",
    "prune_schedule_runs",
    "prune_workers",
    "read_schedules",
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
    "set_aside",
    "snooze",
    "succeed",
    "succeed_and_discard",
    "unregister_worker",
    "vouch",
]
