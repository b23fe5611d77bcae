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

On engine connections, deadlocks, serialization failures and lock timeouts are retried, but not in a transaction.
"""

from django_pgqueue.options.task_options import JobOptions

from . import batches, breakers, bulk_acts, chunks, events, graphs, limit_overrides, limits, steps, stored_calls
from .audit import (
    NAME_LENGTH,
    add_audit,
    begin_audit,
    begin_audit_once,
    end_audit,
    prune_audit,
    record_audit,
    stop_audit,
)
from .claims import AHEAD_BYTES, claim, claim_one, newest_lanes, next_in_line, scan_lanes, set_aside
from .completions import (
    SUCCEEDED,
    end_cancelled,
    fail,
    note_progress,
    outcomes_of,
    release,
    remove_orphans,
    snooze,
    stored_results,
    succeed,
    succeed_and_discard,
)
from .enqueueing import enqueue, enqueue_each, enqueue_many
from .execute import FAILURES, Divided, Refused, divided, may_divide, savepoint
from .expiry import expire
from .graphs import advance, postpone, restore
from .history import archive, erase, read_for_archive, remove_archived
from .installations import Adopted, adopt, read_installations, record_installation
from .leases import cancel_requests, extend, extend_executions, note_started, open_executions
from .logs import KeptLog, keep_logs
from .operator import LOCK_WAIT_SECONDS, cancel, delete, existing, move, retry, run_now
from .orphans import ORPHANS, prune_orphans
from .pauses import pause, prune_pauses, resume
from .pruning import EVER, FIRST_FINISHED, PRUNE_LIMIT, finished_jobs, prunable, prune
from .remote_tokens import create_remote_token, revoke_remote_token, use_remote_token
from .requeues import requeue
from .rescues import rescue
from .rollups import ROLLUPS_MERGED, append_rollups, merge_rollups, prune_rollups
from .schedules import (
    Definition,
    Scheduled,
    add_schedule,
    arguments_of,
    change_schedule,
    confirm_schedules,
    note_problem,
    pause_schedule,
    plan_schedule,
    prune_schedule_runs,
    read_schedules,
    remove_schedules,
    resume_schedule,
)
from .search_keys import add_search_keys, remove_search_keys
from .steps import suspend, wake
from .ticks import CONFIRMED_SECONDS, Fired, Tick, fire, fire_many, run_schedule
from .types import (
    EPOCH,
    Cancelled,
    Claimed,
    Cursor,
    Enqueued,
    ExecutionKey,
    Failed,
    Heartbeat,
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
from .worker_requests import (
    REQUESTS_PRUNED,
    WorkerRequestRow,
    answer_request,
    open_request,
    open_requests,
    prune_worker_requests,
    request_of_worker,
)
from .workers import prune_workers, register_worker, unregister_worker
