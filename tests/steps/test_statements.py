"""The statements of durable steps and of events: the fence, the order of two sessions, the sweep, and what is kept."""

from __future__ import annotations

import time

import pytest

from django_pgqueue.declared.steps import FOREVER_SECONDS, Suspension
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import completions, events, operator, orphans, steps
from django_pgqueue.lifecycle.steps import EndedStep, SuspendedExecution
from django_pgqueue.lifecycle.types import Released, TransitionResult, TransitionStatus
from django_pgqueue.reactions import AnyWaiters, Reactions
from django_pgqueue.states import State, StepKind
from django_pgqueue.worker.completion.writer import finish
from django_pgqueue.worker.execution.report import Report
from tests import helpers

pytestmark = pytest.mark.django_db(transaction=True)
DONE = TransitionResult(TransitionStatus.DONE, State.READY)


def running(engine):
    helpers.make_job(engine)
    return helpers.claim_one(engine)


def ended(name="charge", position=1.0, **changes):
    return EndedStep(name, position, StepKind.STEP, '{"id":7}', 0.5)._replace(**changes)


def waiting(name="wait", key="7", delay=FOREVER_SECONDS, **changes):
    has_end = delay != FOREVER_SECONDS
    return Suspension(name, 1.0, StepKind.EVENT, delay, has_end, 0, "", "approved", key)._replace(**changes)


def sleeping(delay=60.0, **changes):
    return Suspension("nap", 1.0, StepKind.SLEEP, delay)._replace(**changes)


def suspend(engine, claimed, suspension):
    row = SuspendedExecution(claimed.key, suspension, *helpers.AGES)
    return steps.suspend(engine, [row])[claimed.execution_id]


def suspended(engine, suspension=None):
    """Return a new job that waits for the event "approved" with the key 7, or that is otherwise suspended."""
    claimed = running(engine)
    assert suspend(engine, claimed, suspension or waiting()) == DONE
    return claimed.job_id


def send(engine, key="7", name="approved"):
    return events.send_event(engine, name, key, '"yes"')


def names(engine, job_id):
    return [step.name for step in steps.load_steps(engine, job_id)]


def is_due(engine, job_id):
    return helpers.scalar(engine, "SELECT run_after <= statement_timestamp() FROM pgqueue_job WHERE id = %s", [job_id])


# ------------------------------------------------------------------ store


def test_store_step_open_execution_stores_the_result(engine):
    claimed = running(engine)
    assert steps.store_step(engine, claimed.key, ended()) is TransitionStatus.DONE
    [step] = steps.load_steps(engine, claimed.job_id)
    assert (step.name, step.kind, step.result, step.is_finished) == ("charge", StepKind.STEP, '{"id":7}', True)


@pytest.mark.promise("late-worker-stores-no-step")
@pytest.mark.parametrize("end", ["rescued", "succeeded", "claimed again", "another time of claim"])
def test_store_step_late_worker_stores_nothing(engine, end):
    claimed = running(engine)
    key = claimed.key
    if end == "succeeded":
        completions.succeed(engine, helpers.succeeded(key))
    elif end == "another time of claim":
        key = key._replace(claimed_ms=key.claimed_ms - 1)
    else:
        helpers.end_lease(engine)
        helpers.rescue(engine)
    if end == "claimed again":
        helpers.claim_one(engine)
    assert steps.store_step(engine, key, ended()) is TransitionStatus.LOST
    assert names(engine, claimed.job_id) == []


def test_store_step_locked_execution_reports_locked(engine, second):
    claimed = running(engine)
    with helpers.transaction(second, "SELECT FROM pgqueue_execution FOR NO KEY UPDATE"):
        assert steps.store_step(engine, claimed.key, ended()) is TransitionStatus.LOCKED
    assert names(engine, claimed.job_id) == []


@pytest.mark.promise("late-worker-stores-no-step")
def test_store_step_in_open_transaction_delays_the_rescue(engine, second):
    """The attempt after a rescue loads its steps after the rescue. It must not miss a step that is committed later."""
    claimed = running(engine)
    helpers.end_lease(engine)
    with second.transaction():
        assert steps.store_step(second, claimed.key, ended()) is TransitionStatus.DONE
        assert helpers.rescue(engine) == {}
    assert helpers.rescue(engine)
    assert names(engine, helpers.claim_one(engine).job_id) == ["charge"]


def test_store_step_twice_keeps_one_row(engine):
    claimed = running(engine)
    for _ in range(2):
        assert steps.store_step(engine, claimed.key, ended()) is TransitionStatus.DONE
    assert names(engine, claimed.job_id) == ["charge"]


