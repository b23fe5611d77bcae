"""The state machine: one function per act, and the only code that writes state.

Each function runs one statement (rescue: two) on the connection it is given, in that connection's transaction, and
tells for each id what happened. To lose a race is a value, not an exception:

* `Fate.DONE`: this call did it;
* `Fate.DONE_BEFORE`: an earlier call of the same worker had done it, its reply was lost;
* `Fate.LOST`: the execution was closed by somebody else, or its job is gone: nothing this worker did counts;
* `Fate.LOCKED`: another session holds the rows; the execution is open still, ask again.

Deadlocks, serialization failures and lock time-outs are retried on engine connections; inside a caller's
transaction they pass through, for only the caller can retry that.
"""

from .application import (
    LOCK_WAIT_SECONDS,
    cancel,
    enqueue,
    enqueue_many,
    existing,
    retry,
    run_now,
)
from .claims import (
    AHEAD_BYTES,
    cancel_requests,
    claim,
    claim_one,
    extend,
    look,
    next_in_line,
    set_aside,
)
from .finishes import (
    end_cancelled,
    fail,
    note_progress,
    release,
    remove_orphans,
    snooze,
    succeed,
    succeed_and_discard,
)
from .maintenance import (
    PRUNE_LIMIT,
    open_executions,
    prunable,
    prune,
    rescue,
)
from .pauses import pause, prune_pauses, resume
from .scheduling import (
    VOUCHED_SECONDS,
    Definition,
    Fired,
    JobOptions,
    Scheduled,
    add_schedule,
    change_schedule,
    fire,
    pause_schedule,
    plan_schedule,
    prune_schedule_runs,
    remove_schedules,
    resume_schedule,
    run_schedule,
    schedules,
    vouch,
)
from .values import (
    EPOCH,
    Beat,
    Cancelled,
    Claimed,
    Cursor,
    Enqueued,
    Failed,
    Fate,
    Held,
    Lane,
    Look,
    Moved,
    Noted,
    Pruned,
    Released,
    Succeeded,
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
    "LOCK_WAIT_SECONDS",
    "PRUNE_LIMIT",
    "VOUCHED_SECONDS",
    "Beat",
    "Cancelled",
    "Claimed",
    "Cursor",
    "Definition",
    "Enqueued",
    "Failed",
    "Fate",
    "Fired",
    "Held",
    "JobOptions",
    "Lane",
    "Look",
    "Moved",
    "Noted",
    "Pruned",
    "Released",
    "Scheduled",
    "Succeeded",
    "add_schedule",
    "beat_workers",
    "cancel",
    "cancel_requests",
    "change_schedule",
    "claim",
    "claim_one",
    "end_cancelled",
    "enqueue",
    "enqueue_many",
    "existing",
    "extend",
    "fail",
    "fire",
    "look",
    "next_in_line",
    "note_progress",
    "open_executions",
    "pause",
    "pause_schedule",
    "plan_schedule",
    "prunable",
    "prune",
    "prune_pauses",
    "prune_schedule_runs",
    "prune_workers",
    "register_worker",
    "release",
    "remove_orphans",
    "remove_schedules",
    "rescue",
    "resume",
    "resume_schedule",
    "retry",
    "run_now",
    "run_schedule",
    "schedules",
    "set_aside",
    "snooze",
    "succeed",
    "succeed_and_discard",
    "unregister_worker",
    "vouch",
]
