"""One act against another, on two connections, in the orders that matter.

Holds what design §2 claims: no act waits for a row lock; what is judged is the row as it is after the lock; the open
execution is the fence, whichever side commits first; a lost race is a value; time is the statement's. Where an
interleaving lies inside a statement, the statement is stopped between its snapshot and its locks (see conftest).
"""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, transaction
from django.db import connection as django_connection

from django_pgqueue import JobLocked, lifecycle
from django_pgqueue.db.transactions import read_committed
from django_pgqueue.lifecycle import Cancelled, Noted, Released, TransitionResult, TransitionStatus, execute, operator
from django_pgqueue.models import Job
from django_pgqueue.progress import Progress
from django_pgqueue.states import State
from tests import helpers


@pytest.fixture
def running(engine):
    """A job that runs, and its execution."""
    helpers.make_job(engine)
    return helpers.claim_one(engine)


@pytest.fixture
def first_try(monkeypatch):
    """Set when an operator's act has tried once."""
    tried = threading.Event()
    original = execute.execute_with_retry

    def execute_with_retry(*args):
        try:
            return original(*args)
        finally:
            tried.set()

    monkeypatch.setattr(operator, "execute_with_retry", execute_with_retry)
    return tried


def the_fate(results):
    """The status of the only result."""
    [result] = results.values()
    return result.status


# ------------------------------------------------------------------ cancel


@pytest.mark.promise("cancel-beside-claim-not-missed")
def test_a_cancel_against_a_claim_that_is_committing_reaches_the_running_job(engine, second, first_try):
    job_id = helpers.make_job(engine)
    with helpers.transaction(engine):
        helpers.claim_one(engine)
        cancelling = helpers.Background(lambda: lifecycle.cancel(second, [job_id]))
        assert first_try.wait(10)
        engine.execute("COMMIT")
    assert cancelling.result() == {job_id: State.RUNNING}
    assert helpers.job_row(engine, job_id)["cancel_requested_at"] is not None
    assert len(lifecycle.cancel_requests(engine, [1])) == 1


def test_a_cancel_judges_the_state_after_its_lock_not_before(engine, second, gates):
    job_id = helpers.make_job(engine)
    with gates("CANCEL", second, lambda: lifecycle.cancel(second, [job_id])) as cancelling:
        helpers.claim_one(engine)
    assert cancelling.result() == {job_id: State.RUNNING}
    assert helpers.job_row(engine, job_id)["cancel_requested_at"] is not None


@pytest.mark.promise("cancelled-job-never-retried")
def test_a_cancel_against_a_failing_attempt_cancels_what_became_ready(engine, second, running, first_try):
    with helpers.transaction(engine):
        lifecycle.fail(engine, helpers.failed(running.key, 60.0))
        cancelling = helpers.Background(lambda: lifecycle.cancel(second, [running.job_id]))
        assert first_try.wait(10)
        engine.execute("COMMIT")
    assert cancelling.result() == {running.job_id: State.CANCELLED}
    assert helpers.state_of(engine, running.job_id) == "cancelled"


def test_a_cancel_inside_whose_window_an_attempt_fails_cancels_the_ready_job(engine, second, running, gates):
    with gates("CANCEL", second, lambda: lifecycle.cancel(second, [running.job_id])) as cancelling:
        lifecycle.fail(engine, helpers.failed(running.key, 60.0))
    assert cancelling.result() == {running.job_id: State.CANCELLED}


@pytest.mark.parametrize(
    ("statement", "act"),
    [
        ("FAIL", lambda engine, one: lifecycle.fail(engine, helpers.failed(one, 60.0))),
        ("RELEASE", lambda engine, one: lifecycle.release(engine, [Released(one)])),
        ("RELEASE", lambda engine, one: lifecycle.snooze(engine, [Released(one, 60.0)])),
    ],
    ids=["fail", "release", "snooze"],
)
def test_a_request_to_cancel_inside_its_window_is_obeyed_by(engine, second, running, gates, statement, act):
    with gates(statement, engine, lambda: act(engine, running.key)) as ending:
        assert lifecycle.cancel(second, [running.job_id]) == {running.job_id: State.RUNNING}
    assert ending.result() == {running.execution_id: TransitionResult(TransitionStatus.DONE, State.CANCELLED)}
    assert helpers.state_of(second, running.job_id) == "cancelled"


