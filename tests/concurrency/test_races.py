"""Tests of one transition against another, on two connections, in the orders that matter.

The tests check the rules of design §2:

- No transition waits for a row lock.
- A transition checks the row as it is after the lock.
- The open execution is the fence, whichever side commits first.
- A transition that loses a race returns a status. It does not raise an error.
- Every time that a statement writes is the time of the statement, not of the transaction.

Where one transition must run in the middle of another statement, the test stops that statement between its snapshot and
its locks. See conftest.py. "Before the lock" in a test name means this moment.
"""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, transaction
from django.db import connection as django_connection

from django_pgqueue import JobLocked
from django_pgqueue.db.transactions import read_committed
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import completions, execute, leases, operator, orphans, pruning, rescues, workers
from django_pgqueue.lifecycle.types import Cancelled, Noted, Released, Succeeded, TransitionResult, TransitionStatus
from django_pgqueue.models import Job
from django_pgqueue.states import State
from tests import helpers


@pytest.fixture
def running(engine):
    """Return the claim of a job that runs."""
    helpers.make_job(engine)
    return helpers.claim_one(engine)


@pytest.fixture
def first_try(monkeypatch):
    """Return an event that is set after an operator transition has made its first try."""
    tried = threading.Event()
    original = execute.execute_with_retry

    def execute_with_retry(*args):
        try:
            return original(*args)
        finally:
            tried.set()

    monkeypatch.setattr(operator, "execute_with_retry", execute_with_retry)
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", helpers.LOCK_WAIT_SECONDS)
    return tried


def only_status(results):
    """Return the status of the only result."""
    [result] = results.values()
    return result.status


# ------------------------------------------------------------------ cancel


@pytest.mark.promise("cancel-beside-claim-not-missed")
def test_cancel_during_claim_commit_reaches_running_job(engine, second, first_try):
    job_id = helpers.make_job(engine)
    with helpers.transaction(engine):
        helpers.claim_one(engine)
        cancelling = helpers.Background(lambda: operator.cancel(second, [job_id]))
        assert first_try.wait(10)
        engine.execute("COMMIT")
    assert cancelling.result() == {job_id: State.RUNNING}
    assert helpers.job_row(engine, job_id)["cancel_requested_at"] is not None
    assert len(leases.cancel_requests(engine, [1])) == 1


def test_cancel_claim_before_lock_uses_locked_state(engine, second, gates):
    job_id = helpers.make_job(engine)
    with gates("CANCEL", second, lambda: operator.cancel(second, [job_id])) as cancelling:
        helpers.claim_one(engine)
    assert cancelling.result() == {job_id: State.RUNNING}
    assert helpers.job_row(engine, job_id)["cancel_requested_at"] is not None


@pytest.mark.promise("cancelled-job-never-retried")
def test_cancel_during_failure_commit_cancels_ready_job(engine, second, running, first_try):
    with helpers.transaction(engine):
        completions.fail(engine, helpers.failed(running.key, 60.0))
        cancelling = helpers.Background(lambda: operator.cancel(second, [running.job_id]))
        assert first_try.wait(10)
        engine.execute("COMMIT")
    assert cancelling.result() == {running.job_id: State.CANCELLED}
    assert helpers.state_of(engine, running.job_id) == "cancelled"


def test_cancel_failure_before_lock_cancels_ready_job(engine, second, running, gates):
    with gates("CANCEL", second, lambda: operator.cancel(second, [running.job_id])) as cancelling:
        completions.fail(engine, helpers.failed(running.key, 60.0))
    assert cancelling.result() == {running.job_id: State.CANCELLED}


@pytest.mark.parametrize(
    ("statement", "act"),
    [
        ("FAIL", lambda engine, key: completions.fail(engine, helpers.failed(key, 60.0))),
        ("RELEASE", lambda engine, key: completions.release(engine, [Released(key)])),
        ("RELEASE", lambda engine, key: completions.snooze(engine, [Released(key, 60.0)])),
    ],
    ids=["fail", "release", "snooze"],
)
def test_attempt_end_cancel_before_lock_cancels_job(engine, second, running, gates, statement, act):
    with gates(statement, engine, lambda: act(engine, running.key)) as ending:
        assert operator.cancel(second, [running.job_id]) == {running.job_id: State.RUNNING}
    assert ending.result() == {running.execution_id: TransitionResult(TransitionStatus.DONE, State.CANCELLED)}
    assert helpers.state_of(second, running.job_id) == "cancelled"


