"""Test that a worker remembers which jobs are awaited, and notifies the waiters when such a job has finished."""

from __future__ import annotations

import select
import time

import pytest

from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import claims, completions
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import Reactions, may_be_over
from django_pgqueue.states import State
from django_pgqueue.waiting import completion_listener
from django_pgqueue.worker.claiming.waking import fetcher_sleep as notification_waker
from django_pgqueue.worker.claiming.waking.fetcher_sleep import NotificationWaker
from django_pgqueue.worker.completion import waiters as module
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.waiters import Waiters
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.shared_connections import Preference, SharedConnections
from tests import helpers

LONG = 20.0


@pytest.fixture
def sent_payloads(new_connection, engine):
    """Return a function that returns the payloads sent on the channel `OVER` since its last call."""
    listening = new_connection()
    listening.execute(f"LISTEN {completion_listener.OVER}")

    def sent_payloads():
        engine.execute(f"NOTIFY {completion_listener.OVER}, 'that is all'")
        payloads = []
        for notice in listening.notifies(timeout=LONG):
            if notice.payload == "that is all":
                break
            payloads.append(notice.payload)
        return payloads

    return sent_payloads


@pytest.fixture
def waiters():
    return Waiters()


@pytest.fixture
def completer(committing, waiters):
    link = Link("default", "completer")
    yield Completer(link, Reactions([], waiters))
    link.close()


def report(claimed, ending, **changes):
    now = time.monotonic()
    return Report(claimed, ending, now - 0.02, now - 0.01, **changes)


def finish(completer, *reports):
    for finished in reports:
        completer.hand_over(finished)
    while len(completer):
        completer.tick()


ENDS = {
    "succeeded": {"ending": Ending.SUCCEEDED},
    "kept nothing": {"ending": Ending.DISCARDED},
    "wrote its end itself": {"ending": Ending.WRITTEN},
    "failed for good": {"ending": Ending.FAILED},
    "crashed for good": {"ending": Ending.CRASHED},
    "cancelled": {"ending": Ending.CANCELLED},
}
GO_ON = {
    "to be retried": {"ending": Ending.FAILED, "delay_seconds": 60.0},
    "released": {"ending": Ending.RELEASED},
    "snoozed": {"ending": Ending.SNOOZED, "delay_seconds": 60.0},
}


@pytest.mark.promise("end-notifies-waiters")
@pytest.mark.parametrize("end", [*ENDS, *GO_ON])
def test_completer_awaited_job_notifies_only_if_finished(engine, completer, waiters, sent_payloads, end):
    job_id, _ = helpers.make_jobs(engine, 2)
    waiters.hear(str(job_id))
    awaited, other = helpers.claim_all(engine)
    if end == "wrote its end itself":
        completions.succeed(engine, helpers.succeeded(awaited.key, other.key))
    finish(completer, *(report(claimed, **(ENDS | GO_ON)[end]) for claimed in (awaited, other)))
    assert sent_payloads() == ([str(job_id)] if end in ENDS else [])
    assert waiters.exist() == (end in GO_ON), "a finished job is forgotten after its notification"


@pytest.mark.promise("nobody-waits-nothing-sent")
def test_completer_without_waiters_sends_no_notification(engine, completer, waiters, sent_payloads, monkeypatch):
    monkeypatch.delattr(completion_listener, "notify")
    helpers.make_jobs(engine, 3)
    finish(completer, *(report(claimed, Ending.SUCCEEDED) for claimed in helpers.claim_all(engine)))
    waiters.hear("12345")
    helpers.make_jobs(engine, 3)
    finish(completer, *(report(claimed, Ending.SUCCEEDED) for claimed in helpers.claim_all(engine)))
    assert sent_payloads() == []


def test_completer_batch_of_awaited_jobs_notifies_once(engine, completer, waiters, sent_payloads):
    ids = helpers.make_jobs(engine, 5)
    waiters.hear(",".join(map(str, ids[:3])))
    finish(completer, *(report(claimed, Ending.SUCCEEDED) for claimed in helpers.claim_all(engine)))
    assert {helpers.state_of(engine, job_id) for job_id in ids} == {"succeeded"}
    [payload] = sent_payloads()
    assert sorted(completion_listener.ids_in(payload)) == ids[:3]


def test_completer_locked_job_notifies_after_completion(engine, second, completer, waiters, sent_payloads):
    job_id = helpers.make_job(engine)
    waiters.hear(str(job_id))
    completer.hand_over(report(helpers.claim_one(engine), Ending.SUCCEEDED))
    with helpers.transaction(second, "SELECT 1 FROM pgqueue_job FOR UPDATE"):
        completer.tick()
        assert sent_payloads() == []
    finish(completer)
    assert sent_payloads() == [str(job_id)]