def test_a_request_to_cancel_inside_the_window_of_a_rescue_is_obeyed(engine, second, running, gates):
    helpers.end_lease(engine)
    with gates("RESCUE", engine, lambda: helpers.rescue(engine, 60.0)) as rescuing:
        lifecycle.cancel(second, [running.job_id])
    assert rescuing.result() == {running.execution_id: TransitionResult(TransitionStatus.DONE, State.CANCELLED)}


@pytest.mark.parametrize("statement", ["RETRY", "RUN_NOW"])
def test_operators_acts_judge_the_state_after_the_lock(engine, second, gates, statement):
    job_id = helpers.make_job(engine, delay_seconds=3600.0)
    act = {"RETRY": lifecycle.retry, "RUN_NOW": lifecycle.run_now}[statement]
    with gates(statement, second, lambda: act(second, [job_id])) as acting:
        lifecycle.cancel(engine, [job_id])
    wanted = {"RETRY": {job_id: State.READY}, "RUN_NOW": {}}[statement]
    assert acting.result() == wanted


# ------------------------------------------------------------------ finish against rescue


def test_a_rescue_leaves_what_is_being_finished(impatient, second, running):
    helpers.end_lease(impatient)
    with helpers.transaction(second):
        assert the_fate(lifecycle.succeed(second, helpers.succeeded(running.key))) is TransitionStatus.DONE
        assert helpers.rescue(impatient) == {}
        second.execute("COMMIT")
    assert helpers.rescue(impatient) == {}
    assert helpers.state_of(impatient, running.job_id) == "succeeded"


def test_a_finish_of_what_is_being_rescued_is_locked_and_then_lost(impatient, second, running):
    helpers.end_lease(second)
    with helpers.transaction(second):
        assert [result.state for result in helpers.rescue(second).values()] == [State.READY]
        assert the_fate(lifecycle.succeed(impatient, helpers.succeeded(running.key))) is TransitionStatus.LOCKED
        second.execute("COMMIT")
    assert the_fate(lifecycle.succeed(impatient, helpers.succeeded(running.key))) is TransitionStatus.LOST
    assert helpers.state_of(second, running.job_id) == "ready"


ENDS = {
    "SUCCEED": lambda engine, one: lifecycle.succeed(engine, helpers.succeeded(one)),
    "SUCCEED_AND_DISCARD": lambda engine, one: lifecycle.succeed_and_discard(engine, [one]),
    "FAIL": lambda engine, one: lifecycle.fail(engine, helpers.failed(one, None)),
    "RELEASE": lambda engine, one: lifecycle.release(engine, [Released(one)]),
    "END_CANCELLED": lambda engine, one: lifecycle.end_cancelled(engine, [Cancelled(one, None, 0.0)]),
}
WORDS = ENDS | {
    "NOTE_PROGRESS": lambda engine, one: lifecycle.note_progress(engine, [Noted(one, Progress(7.0), 0.0)]),
}
"""With what an attempt tells before its end."""


@pytest.mark.promise("late-end-during-rescue-is-refused")
@pytest.mark.parametrize("statement", WORDS)
def test_no_end_of_an_execution_counts_once_a_rescue_came_inside_its_window(engine, second, running, gates, statement):
    helpers.end_lease(second)
    with gates(statement, engine, lambda: WORDS[statement](engine, running.key)) as ending:
        assert the_fate(helpers.rescue(second)) is TransitionStatus.DONE
        before = helpers.everything(second)
    assert the_fate(ending.result()) is TransitionStatus.LOST
    assert helpers.everything(second) == before


@pytest.mark.promise("late-end-while-job-runs-elsewhere-is-refused")
@pytest.mark.parametrize("statement", WORDS)
def test_no_end_of_an_execution_counts_when_its_job_runs_again_elsewhere(engine, second, running, gates, statement):
    """The state is running and the attempt is the same: only the execution tells."""
    with gates(statement, engine, lambda: WORDS[statement](engine, running.key)) as ending:
        lifecycle.snooze(second, [Released(running.key)])
        again = helpers.claim_one(second, worker_id=2)
        assert (again.job_id, again.attempt) == (running.job_id, running.attempt)
        before = helpers.everything(second)
    assert the_fate(ending.result()) is TransitionStatus.LOST
    assert helpers.everything(second) == before
    assert the_fate(WORDS[statement](engine, running.key)) is TransitionStatus.LOST
    assert helpers.everything(second) == before