def test_rescue_cancel_before_lock_cancels_job(engine, second, running, gates):
    helpers.end_lease(engine)
    with gates("RESCUE", engine, lambda: helpers.rescue(engine, 60.0)) as rescuing:
        operator.cancel(second, [running.job_id])
    assert rescuing.result() == {running.execution_id: TransitionResult(TransitionStatus.DONE, State.CANCELLED)}


@pytest.mark.parametrize("statement", ["RETRY", "RUN_NOW"])
def test_retry_and_run_now_cancel_before_lock_use_new_state(engine, second, gates, statement):
    job_id = helpers.make_job(engine, delay_seconds=3600.0)
    transition = {"RETRY": operator.retry, "RUN_NOW": operator.run_now}[statement]
    with gates(statement, second, lambda: transition(second, [job_id])) as acting:
        operator.cancel(engine, [job_id])
    wanted = {"RETRY": {job_id: State.READY}, "RUN_NOW": {}}[statement]
    assert acting.result() == wanted


# ------------------------------------------------------------------ completion against rescue


def test_rescue_execution_being_completed_is_left_alone(impatient, second, running):
    helpers.end_lease(impatient)
    with helpers.transaction(second):
        assert only_status(completions.succeed(second, helpers.succeeded(running.key))) is TransitionStatus.DONE
        assert helpers.rescue(impatient) == {}
        second.execute("COMMIT")
    assert helpers.rescue(impatient) == {}
    assert helpers.state_of(impatient, running.job_id) == "succeeded"


def test_succeed_during_rescue_is_locked_then_lost(impatient, second, running):
    helpers.end_lease(second)
    with helpers.transaction(second):
        assert [result.state for result in helpers.rescue(second).values()] == [State.READY]
        assert only_status(completions.succeed(impatient, helpers.succeeded(running.key))) is TransitionStatus.LOCKED
        second.execute("COMMIT")
    assert only_status(completions.succeed(impatient, helpers.succeeded(running.key))) is TransitionStatus.LOST
    assert helpers.state_of(second, running.job_id) == "ready"


ENDS = {
    "SUCCEED": lambda engine, key: completions.succeed(engine, helpers.succeeded(key)),
    "SUCCEED_AND_DISCARD": lambda engine, key: completions.succeed_and_discard(engine, [key]),
    "FAIL": lambda engine, key: completions.fail(engine, helpers.failed(key, None)),
    "RELEASE": lambda engine, key: completions.release(engine, [Released(key)]),
    "END_CANCELLED": lambda engine, key: completions.end_cancelled(engine, [Cancelled(key, None, 0.0)]),
}
REPORTS = ENDS | {
    "NOTE_PROGRESS": lambda engine, key: completions.note_progress(engine, [Noted(key, Progress(7.0), 0.0)]),
}
"""The ends of an attempt, and the progress that it reports before its end."""


@pytest.mark.promise("late-end-during-rescue-is-refused")
@pytest.mark.parametrize("statement", REPORTS)
def test_report_rescue_before_lock_is_lost(engine, second, running, gates, statement):
    helpers.end_lease(second)
    with gates(statement, engine, lambda: REPORTS[statement](engine, running.key)) as ending:
        assert only_status(helpers.rescue(second)) is TransitionStatus.DONE
        before = helpers.everything(second)
    assert only_status(ending.result()) is TransitionStatus.LOST
    assert helpers.everything(second) == before


@pytest.mark.promise("late-end-while-job-runs-elsewhere-is-refused")
@pytest.mark.parametrize("statement", REPORTS)
def test_report_job_running_elsewhere_is_lost(engine, second, running, gates, statement):
    """The job runs again on another worker, with the same state and the same attempt number.

    Only the execution shows that the report belongs to an earlier claim.
    """
    with gates(statement, engine, lambda: REPORTS[statement](engine, running.key)) as ending:
        completions.snooze(second, [Released(running.key)])
        again = helpers.claim_one(second, worker_id=2)
        assert (again.job_id, again.attempt) == (running.job_id, running.attempt)
        before = helpers.everything(second)
    assert only_status(ending.result()) is TransitionStatus.LOST
    assert helpers.everything(second) == before
    assert only_status(REPORTS[statement](engine, running.key)) is TransitionStatus.LOST
    assert helpers.everything(second) == before