def test_load_steps_returns_them_in_the_order_of_their_positions(engine):
    claimed = running(engine)
    for name, position in (("c", 3.0), ("a", 1.0), ("b", 1.5)):
        steps.store_step(engine, claimed.key, ended(name, position))
    assert names(engine, claimed.job_id) == ["a", "b", "c"]


# ------------------------------------------------------------------ suspend


def test_suspend_makes_the_job_ready_for_later_without_counting(engine):
    claimed = running(engine)
    assert suspend(engine, claimed, sleeping(3600.0)) == DONE
    row = helpers.job_row(engine, claimed.job_id)
    execution = helpers.execution_row(engine, claimed.execution_id)
    assert (row["state"], row["attempt"], row["finished_at"]) == ("ready", 0, None)
    assert (execution["outcome"], execution["error"]) == ("suspended", "step 'nap' sleeps")
    [step] = steps.load_steps(engine, claimed.job_id)
    assert 3590 < step.wakes_in_seconds <= 3600
    assert helpers.claim_all(engine) == []


def test_suspend_without_timeout_is_due_in_100_years_and_can_be_read(engine):
    job_id = suspended(engine)
    assert helpers.job_row(engine, job_id)["run_after"].year > 2100
    [step] = steps.load_steps(engine, job_id)
    assert (step.wakes_in_seconds, step.event_name, step.event_key) == (None, "approved", "7")


def test_suspend_again_keeps_the_end_of_the_first(engine):
    """A job that wakes too early, for example by an operator's "run now", must not sleep longer for that."""
    job_id = suspended(engine, sleeping(100.0))
    operator.run_now(engine, [job_id])
    assert suspend(engine, helpers.claim_one(engine), sleeping(9999.0)) == DONE
    [step] = steps.load_steps(engine, job_id)
    assert 90 < step.wakes_in_seconds <= 100


def test_suspend_for_a_retry_moves_the_next_try(engine):
    claimed = running(engine)
    retry = Suspension("charge", 1.0, StepKind.STEP, 0.0, tries=1, error="busy")
    suspend(engine, claimed, retry)
    again = helpers.claim_one(engine)
    suspend(engine, again, retry._replace(tries=2, delay_seconds=60.0))
    [step] = steps.load_steps(engine, claimed.job_id)
    assert (step.tries, step.is_finished) == (2, False)
    assert 50 < step.wakes_in_seconds <= 60


def test_suspend_late_worker_changes_nothing(engine):
    claimed = running(engine)
    helpers.end_lease(engine)
    helpers.rescue(engine)
    before = helpers.everything(engine)
    assert suspend(engine, claimed, sleeping()) == TransitionResult(TransitionStatus.LOST)
    assert helpers.everything(engine) == before


def test_suspend_repeated_reports_already_done(engine):
    claimed = running(engine)
    assert suspend(engine, claimed, sleeping()) == DONE
    assert suspend(engine, claimed, sleeping()) == TransitionResult(TransitionStatus.ALREADY_DONE)


def test_suspend_job_asked_to_cancel_is_cancelled(engine):
    claimed = running(engine)
    operator.cancel(engine, [claimed.job_id])
    assert suspend(engine, claimed, sleeping()) == TransitionResult(TransitionStatus.DONE, State.CANCELLED)
    assert helpers.state_of(engine, claimed.job_id) == "cancelled"


def test_suspend_job_that_started_in_time_does_not_expire(engine):
    [job_id] = helpers.make_jobs(engine, expires_seconds=60.0)
    suspend(engine, helpers.claim_one(engine), sleeping())
    assert helpers.job_row(engine, job_id)["expires_at"] is None


def test_suspend_many_jobs_of_all_kinds_in_one_statement(engine):
    jobs = [running(engine) for _ in range(3)]
    rows = [
        SuspendedExecution(claimed.key, suspension, *helpers.AGES)
        for claimed, suspension in zip(jobs, (sleeping(), waiting(), waiting(key='",{}', delay=5.0)), strict=True)
    ]
    assert set(steps.suspend(engine, rows).values()) == {DONE}
    found = [steps.load_steps(engine, claimed.job_id)[0] for claimed in jobs]
    assert [(step.event_name, step.event_key) for step in found] == [
        (None, None),
        ("approved", "7"),
        ("approved", '",{}'),
    ]


# ------------------------------------------------------------------ wake


def test_wake_makes_exactly_the_waiting_jobs_due(engine):
    mine, other_key, other_name = suspended(engine), suspended(engine, waiting(key="8")), suspended(engine, sleeping())
    twin = suspended(engine)
    send(engine)
    assert sorted(steps.wake(engine, "approved", "7")[0]) == [mine, twin]
    assert [is_due(engine, job) for job in (mine, twin, other_key, other_name)] == [True, True, False, False]