def test_progress_waits_for_no_finish_and_a_finish_for_no_progress(engine, second, running):
    with helpers.transaction(second):
        assert the_fate(WORDS["NOTE_PROGRESS"](second, running.key)) is TransitionStatus.DONE
        assert the_fate(WORDS["SUCCEED"](engine, running.key)) is TransitionStatus.LOCKED
        second.execute("COMMIT")
    with helpers.transaction(second):
        assert the_fate(WORDS["SUCCEED"](second, running.key)) is TransitionStatus.DONE
        assert the_fate(WORDS["NOTE_PROGRESS"](engine, running.key)) is TransitionStatus.LOCKED
        second.execute("COMMIT")
    assert the_fate(WORDS["NOTE_PROGRESS"](engine, running.key)) is TransitionStatus.LOST
    assert helpers.job_row(engine, running.job_id)["progress_done"] == 7.0


def test_a_retry_inside_whose_window_a_job_tells_keeps_the_last_word(engine, second, running, gates):
    lifecycle.fail(engine, helpers.failed(running.key, None))
    with gates("RETRY", engine, lambda: lifecycle.retry(engine, [running.job_id])) as retrying:
        lifecycle.retry(second, [running.job_id])
        again = helpers.claim_one(second)
        WORDS["NOTE_PROGRESS"](second, again.key)
        lifecycle.fail(second, helpers.failed(again.key, None))
    assert retrying.result() == {running.job_id: State.READY}
    assert helpers.job_row(engine, running.job_id)["progress_done"] == 7.0


def test_a_rescue_inside_whose_window_the_attempt_succeeded_does_nothing(engine, second, running, gates):
    helpers.end_lease(engine)
    with gates("RESCUE", engine, lambda: helpers.rescue(engine)) as rescuing:
        lifecycle.succeed(second, helpers.succeeded(running.key))
    assert rescuing.result() == {}
    assert helpers.state_of(engine, running.job_id) == "succeeded"


def test_a_beat_between_the_two_statements_of_a_rescue_saves_its_execution(engine, second, running):
    helpers.end_lease(engine)
    looked_at = []

    def delay_for(held):
        looked_at.append(held.execution_id)
        lifecycle.extend(second, [1], lease_seconds=60.0)
        return 0.0

    assert lifecycle.rescue(engine, delay_for, error="lost") == []
    assert looked_at == [running.execution_id]
    assert helpers.state_of(engine, running.job_id) == "running"


def test_a_beat_inside_the_window_of_a_rescue_saves_its_execution(engine, second, running, gates):
    helpers.end_lease(engine)
    with gates("RESCUE", engine, lambda: helpers.rescue(engine)) as rescuing:
        lifecycle.extend(second, [1], lease_seconds=60.0)
    assert rescuing.result() == {}


@pytest.mark.promise("late-success-is-refused")
def test_the_late_success_of_a_worker_thought_lost_is_lost(engine, second, running):
    helpers.end_lease(second)
    helpers.rescue(second)
    again = helpers.claim_one(second, worker_id=2)
    assert the_fate(lifecycle.succeed(engine, helpers.succeeded(running.key))) is TransitionStatus.LOST
    assert the_fate(lifecycle.succeed(second, helpers.succeeded(again.key))) is TransitionStatus.DONE
    assert the_fate(lifecycle.succeed(engine, helpers.succeeded(running.key))) is TransitionStatus.LOST


@pytest.mark.parametrize("statement", ENDS)
def test_an_act_whose_reply_was_lost_is_told_it_was_done_before(engine, second, running, statement):
    done = the_fate(ENDS[statement](engine, running.key))
    assert done is TransitionStatus.DONE
    before = helpers.everything(engine)
    again = the_fate(ENDS[statement](second, running.key))
    assert again is TransitionStatus.ALREADY_DONE
    assert helpers.everything(engine) == before