def test_progress_and_completion_locked_row_do_not_wait(engine, second, running):
    with helpers.transaction(second):
        assert only_status(REPORTS["NOTE_PROGRESS"](second, running.key)) is TransitionStatus.DONE
        assert only_status(REPORTS["SUCCEED"](engine, running.key)) is TransitionStatus.LOCKED
        second.execute("COMMIT")
    with helpers.transaction(second):
        assert only_status(REPORTS["SUCCEED"](second, running.key)) is TransitionStatus.DONE
        assert only_status(REPORTS["NOTE_PROGRESS"](engine, running.key)) is TransitionStatus.LOCKED
        second.execute("COMMIT")
    assert only_status(REPORTS["NOTE_PROGRESS"](engine, running.key)) is TransitionStatus.LOST
    assert helpers.job_row(engine, running.job_id)["progress_done"] == 7.0


def test_retry_progress_before_lock_keeps_progress(engine, second, running, gates):
    completions.fail(engine, helpers.failed(running.key, None))
    with gates("RETRY", engine, lambda: operator.retry(engine, [running.job_id])) as retrying:
        operator.retry(second, [running.job_id])
        again = helpers.claim_one(second)
        REPORTS["NOTE_PROGRESS"](second, again.key)
        completions.fail(second, helpers.failed(again.key, None))
    assert retrying.result() == {running.job_id: State.READY}
    assert helpers.job_row(engine, running.job_id)["progress_done"] == 7.0


def test_rescue_success_before_lock_does_nothing(engine, second, running, gates):
    helpers.end_lease(engine)
    with gates("RESCUE", engine, lambda: helpers.rescue(engine)) as rescuing:
        completions.succeed(second, helpers.succeeded(running.key))
    assert rescuing.result() == {}
    assert helpers.state_of(engine, running.job_id) == "succeeded"


def test_rescue_heartbeat_between_statements_does_nothing(engine, second, running, worker):
    helpers.end_lease(engine)
    expired_ids = []

    def delay_for(execution):
        expired_ids.append(execution.execution_id)
        leases.extend(second, [1], lease_seconds=60.0)
        return 0.0

    assert rescues.rescue(engine, delay_for, error="lost") == []
    assert expired_ids == [running.execution_id]
    assert helpers.state_of(engine, running.job_id) == "running"


def test_rescue_heartbeat_before_its_snapshot_does_nothing(engine, second, running, worker):
    helpers.end_lease(engine)
    leases.extend(second, [1], lease_seconds=60.0)
    assert helpers.rescue(engine) == {}


def test_rescue_heartbeat_after_its_snapshot_loses_the_execution(engine, second, running, worker, gates):
    """The rescue cannot see the heartbeat. The worker finds out that the execution is lost, as after any rescue."""
    helpers.end_lease(engine)
    with gates("RESCUE", engine, lambda: helpers.rescue(engine)) as rescuing:
        leases.extend(second, [1], lease_seconds=60.0)
    assert list(rescuing.result()) == [running.execution_id]
    assert leases.open_executions(second, 1) == []
    assert only_status(completions.succeed(second, helpers.succeeded(running.key))) is TransitionStatus.LOST


@pytest.mark.quick
@pytest.mark.promise("late-success-is-refused")
def test_succeed_after_rescue_is_lost(engine, second, running):
    helpers.end_lease(second)
    helpers.rescue(second)
    again = helpers.claim_one(second, worker_id=2)
    assert only_status(completions.succeed(engine, helpers.succeeded(running.key))) is TransitionStatus.LOST
    assert only_status(completions.succeed(second, helpers.succeeded(again.key))) is TransitionStatus.DONE
    assert only_status(completions.succeed(engine, helpers.succeeded(running.key))) is TransitionStatus.LOST


@pytest.mark.parametrize("statement", ENDS)
def test_attempt_end_repeated_returns_already_done(engine, second, running, statement):
    done = only_status(ENDS[statement](engine, running.key))
    assert done is TransitionStatus.DONE
    before = helpers.everything(engine)
    again = only_status(ENDS[statement](second, running.key))
    assert again is TransitionStatus.ALREADY_DONE
    assert helpers.everything(engine) == before


# ------------------------------------------------------------------ heartbeat