def test_completer_notify_fails_completion_is_written(engine, completer, waiters, sent_payloads, monkeypatch):
    job_id = helpers.make_job(engine)
    waiters.hear(str(job_id))

    def fail(connection, *_):
        connection.execute("SELECT 1 / 0")

    monkeypatch.setattr(completion_listener, "notify", fail)
    finish(completer, report(helpers.claim_one(engine), Ending.SUCCEEDED))
    assert helpers.state_of(engine, job_id) == "succeeded"
    assert completer.finished == 1


def test_maintenance_expired_and_rescued_jobs_notify_waiters(engine, sent_payloads):
    waiters = Waiters()
    maintenance = Maintenance(Link("default", "maintenance"), 1, Reactions([], waiters))
    expired_id = helpers.make_job(engine, run_after=None, expires_at=None, expires_seconds=0.0)
    rescued_id = helpers.make_job(engine, max_attempts=1, priority=1)
    waiters.hear(f"{expired_id},{rescued_id}")
    claimed = claims.claim_one(engine, rescued_id, worker_id=1, lease_seconds=60.0)
    helpers.end_lease(engine, claimed.execution_id)
    maintenance._expire()
    helpers.rescue_by(maintenance)
    maintenance.link.close()
    assert helpers.state_of(engine, expired_id) == "cancelled"
    assert helpers.state_of(engine, rescued_id) == "dead"
    assert sent_payloads() == [str(expired_id), str(rescued_id)]


# ------------------------------------------------------------------ remembering awaited jobs


def test_waiters_old_or_too_many_entries_are_forgotten(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "LIMIT", 3)
    waiters = Waiters()
    waiters.hear("1,2,3,4")
    waiters.hear("3")
    now[0] += module.FORGET_SECONDS
    waiters.hear("2")
    assert list(waiters._heard_at) == [4, 3, 2]
    now[0] += 1
    waiters.notify(None, [])
    assert list(waiters._heard_at) == [2]
    assert module.FORGET_SECONDS > 2 * completion_listener.REPEAT_SECONDS


@pytest.mark.parametrize("word", ["", "look", ",", "-1", "1.5", "٣", "9" * 7000, "DROP TABLE pgqueue_job"])
def test_waiters_invalid_payload_is_ignored(word):
    waiters = Waiters()
    waiters.hear(word)
    assert not waiters.exist()


def test_may_be_over_each_status_is_classified():
    assert may_be_over(TransitionResult(TransitionStatus.ALREADY_DONE)), "the reply was lost after the write"
    assert may_be_over(TransitionResult(TransitionStatus.LOST)), "another process has ended the execution"
    assert not may_be_over(TransitionResult(TransitionStatus.LOCKED))
    assert not may_be_over(TransitionResult(TransitionStatus.DONE, State.READY))


# ------------------------------------------------------------------ receiving notifications


def test_notification_waker_awaited_job_continues_the_sleep(engine, committing, monkeypatch):
    received = []
    waker = NotificationWaker(received.append)
    connections = SharedConnections("default", ("fetcher", "completer"), waker)
    with connections.share(Preference.ONLY_FIRST).use() as listening:
        for channel in (CHANNEL, completion_listener.AWAITED):
            listening.execute(f"LISTEN {channel}")
    sleeps = helpers.Background(lambda: waker.wait_for_notifications(LONG))
    for number in range(3):
        completion_listener.notify(engine, completion_listener.AWAITED, [number])
        helpers.wait_until(lambda number=number: len(received) > number)
        assert sleeps.thread.is_alive()
    engine.execute(f"NOTIFY {CHANNEL}")
    assert sleeps.result() == {""}
    assert received == ["0", "1", "2"]
    completion_listener.notify(engine, completion_listener.AWAITED, [3])
    helpers.wait_until(lambda: select.select([listening], [], [], 0.0)[0])
    waker.wake()
    began = time.monotonic()
    assert not waker.wait_for_notifications(LONG)
    assert time.monotonic() - began < LONG / 2, "wake() must end the sleep although the notification does not"
    assert received[3:] == ["3"]
    completion_listener.notify(engine, completion_listener.AWAITED, [4])
    assert not waker.wait_for_notifications(0.05)
    received.clear()
    clock = helpers.Clock(monkeypatch, notification_waker)

    def notify_again(payload):
        received.append(payload)
        completion_listener.notify(engine, completion_listener.AWAITED, [5])
        clock.pass_by(0.01)

    waker._on_awaited = notify_again
    completion_listener.notify(engine, completion_listener.AWAITED, [5])
    assert not waker.wait_for_notifications(0.05), "endless notifications must not extend the sleep"
    assert len(received) > 1
    connections.close()
    waker.close()