# ------------------------------------------------------------------ beat


def test_a_beat_waits_for_no_finish_and_tells_which_it_could_not_extend(impatient, second):
    helpers.make_jobs(impatient, 5)
    ids = [one.execution_id for one in helpers.claim_all(impatient)]
    with helpers.transaction(second):
        lifecycle.succeed(second, helpers.succeeded(helpers.key_of(impatient, ids[2])))
        beats = lifecycle.extend(impatient, [1], lease_seconds=60.0)
    assert {beat.execution_id: beat.extended for beat in beats} == {one: one != ids[2] for one in ids}


def test_a_beat_needs_no_job_row(impatient, second, running):
    with helpers.transaction(second, "SELECT id FROM pgqueue_job FOR UPDATE"):
        assert [beat.extended for beat in lifecycle.extend(impatient, [1], lease_seconds=60.0)] == [True]


def test_a_beat_never_opens_again_what_a_rescue_closed(engine, second, running, gates):
    helpers.end_lease(engine)
    helpers.rescue(second)
    before = helpers.everything(second)
    assert lifecycle.extend(engine, [1], lease_seconds=60.0) == []
    assert helpers.everything(second) == before


# ------------------------------------------------------------------ a finish in the task's own transaction


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


def test_an_atomic_finish_survives_a_beat_whatever_the_default_isolation(second, running, repeatable_read):
    with read_committed(repeatable_read):
        assert Job.objects.count() == 1
        lifecycle.extend(second, [1], lease_seconds=60.0)
        assert the_fate(lifecycle.succeed(repeatable_read, helpers.succeeded(running.key))) is TransitionStatus.DONE
    assert helpers.state_of(second, running.job_id) == "succeeded"


def test_without_read_committed_the_same_finish_would_fail(second, running, repeatable_read):
    with pytest.raises(OperationalError, match="could not serialize"), transaction.atomic():
        assert Job.objects.count() == 1
        lifecycle.extend(second, [1], lease_seconds=60.0)
        lifecycle.succeed(repeatable_read, helpers.succeeded(running.key))
    assert helpers.state_of(second, running.job_id) == "running"


@pytest.mark.promise("atomic-rescued-completion-rolls-back")
def test_an_atomic_finish_that_was_rescued_meanwhile_is_lost_and_can_roll_back(second, running, django):
    with read_committed(django):
        Job.objects.create(task_name="effect", arguments={})
        helpers.end_lease(second)
        helpers.rescue(second)
        assert the_fate(lifecycle.succeed(django, helpers.succeeded(running.key))) is TransitionStatus.LOST
        transaction.set_rollback(True)
    assert not Job.objects.filter(task_name="effect").exists()


def test_times_are_the_statements_not_the_transactions(engine, second):
    with helpers.transaction(engine):
        began = helpers.scalar(engine, "SELECT now()")
        pause = began + timedelta(milliseconds=30)
        helpers.wait_until(lambda: helpers.scalar(second, "SELECT clock_timestamp()") > pause)
        later = helpers.make_job(engine, delay_seconds=60.0)
        helpers.make_job(second)
        claimed = helpers.claim_one(second)
        lifecycle.succeed(engine, [lifecycle.Succeeded(claimed.key, None, 0.0, 0.0)])
        row = helpers.job_row(engine, later)
        assert row["enqueued_at"] > pause
        assert row["run_after"] - row["enqueued_at"] == timedelta(seconds=60)
        execution = helpers.execution_row(engine, claimed.execution_id)
        assert execution["finished_at"] >= execution["claimed_at"] > pause
        engine.execute("COMMIT")


def test_every_time_that_is_written_is_the_statements(engine, second, job_in):
    """Each act in a transaction that began long before: no time it writes is the transaction's."""
    with helpers.transaction(engine):
        began = helpers.scalar(engine, "SELECT now()")
        helpers.wait_until(lambda: helpers.scalar(second, "SELECT clock_timestamp()") > began + timedelta(seconds=0.03))
        for state in ("succeeded", "dead", "cancelled", "ready later", "running"):
            job_in(state)
        lifecycle.cancel(engine, [job_in("running").job_id])
        job_in("ready")
        lifecycle.extend(engine, [1], lease_seconds=1.0)
        for table in helpers.TABLES:
            for row in helpers.rows_of(engine, table).values():
                assert began not in row.values()


