"""Statements that repair rows before a migration adds check constraints."""

from typing import Final

# Make rows satisfy the check constraints of their tables. A timestamp out of range gets the nearest valid one, an
# infinite end becomes NULL, and a job with an unknown state becomes dead. A schedule without a readable next tick gets
# one far in the future, which the next worker that reads the schedule replaces.
#
# Moves:  a state that no release knows → dead
# Caller: lifecycle.repair_rows(), from the migration that adds the constraints. It reads each table completely
REPAIR_JOBS: Final = """/* pgqueue:repair_jobs */
UPDATE pgqueue_job
SET attempt = greatest(attempt, 0), crashes = greatest(crashes, 0), max_attempts = greatest(max_attempts, 1),
    unique_ready_only = CASE WHEN unique_ready_only IS NOT NULL THEN true END,
    enqueued_at = least(greatest(enqueued_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    unknown_since = CASE
        WHEN unknown_since IS NOT NULL THEN least(greatest(unknown_since, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    expires_at = CASE WHEN expires_at < '9999-12-29 UTC' THEN greatest(expires_at, '0001-01-03 UTC') END,
    finished_at = CASE
        WHEN state NOT IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting')
        THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    state = CASE
        WHEN state IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting') THEN state ELSE 'dead'
    END
WHERE attempt < 0 OR crashes < 0 OR max_attempts < 1 OR NOT unique_ready_only
   OR state NOT IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting')
   OR least(enqueued_at, unknown_since, expires_at, finished_at) < '0001-01-03 UTC'
   OR greatest(enqueued_at, unknown_since, expires_at, finished_at) >= '9999-12-29 UTC'
"""

# Do as REPAIR_JOBS for executions. An unknown outcome becomes "failed", and an unreadable lease ends now.
REPAIR_EXECUTIONS: Final = """/* pgqueue:repair_executions */
UPDATE pgqueue_execution
SET outcome = CASE
        WHEN outcome IS NULL OR outcome IN ('succeeded', 'failed', 'crashed', 'cancelled', 'released', 'snoozed')
        THEN outcome ELSE 'failed'
    END,
    claimed_at = least(greatest(claimed_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    started_at = CASE
        WHEN started_at IS NOT NULL THEN least(greatest(started_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    finished_at = CASE
        WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    lease_expires_at = CASE
        WHEN lease_expires_at >= '0001-01-03 UTC' AND lease_expires_at < '9999-12-29 UTC'
        THEN lease_expires_at ELSE statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    END
WHERE outcome NOT IN ('succeeded', 'failed', 'crashed', 'cancelled', 'released', 'snoozed')
   OR least(claimed_at, started_at, finished_at, lease_expires_at) < '0001-01-03 UTC'
   OR greatest(claimed_at, started_at, finished_at, lease_expires_at) >= '9999-12-29 UTC'
"""

# Do as REPAIR_JOBS for schedules.
REPAIR_SCHEDULES: Final = """/* pgqueue:repair_schedules */
UPDATE pgqueue_schedule
SET next_run_at = CASE
        WHEN next_run_at >= '0001-01-03 UTC' AND next_run_at < '9999-12-29 UTC'
        THEN next_run_at ELSE '9999-12-28 UTC'
    END,
    last_run_at = CASE
        WHEN last_run_at IS NOT NULL THEN least(greatest(last_run_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    vouched_at = CASE
        WHEN vouched_at IS NOT NULL
        THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    END
WHERE least(next_run_at, last_run_at, vouched_at) < '0001-01-03 UTC'
   OR greatest(next_run_at, last_run_at, vouched_at) >= '9999-12-29 UTC'
"""

# Do as REPAIR_JOBS for pauses.
REPAIR_PAUSES: Final = """/* pgqueue:repair_pauses */
UPDATE pgqueue_pause
SET paused_at = least(greatest(paused_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    paused_until = CASE WHEN paused_until < '9999-12-29 UTC' THEN greatest(paused_until, '0001-01-03 UTC') END
WHERE least(paused_at, paused_until) < '0001-01-03 UTC' OR greatest(paused_at, paused_until) >= '9999-12-29 UTC'
"""