def test_wake_suspended_finds_an_event_that_came_before(engine):
    claimed = running(engine)
    send(engine)
    suspend(engine, claimed, waiting())
    assert steps.wake_suspended(engine, [claimed.job_id]) == {claimed.job_id}
    assert is_due(engine, claimed.job_id)


def test_wake_suspended_without_an_event_wakes_nothing(engine):
    job_id = suspended(engine)
    send(engine, key="8")
    send(engine, name="refused")
    assert steps.wake_suspended(engine, [job_id]) == set()
    assert not is_due(engine, job_id)


@pytest.mark.promise("event-is-never-lost")
@pytest.mark.parametrize("sender_commits_first", [True, False])
def test_wake_race_one_side_sees_the_other(engine, second, sender_commits_first):
    """The sender and the completer look for each other, each after its own commit."""
    claimed = running(engine)
    with second.transaction():
        send(second)
        if not sender_commits_first:
            suspend(engine, claimed, waiting())
            assert steps.wake_suspended(engine, [claimed.job_id]) == set()
    if sender_commits_first:
        assert steps.wake(second, "approved", "7") == ([], None)
        suspend(engine, claimed, waiting())
        assert steps.wake_suspended(engine, [claimed.job_id]) == {claimed.job_id}
    else:
        assert steps.wake(second, "approved", "7") == ([claimed.job_id], None)


def test_wake_for_events_wakes_their_waits_only_once(engine, second):
    """Each worker that hears of the events does this. The others find nothing to do."""
    jobs = [suspended(engine, waiting(key=str(key))) for key in (7, 7, 8, 9)]
    sent = [send(engine, "7"), send(engine, "9"), send(engine, "10")]
    send(engine, "8")
    assert steps.wake_for_events(engine, [*sent, 2**62]) == [jobs[0], jobs[1], jobs[3]]
    assert [is_due(engine, job) for job in jobs] == [True, True, False, True]
    assert steps.wake_for_events(second, sent) == []


def test_wake_for_events_leaves_locked_job_to_the_sweep(engine, second):
    job_id = suspended(engine)
    event_id = send(engine)
    with helpers.transaction(second, "SELECT FROM pgqueue_job FOR NO KEY UPDATE"):
        assert steps.wake_for_events(engine, [event_id]) == []
    assert steps.wake_missed(engine).job_ids == [job_id]


def test_wake_for_events_keeps_the_backoff_of_a_failure(engine):
    job_id = suspended(engine)
    event_id = send(engine)
    assert steps.wake_for_events(engine, [event_id]) == [job_id]
    completions.fail(engine, helpers.failed(helpers.claim_one(engine).key, 60.0))
    assert steps.wake_for_events(engine, [event_id]) == []


def test_wake_missed_finds_what_a_crash_left_behind(engine):
    """Neither the sender nor the completer has looked for the other. A locked job is left for the next sweep."""
    jobs = [suspended(engine, waiting(key=str(key))) for key in (7, 8, 9)]
    send(engine, "7")
    send(engine, "9")
    assert sorted(steps.wake_missed(engine).job_ids) == [jobs[0], jobs[2]]
    assert [is_due(engine, job) for job in jobs] == [True, False, True]


def test_wake_missed_locked_job_is_left_for_the_next_sweep(engine, second):
    job_id = suspended(engine)
    send(engine)
    with helpers.transaction(second, "SELECT FROM pgqueue_job FOR NO KEY UPDATE"):
        assert steps.wake_missed(engine).job_ids == []
    assert steps.wake_missed(engine).job_ids == [job_id]


def test_wake_missed_walks_all_pages(engine):
    jobs = [suspended(engine, waiting(key=str(n))) for n in range(7)]
    for n in range(7):
        send(engine, str(n))
    found, mark, pages = [], steps.SweepMark(), 0
    while mark is not None:
        page = steps.wake_missed(engine, mark, limit=3)
        found += page.job_ids
        mark, pages = page.mark, pages + 1
    assert (sorted(found), pages) == (jobs, 3)


@pytest.mark.parametrize("delay", [FOREVER_SECONDS, 9999.0], ids=["endless", "timeout"])
@pytest.mark.parametrize("end", ["fail", "snooze"])
def test_wake_job_in_its_backoff_is_left_alone(engine, delay, end):
    """The attempt that the event has woken has failed before its wait. The event must not end the backoff."""
    job_id = suspended(engine, waiting(delay=delay))
    send(engine)
    assert steps.wake_missed(engine).job_ids == [job_id]
    key = helpers.claim_one(engine).key
    if end == "fail":
        completions.fail(engine, helpers.failed(key, 60.0))
    else:
        completions.snooze(engine, [Released(key, 60.0)])
    assert steps.wake(engine, "approved", "7") == ([], None)
    assert steps.wake_missed(engine).job_ids == []
    assert steps.wake_suspended(engine, [job_id]) == set()
    assert not is_due(engine, job_id)