# ------------------------------------------------------------------ rows that others hold


def test_one_locked_job_costs_a_finish_of_500_only_itself(impatient, second):
    helpers.make_jobs(impatient, 500)
    claimed = helpers.claim_all(impatient)
    stuck = claimed[250]
    with helpers.transaction(second):
        second.execute("UPDATE pgqueue_job SET priority = 5 WHERE id = %s", [stuck.job_id])
        fates = lifecycle.succeed(impatient, helpers.succeeded(*(one.key for one in claimed)))
        assert [one for one, (fate, _) in fates.items() if fate is not TransitionStatus.DONE] == [stuck.execution_id]
        assert fates[stuck.execution_id].status is TransitionStatus.LOCKED
        assert [beat.extended for beat in lifecycle.extend(impatient, [1], lease_seconds=60.0)] == [True]
        assert helpers.rescue(impatient) == {}
    assert the_fate(lifecycle.succeed(impatient, helpers.succeeded(stuck.key))) is TransitionStatus.DONE


@pytest.mark.parametrize("statement", ENDS)
@pytest.mark.parametrize("table", ["pgqueue_job", "pgqueue_execution"])
def test_an_end_of_what_another_session_holds_locked_is_no_wait_and_no_loss(
    impatient, second, running, statement, table
):
    before = helpers.everything(impatient)
    with helpers.transaction(second, f"SELECT id FROM {table} FOR UPDATE"):
        assert the_fate(ENDS[statement](impatient, running.key)) is TransitionStatus.LOCKED
    assert helpers.everything(impatient) == before
    done = the_fate(ENDS[statement](impatient, running.key))
    assert done is TransitionStatus.DONE


@pytest.mark.parametrize("act", [lifecycle.cancel, lifecycle.retry, lifecycle.run_now])
def test_an_act_on_one_locked_job_waits_a_while_and_says_so(impatient, second, monkeypatch, act):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.05)
    job_id = helpers.make_job(impatient)
    before = helpers.everything(impatient)
    with helpers.transaction(second, "SELECT id FROM pgqueue_job FOR UPDATE"), pytest.raises(JobLocked, match="locked"):
        act(impatient, [job_id], alone=True)
    assert helpers.everything(impatient) == before


def test_an_act_on_many_jobs_leaves_the_locked_ones(impatient, second, monkeypatch):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.05)
    job_ids = helpers.make_jobs(impatient, 3)
    with helpers.transaction(second):
        second.execute("SELECT id FROM pgqueue_job WHERE id = %s FOR UPDATE", [job_ids[1]])
        changed = lifecycle.cancel(impatient, job_ids)
    assert changed == {job_ids[0]: State.CANCELLED, job_ids[2]: State.CANCELLED}
    assert helpers.state_of(impatient, job_ids[1]) == "ready"


def test_an_act_on_a_job_that_is_gone_does_not_wait(impatient):
    assert lifecycle.cancel(impatient, [1_000_000]) == {}


def test_prune_leaves_a_job_whose_execution_somebody_holds(impatient, second, job_in):
    held, free = job_in("succeeded"), job_in("succeeded")
    with helpers.transaction(second):
        second.execute("SELECT id FROM pgqueue_execution WHERE id = %s FOR UPDATE", [held.execution_id])
        pruned = lifecycle.prune(impatient, State.SUCCEEDED, 0.0)
        assert (pruned.found, pruned.removed) == (2, 1)
    assert helpers.state_of(impatient, free.job_id) is None
    assert helpers.state_of(impatient, held.job_id) == "succeeded"
    assert helpers.execution_row(impatient, held.execution_id) is not None
    assert lifecycle.prune(impatient, State.SUCCEEDED, 0.0).removed == 1
    assert helpers.rows_of(impatient, "pgqueue_execution") == {}


def test_prune_leaves_a_job_that_was_retried_meanwhile(impatient, second, job_in):
    one = job_in("dead")
    with helpers.transaction(second):
        lifecycle.retry(second, [one.job_id])
        assert lifecycle.prune(impatient, State.DEAD, 0.0).removed == 0
        second.execute("COMMIT")
    assert lifecycle.prune(impatient, State.DEAD, 0.0).removed == 0
    assert helpers.state_of(impatient, one.job_id) == "ready"