@pytest.fixture
def worker(engine):
    """Add the record of worker 1, whose lease the tests extend."""
    about = {"hostname": "here", "pid": 1, "version": "0", "queue_names": "", "concurrency": 1}
    return workers.register_worker(engine, worker_id=1, **about)


def is_extended(connection):
    return leases.extend(connection, [1], lease_seconds=60.0)[1].is_extended


@pytest.mark.parametrize("table", ["pgqueue_job", "pgqueue_execution"])
def test_heartbeat_beside_locked_rows_extends_the_lease(impatient, second, running, worker, table):
    with helpers.transaction(second, f"SELECT id FROM {table} FOR UPDATE"):
        assert is_extended(impatient)


def test_heartbeat_locked_worker_is_reported_not_extended(impatient, second, worker):
    with helpers.transaction(second, "SELECT id FROM pgqueue_worker FOR UPDATE"):
        assert not is_extended(impatient)
    assert is_extended(impatient)


def test_note_started_locked_execution_is_left_out(impatient, second):
    helpers.make_jobs(impatient, 5)
    ids = [each.execution_id for each in helpers.claim_all(impatient, free_slots=0)]
    with helpers.transaction(second):
        completions.succeed(second, helpers.succeeded(helpers.key_of(impatient, ids[2])))
        assert leases.note_started(impatient, [1], ids) == []
    started = {key for key in ids if helpers.execution_row(impatient, key)["started_at"] is not None}
    assert started == {*ids} - {ids[2]}


def test_heartbeat_after_rescue_changes_no_job(engine, second, running, worker):
    helpers.end_lease(engine)
    helpers.rescue(second)
    before = [helpers.rows_of(second, table) for table in ("pgqueue_job", "pgqueue_execution")]
    assert is_extended(engine)
    leases.note_started(engine, [1], [running.execution_id])
    assert [helpers.rows_of(second, table) for table in ("pgqueue_job", "pgqueue_execution")] == before


# ------------------------------------------------------------------ a completion in the task's own transaction


@pytest.fixture
def django(committing):
    django_connection.ensure_connection()
    yield django_connection
    django_connection.close()


@pytest.fixture
def repeatable_read(django):
    with django.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
    return django


def test_atomic_completion_heartbeat_meanwhile_succeeds(second, running, repeatable_read):
    with read_committed(repeatable_read):
        assert Job.objects.count() == 1
        leases.extend_executions(second, {running.key: 60.0})
        assert (
            only_status(completions.succeed(repeatable_read, helpers.succeeded(running.key))) is TransitionStatus.DONE
        )
    assert helpers.state_of(second, running.job_id) == "succeeded"


def test_atomic_completion_repeatable_read_raises_error(second, running, repeatable_read):
    with pytest.raises(OperationalError, match="could not serialize"), transaction.atomic():
        assert Job.objects.count() == 1
        leases.extend_executions(second, {running.key: 60.0})
        completions.succeed(repeatable_read, helpers.succeeded(running.key))
    assert helpers.state_of(second, running.job_id) == "running"


@pytest.mark.promise("atomic-rescued-completion-rolls-back")
def test_atomic_completion_after_rescue_is_lost(second, running, django):
    with read_committed(django):
        Job.objects.create(task_name="effect", arguments={})
        helpers.end_lease(second)
        helpers.rescue(second)
        assert only_status(completions.succeed(django, helpers.succeeded(running.key))) is TransitionStatus.LOST
        transaction.set_rollback(True)
    assert not Job.objects.filter(task_name="effect").exists()


def test_transition_in_old_transaction_uses_statement_time(engine, second):
    with helpers.transaction(engine):
        transaction_began = helpers.scalar(engine, "SELECT now()")
        earliest = transaction_began + timedelta(milliseconds=30)
        helpers.wait_until(lambda: helpers.scalar(second, "SELECT clock_timestamp()") > earliest)
        later = helpers.make_job(engine, delay_seconds=60.0)
        helpers.make_job(second)
        claimed = helpers.claim_one(second)
        completions.succeed(engine, [Succeeded(claimed.key, None, 0.0, 0.0)])
        row = helpers.job_row(engine, later)
        assert row["enqueued_at"] > earliest
        assert row["run_after"] - row["enqueued_at"] == timedelta(seconds=60)
        execution = helpers.execution_row(engine, claimed.execution_id)
        assert execution["finished_at"] >= execution["claimed_at"] > earliest
        engine.execute("COMMIT")