@pytest.mark.parametrize("delay", [FOREVER_SECONDS, 9999.0], ids=["endless", "timeout"])
def test_wake_job_that_waits_again_after_a_failure_is_woken(engine, delay):
    job_id = suspended(engine, waiting(delay=delay))
    operator.run_now(engine, [job_id])
    completions.fail(engine, helpers.failed(helpers.claim_one(engine).key, 0.0))
    suspend(engine, helpers.claim_one(engine), waiting(delay=delay if delay == FOREVER_SECONDS else delay - 1.0))
    send(engine)
    assert steps.wake(engine, "approved", "7") == ([job_id], None)


@pytest.mark.parametrize("current", [sleeping(), waiting("other", key="8")], ids=["sleep", "wait"])
def test_wake_event_of_a_wait_that_was_passed_wakes_nobody(engine, current):
    """New code no longer calls the first wait. Its event would wake the job again after each suspension."""
    job_id = suspended(engine)
    operator.run_now(engine, [job_id])
    suspend(engine, helpers.claim_one(engine), current)
    send(engine)
    assert steps.wake(engine, "approved", "7") == ([], None)
    assert steps.wake_missed(engine).job_ids == []
    assert steps.wake_suspended(engine, [job_id]) == set()
    operator.run_now(engine, [job_id])
    suspend(engine, helpers.claim_one(engine), waiting())
    assert steps.wake_suspended(engine, [job_id]) == {job_id}


def test_find_event_returns_the_earliest_that_was_not_received(engine):
    claimed = running(engine)
    first, second = send(engine), send(engine)
    found = events.find_event(engine, claimed.job_id, "approved", "7")
    assert found is not None
    assert found.event_id == first
    step = ended("wait", event_name="approved", event_key="7", event_id=first)
    steps.store_step(engine, claimed.key, step)
    again = events.find_event(engine, claimed.job_id, "approved", "7")
    assert again is not None
    assert again.event_id == second
    other = running(engine)
    of_other = events.find_event(engine, other.job_id, "approved", "7")
    assert of_other is not None
    assert of_other.event_id == first


def test_find_event_that_was_committed_late_is_not_skipped(engine, second):
    """The event with the lower id is committed after the job has received the one with the higher id."""
    claimed = running(engine)
    with second.transaction():
        late = send(second)
        early = send(engine)
        assert late < early
        step = ended("wait", event_name="approved", event_key="7", event_id=early)
        steps.store_step(engine, claimed.key, step)
    found = events.find_event(engine, claimed.job_id, "approved", "7")
    assert found is not None
    assert found.event_id == late


@pytest.mark.promise("event-is-never-lost")
@pytest.mark.parametrize("is_sent", [True, False])
def test_finish_suspension_whose_event_has_come_wakes_workers(engine, is_sent):
    claimed, woken, now = running(engine), [], time.monotonic()
    if is_sent:
        send(engine)
    report = Report(claimed, Ending.SUSPENDED, now, now, delay_seconds=FOREVER_SECONDS, suspension=waiting())
    finish(engine, [report], Reactions([], AnyWaiters(), wake=woken.append))
    assert is_due(engine, claimed.job_id) == is_sent
    assert woken == [engine] * is_sent


# ------------------------------------------------------------------ prune


def test_prune_steps_removes_only_those_of_deleted_jobs(engine):
    kept, gone = suspended(engine), suspended(engine, sleeping())
    engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [gone])
    assert orphans.prune_orphans(engine, "steps").removed == 1
    assert (names(engine, kept), names(engine, gone)) == (["wait"], [])


def test_prune_events_removes_the_old_ones(engine):
    for _ in range(3):
        send(engine)
    engine.execute("UPDATE pgqueue_event SET sent_at = sent_at - interval '31 days' WHERE id < 3")
    assert events.prune_events(engine, 30 * 86400.0, limit=2) == (2, 0, 2)
    assert events.prune_events(engine, 30 * 86400.0, 2, limit=2) == (0, 0, None)
    assert list(helpers.rows_of(engine, "pgqueue_event")) == [3]


def test_remove_steps_removes_those_of_the_jobs(engine):
    first, second = suspended(engine), suspended(engine)
    steps.remove_steps(engine, [first])
    assert (names(engine, first), names(engine, second)) == ([], ["wait"])