# ------------------------------------------------------------------ jobs that are deleted while they run


def by_orm(engine, job_id):
    Job.objects.get(pk=job_id).delete()


def by_sql(engine, job_id):
    engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [job_id])


@pytest.mark.parametrize("delete", [by_orm, by_sql])
@pytest.mark.parametrize("statement", ENDS)
def test_a_job_deleted_while_it_runs_is_lost_to_its_worker_and_harms_nobody(
    impatient, second, django, delete, statement
):
    helpers.make_jobs(impatient, 2)
    gone, other = helpers.claim_all(impatient)
    delete(second, gone.job_id)
    left = {beat.execution_id for beat in lifecycle.extend(impatient, [1], lease_seconds=60.0)}
    assert other.execution_id in left
    fate = the_fate(ENDS[statement](impatient, gone.key))
    missing = statement == "SUCCEED_AND_DISCARD" and delete is by_orm
    assert fate is (TransitionStatus.ALREADY_DONE if missing else TransitionStatus.LOST)
    assert [beat.execution_id for beat in lifecycle.extend(impatient, [1], lease_seconds=60.0)] == [other.execution_id]
    assert the_fate(lifecycle.succeed(impatient, helpers.succeeded(other.key))) is TransitionStatus.DONE


@pytest.mark.parametrize("delete", [by_orm, by_sql])
def test_a_rescue_passes_over_deleted_jobs_and_removes_what_they_left(impatient, second, django, delete):
    helpers.make_jobs(impatient, 2)
    gone, other = helpers.claim_all(impatient)
    delete(second, gone.job_id)
    helpers.end_lease(impatient)
    assert helpers.rescue(impatient) == {other.execution_id: TransitionResult(TransitionStatus.DONE, State.READY)}
    assert list(helpers.rows_of(impatient, "pgqueue_execution")) == [other.execution_id]


# ------------------------------------------------------------------ isolation by default


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_claim_that_meets_a_change_is_tried_again_whatever_the_default_isolation(engine, second, gates, isolation):
    engine.execute(f"SET default_transaction_isolation = '{isolation}'")
    job_ids = helpers.make_jobs(second, 2)
    with gates("CLAIM", engine, lambda: helpers.claim_all(engine)) as claiming:
        second.execute("UPDATE pgqueue_job SET attempt = 3 WHERE id = %s", [job_ids[0]])
    assert [(one.job_id, one.attempt) for one in claiming.result()] == [(job_ids[0], 4), (job_ids[1], 1)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("statement", ENDS)
def test_a_finish_that_meets_a_beat_is_tried_again_whatever_the_default_isolation(
    engine, second, running, gates, isolation, statement
):
    engine.execute(f"SET default_transaction_isolation = '{isolation}'")
    with gates(statement, engine, lambda: ENDS[statement](engine, running.key)) as ending:
        lifecycle.extend(second, [1], lease_seconds=60.0)
    done = the_fate(ending.result())
    assert done is TransitionStatus.DONE


def test_inside_a_callers_transaction_such_an_error_passes_through(second, running, repeatable_read):
    assert execute.TRIES > 1
    with pytest.raises(OperationalError), transaction.atomic():
        Job.objects.count()
        lifecycle.cancel(second, [running.job_id])
        lifecycle.cancel(repeatable_read, [running.job_id])


def test_only_executions_without_a_job_are_orphans(engine, second):
    helpers.make_jobs(engine, 3)
    living, orphan, locked = helpers.claim_all(engine)
    for gone in (orphan, locked):
        by_sql(engine, gone.job_id)
    keys = [living.key, orphan.key, locked.key]
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_execution WHERE id = %s FOR UPDATE", [locked.execution_id])
        lifecycle.remove_orphans(engine, keys)
        assert list(helpers.rows_of(engine, "pgqueue_execution")) == [living.execution_id, locked.execution_id]
    lifecycle.remove_orphans(engine, keys)
    assert list(helpers.rows_of(engine, "pgqueue_execution")) == [living.execution_id]