def test_all_transitions_old_transaction_use_statement_time(engine, second, job_in):
    """Each transition runs in a transaction that began earlier.

    No transition may write the start time of the transaction.
    """
    with helpers.transaction(engine):
        transaction_began = helpers.scalar(engine, "SELECT now()")
        helpers.wait_until(
            lambda: helpers.scalar(second, "SELECT clock_timestamp()") > transaction_began + timedelta(seconds=0.03)
        )
        for state in ("succeeded", "dead", "cancelled", "ready later", "running"):
            job_in(state)
        operator.cancel(engine, [job_in("running").job_id])
        job_in("ready")
        leases.extend(engine, [1], lease_seconds=1.0)
        for table in helpers.TABLES:
            for row in helpers.rows_of(engine, table).values():
                assert transaction_began not in row.values()


# ------------------------------------------------------------------ rows that another session has locked


def test_succeed_one_of_500_jobs_locked_completes_others(impatient, second, worker):
    helpers.make_jobs(impatient, 500)
    claimed = helpers.claim_all(impatient)
    locked = claimed[250]
    with helpers.transaction(second):
        second.execute("UPDATE pgqueue_job SET priority = 5 WHERE id = %s", [locked.job_id])
        results = completions.succeed(impatient, helpers.succeeded(*(job.key for job in claimed)))
        assert [job for job, (status, _) in results.items() if status is not TransitionStatus.DONE] == [
            locked.execution_id
        ]
        assert results[locked.execution_id].status is TransitionStatus.LOCKED
        assert is_extended(impatient)
        assert helpers.rescue(impatient) == {}
    assert only_status(completions.succeed(impatient, helpers.succeeded(locked.key))) is TransitionStatus.DONE


@pytest.mark.parametrize("statement", ENDS)
@pytest.mark.parametrize("table", ["pgqueue_job", "pgqueue_execution"])
def test_attempt_end_locked_row_returns_locked(impatient, second, running, statement, table):
    before = helpers.everything(impatient)
    with helpers.transaction(second, f"SELECT id FROM {table} FOR UPDATE"):
        assert only_status(ENDS[statement](impatient, running.key)) is TransitionStatus.LOCKED
    assert helpers.everything(impatient) == before
    done = only_status(ENDS[statement](impatient, running.key))
    assert done is TransitionStatus.DONE


@pytest.mark.parametrize("act", [operator.cancel, operator.retry, operator.run_now])
def test_operator_transition_locked_job_raises_job_locked(impatient, second, monkeypatch, act):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.05)
    job_id = helpers.make_job(impatient)
    before = helpers.everything(impatient)
    with helpers.transaction(second, "SELECT id FROM pgqueue_job FOR UPDATE"), pytest.raises(JobLocked, match="locked"):
        act(impatient, [job_id], alone=True)
    assert helpers.everything(impatient) == before


def test_cancel_many_jobs_skips_locked_ones(impatient, second, monkeypatch):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.05)
    job_ids = helpers.make_jobs(impatient, 3)
    with helpers.transaction(second):
        second.execute("SELECT id FROM pgqueue_job WHERE id = %s FOR UPDATE", [job_ids[1]])
        changed = operator.cancel(impatient, job_ids)
    assert changed == {job_ids[0]: State.CANCELLED, job_ids[2]: State.CANCELLED}
    assert helpers.state_of(impatient, job_ids[1]) == "ready"


def test_cancel_missing_job_changes_nothing(impatient):
    assert operator.cancel(impatient, [1_000_000]) == {}


def test_prune_locked_execution_keeps_its_job(impatient, second, job_in):
    locked, free = job_in("succeeded"), job_in("succeeded")
    with helpers.transaction(second):
        second.execute("SELECT id FROM pgqueue_execution WHERE id = %s FOR UPDATE", [locked.execution_id])
        pruned = pruning.prune(impatient, State.SUCCEEDED, 0.0)
        assert (pruned.removed, pruned.locked) == (1, 1)
    assert helpers.state_of(impatient, free.job_id) is None
    assert helpers.state_of(impatient, locked.job_id) == "succeeded"
    assert helpers.execution_row(impatient, locked.execution_id) is not None
    assert pruning.prune(impatient, State.SUCCEEDED, 0.0).removed == 1
    assert helpers.rows_of(impatient, "pgqueue_execution") == {}


