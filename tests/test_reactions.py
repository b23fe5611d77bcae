"""The reactions to transitions: signals, and notifications for applications that wait for a job."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_pgqueue import signals
from django_pgqueue.ground.endings import ENDINGS, Ending
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import AnyWaiters, JobTransition, Reactions, signals_of
from django_pgqueue.states import FINISHED, TRANSITIONS, Outcome, State, TransitionName
from django_pgqueue.waiting import completion_listener
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.supervision.crash_charges import settle
from django_pgqueue.worker.supervision.heartbeat import ChildProcess
from django_pgqueue.worker.supervision.settlement import WITHOUT_SIGNALS
from tests import helpers
from tests.app import tasks

ACTS = {
    Outcome.SUCCEEDED: TransitionName.SUCCEED,
    Outcome.FAILED: TransitionName.FAIL,
    Outcome.CRASHED: TransitionName.FAIL,
    Outcome.RELEASED: TransitionName.RELEASE,
    Outcome.SNOOZED: TransitionName.SNOOZE,
    Outcome.SUSPENDED: TransitionName.SUSPEND,
    Outcome.CANCELLED: TransitionName.END_CANCELLED,
}


@pytest.fixture
def notified(new_connection, engine):
    """Return a function that returns the job ids of the notifications to waiting applications since its last call."""
    listening = new_connection()
    listening.execute(f"LISTEN {completion_listener.OVER}")

    def notified():
        engine.execute(f"NOTIFY {completion_listener.OVER}, 'end'")
        ids = []
        for notice in listening.notifies(timeout=20.0):
            if notice.payload == "end":
                break
            ids += completion_listener.ids_in(notice.payload)
        return ids

    return notified


@pytest.mark.parametrize("ending", Ending)
def test_endings_every_ending_lists_the_states_of_its_transition(ending):
    consequences = ENDINGS[ending]
    states = TRANSITIONS[State.RUNNING][ACTS[consequences.outcome]] - {None}
    assert set(consequences.signals) == states


@pytest.mark.parametrize("ending", Ending)
def test_endings_every_state_has_its_signal(ending):
    when_ready = {
        Outcome.FAILED: signals.job_failed,
        Outcome.CRASHED: signals.job_failed,
        Outcome.RELEASED: signals.job_released,
        Outcome.SNOOZED: signals.job_snoozed,
        Outcome.SUSPENDED: signals.job_suspended,
    }
    of_state = {
        State.SUCCEEDED: signals.job_succeeded,
        State.DEAD: signals.job_dead,
        State.CANCELLED: signals.job_cancelled,
    }
    for state, signal in ENDINGS[ending].signals.items():
        if state in FINISHED:
            assert signal is of_state[state]
        else:
            assert signal is when_ready[ENDINGS[ending].outcome]


def test_signals_of_rescue_reports_the_rescue_first():
    result = TransitionResult(TransitionStatus.DONE, State.DEAD)
    transition = JobTransition(1, "a.task", result, Ending.CRASHED, is_rescued=True)
    assert list(signals_of(transition)) == [signals.job_rescued, signals.job_dead]


class Recorder:
    """An observer that keeps what it receives."""

    def __init__(self):
        self.seen = []

    def wants_successes(self):
        return False

    def observe(self, transition, database):
        self.seen.append((transition.job_id, transition.result.state, database))


def test_reactions_observer_receives_only_done_transitions(engine):
    recorder = Recorder()
    reactions = Reactions([recorder], AnyWaiters())
    results = [TransitionResult(status) for status in TransitionStatus if status is not TransitionStatus.DONE]
    results.append(TransitionResult(TransitionStatus.DONE, State.DEAD))
    reactions.after(engine, [JobTransition(number, "a.task", result) for number, result in enumerate(results)])
    assert recorder.seen == [(len(results) - 1, State.DEAD, engine.alias)]


def test_release_cancelled_job_notifies_its_waiters(committing, engine, notified):
    kept, unwanted = tasks.noop.enqueue(), tasks.noop.enqueue()
    claimed = helpers.claim_all(engine)
    assert unwanted.cancel()
    release_executions(engine, claimed)
    assert notified() == [unwanted.pk]
    assert helpers.state_of(engine, kept.pk) == "ready"


def test_settle_dead_job_notifies_its_waiters(engine, notified):
    helpers.make_jobs(engine, 1, max_attempts=1)
    claimed = helpers.claim_one(engine)
    process = ChildProcess(ProcessState(1), pid=1, orders=0, worker_id=1)
    process.state.started(0, claimed.execution_id)
    link = Link("default", "supervisor")
    try:
        assert settle(link, process, WITHOUT_SIGNALS, by_default=True)
    finally:
        link.close()
    assert helpers.state_of(engine, claimed.job_id) == "dead"
    assert notified() == [claimed.job_id]


def test_cancel_in_transaction_notifies_waiters_after_commit(committing, engine, notified):
    job, other = tasks.noop.enqueue(), tasks.noop.enqueue()
    with transaction.atomic():
        job.cancel()
        assert notified() == []
    assert notified() == [job.pk]
    with transaction.atomic():
        other.cancel()
        transaction.set_rollback(True)
    assert notified() == []
    assert not connection.in_atomic_block


def test_reactions_notify_off_sends_no_notification(engine, notified, settings):
    settings.PGQUEUE = {"NOTIFY": False}
    result = TransitionResult(TransitionStatus.DONE, State.DEAD)
    Reactions([], AnyWaiters()).after(engine, [JobTransition(7, "a.task", result)])
    assert notified() == []