def test_prune_job_retried_meanwhile_is_kept(impatient, second, job_in):
    dead = job_in("dead")
    with helpers.transaction(second):
        operator.retry(second, [dead.job_id])
        assert pruning.prune(impatient, State.DEAD, 0.0).removed == 0
        second.execute("COMMIT")
    assert pruning.prune(impatient, State.DEAD, 0.0).removed == 0
    assert helpers.state_of(impatient, dead.job_id) == "ready"


# ------------------------------------------------------------------ jobs that are deleted while they run


def with_executions(engine, job_id):
    """Delete a job by SQL, with its executions."""
    engine.execute("DELETE FROM pgqueue_execution WHERE job_id = %s", [job_id])
    engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [job_id])


def by_sql(engine, job_id):
    engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [job_id])


@pytest.mark.parametrize("delete", [with_executions, by_sql])
@pytest.mark.parametrize("statement", ENDS)
def test_attempt_end_deleted_job_is_lost_and_others_complete(impatient, second, django, delete, statement):
    helpers.make_jobs(impatient, 2)
    deleted, other = helpers.claim_all(impatient)
    delete(second, deleted.job_id)
    assert [each.execution_id for each in leases.open_executions(impatient, 1)] == [other.execution_id]
    status = only_status(ENDS[statement](impatient, deleted.key))
    missing = statement == "SUCCEED_AND_DISCARD" and delete is with_executions
    assert status is (TransitionStatus.ALREADY_DONE if missing else TransitionStatus.LOST)
    assert list(helpers.rows_of(impatient, "pgqueue_execution")) in ([], [other.execution_id])
    assert only_status(completions.succeed(impatient, helpers.succeeded(other.key))) is TransitionStatus.DONE


@pytest.mark.parametrize("delete", [with_executions, by_sql])
def test_rescue_deleted_job_is_passed_by_and_swept(impatient, second, django, delete):
    helpers.make_jobs(impatient, 2)
    deleted, other = helpers.claim_all(impatient)
    delete(second, deleted.job_id)
    helpers.end_lease(impatient)
    assert helpers.rescue(impatient) == {other.execution_id: TransitionResult(TransitionStatus.DONE, State.READY)}
    orphans.prune_orphans(impatient, "executions")
    assert list(helpers.rows_of(impatient, "pgqueue_execution")) == [other.execution_id]


# ------------------------------------------------------------------ strict isolation as the default


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_claim_changed_row_strict_isolation_is_repeated(engine, second, gates, isolation):
    engine.execute(f"SET default_transaction_isolation = '{isolation}'")
    job_ids = helpers.make_jobs(second, 2)
    with gates("CLAIM", engine, lambda: helpers.claim_all(engine)) as claiming:
        second.execute("UPDATE pgqueue_job SET attempt = 3 WHERE id = %s", [job_ids[0]])
    assert [(job.job_id, job.attempt) for job in claiming.result()] == [(job_ids[0], 4), (job_ids[1], 1)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("statement", ENDS)
def test_attempt_end_heartbeat_strict_isolation_is_repeated(engine, second, running, gates, isolation, statement):
    engine.execute(f"SET default_transaction_isolation = '{isolation}'")
    with gates(statement, engine, lambda: ENDS[statement](engine, running.key)) as ending:
        leases.extend(second, [1], lease_seconds=60.0)
    done = only_status(ending.result())
    assert done is TransitionStatus.DONE


def test_cancel_conflict_in_callers_transaction_is_raised(second, running, repeatable_read):
    assert execute.TRIES > 1
    with pytest.raises(OperationalError), transaction.atomic():
        Job.objects.count()
        operator.cancel(second, [running.job_id])
        operator.cancel(repeatable_read, [running.job_id])


def test_remove_orphans_keeps_locked_and_those_with_job(engine, second):
    helpers.make_jobs(engine, 3)
    living, orphan, locked = helpers.claim_all(engine)
    for deleted in (orphan, locked):
        by_sql(engine, deleted.job_id)
    keys = [living.key, orphan.key, locked.key]
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_execution WHERE id = %s FOR UPDATE", [locked.execution_id])
        completions.remove_orphans(engine, keys)
        assert list(helpers.rows_of(engine, "pgqueue_execution")) == [living.execution_id, locked.execution_id]
    completions.remove_orphans(engine, keys)
    assert list(helpers.rows_of(engine, "pgqueue_execution")) == [living.execution_id]
