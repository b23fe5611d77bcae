"""A worker keeps in mind for which jobs somebody waits, and says when it has written the end of one."""

from __future__ import annotations

import select
import time

import pytest

from django_pgqueue import lifecycle
from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import TransitionResult, TransitionStatus
from django_pgqueue.reactions import Reactions, may_be_over
from django_pgqueue.states import State
from django_pgqueue.waiting import listener
from django_pgqueue.worker.claiming.notification_waker import NotificationWaker
from django_pgqueue.worker.completion import waiters as module
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.waiters import Waiters
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers

LONG = 20.0


@pytest.fixture
def said(new_connection, engine):
    """Returns the words that were said on `OVER` since it was last called."""
    listening = new_connection()
    listening.execute(f"LISTEN {listener.OVER}")

    def said():
        engine.execute(f"NOTIFY {listener.OVER}, 'that is all'")
        words = []
        for notice in listening.notifies(timeout=LONG):
            if notice.payload == "that is all":
                break
            words.append(notice.payload)
        return words

    return said


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
    for one in reports:
        completer.hand_over(one)
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
def test_ends_are_told_of_and_what_goes_on_is_not(engine, completer, waiters, said, end):
    job_id, _ = helpers.make_jobs(engine, 2)
    waiters.hear(str(job_id))
    one, other = helpers.claim_all(engine)
    if end == "wrote its end itself":
        lifecycle.succeed(engine, helpers.succeeded(one.key, other.key))
    finish(completer, *(report(claimed, **(ENDS | GO_ON)[end]) for claimed in (one, other)))
    assert said() == ([str(job_id)] if end in ENDS else [])
    assert waiters.exist() == (end in GO_ON), "told of once"


@pytest.mark.promise("nobody-waits-nothing-sent")
def test_where_nobody_waits_nothing_is_sent(engine, completer, waiters, said, monkeypatch):
    monkeypatch.delattr(listener, "notify")
    helpers.make_jobs(engine, 3)
    finish(completer, *(report(claimed, Ending.SUCCEEDED) for claimed in helpers.claim_all(engine)))
    waiters.hear("12345")
    helpers.make_jobs(engine, 3)
    finish(completer, *(report(claimed, Ending.SUCCEEDED) for claimed in helpers.claim_all(engine)))
    assert said() == []


def test_the_ends_of_a_batch_go_in_one_word_when_they_can_be_seen(engine, completer, waiters, said):
    ids = helpers.make_jobs(engine, 5)
    waiters.hear(",".join(map(str, ids[:3])))
    finish(completer, *(report(claimed, Ending.SUCCEEDED) for claimed in helpers.claim_all(engine)))
    assert {helpers.state_of(engine, job_id) for job_id in ids} == {"succeeded"}
    [word] = said()
    assert sorted(listener.ids_in(word)) == ids[:3]


def test_an_end_that_is_locked_is_told_of_when_it_is_written(engine, second, completer, waiters, said):
    job_id = helpers.make_job(engine)
    waiters.hear(str(job_id))
    completer.hand_over(report(helpers.claim_one(engine), Ending.SUCCEEDED))
    with helpers.transaction(second, "SELECT 1 FROM pgqueue_job FOR UPDATE"):
        completer.tick()
        assert said() == []
    finish(completer)
    assert said() == [str(job_id)]


def test_a_word_that_cannot_be_sent_costs_no_end(engine, completer, waiters, said, monkeypatch):
    job_id = helpers.make_job(engine)
    waiters.hear(str(job_id))

    def fail(connection, *_):
        connection.execute("SELECT 1 / 0")

    monkeypatch.setattr(listener, "notify", fail)
    finish(completer, report(helpers.claim_one(engine), Ending.SUCCEEDED))
    assert helpers.state_of(engine, job_id) == "succeeded"
    assert completer.finished == 1


def test_maintenance_tells_of_what_it_ends(engine, said):
    waiters = Waiters()
    maintenance = Maintenance(Link("default", "maintenance"), 1, Reactions([], waiters))
    expired_id = helpers.make_job(engine, run_after=None, expires_at=None, expires_seconds=0.0)
    rescued_id = helpers.make_job(engine, max_attempts=1, priority=1)
    waiters.hear(f"{expired_id},{rescued_id}")
    claimed = lifecycle.claim_one(engine, rescued_id, worker_id=1, lease_seconds=60.0)
    helpers.end_lease(engine, claimed.execution_id)
    with maintenance.link.use():
        maintenance.link.connected_at -= 3600.0
    maintenance._expire()
    maintenance._rescue()
    maintenance.link.close()
    assert helpers.state_of(engine, expired_id) == "cancelled"
    assert helpers.state_of(engine, rescued_id) == "dead"
    assert said() == [str(expired_id), str(rescued_id)]


# ------------------------------------------------------------------ keeping in mind


def test_what_is_not_repeated_is_forgotten_and_so_are_the_oldest_of_too_many(monkeypatch):
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
    assert module.FORGET_SECONDS > 2 * listener.REPEAT_SECONDS


@pytest.mark.parametrize("word", ["", "look", ",", "-1", "1.5", "٣", "9" * 7000, "DROP TABLE pgqueue_job"])
def test_a_word_of_a_stranger_s_does_no_harm(word):
    waiters = Waiters()
    waiters.hear(word)
    assert not waiters.exist()


def test_what_may_be_an_end():
    assert may_be_over(TransitionResult(TransitionStatus.ALREADY_DONE)), "the reply was lost: it has been written"
    assert may_be_over(TransitionResult(TransitionStatus.LOST)), "somebody else has ended it"
    assert not may_be_over(TransitionResult(TransitionStatus.LOCKED))
    assert not may_be_over(TransitionResult(TransitionStatus.DONE, State.READY))


# ------------------------------------------------------------------ hearing


def test_an_idle_worker_hears_and_sleeps_on(engine, new_connection):
    heard, listening = [], new_connection()
    waker = NotificationWaker(heard.append)
    for channel in (CHANNEL, listener.AWAITED):
        listening.execute(f"LISTEN {channel}")
    waker.listen(listening, lambda: None)
    waker.wait_for_notification(0.0)
    waker.payloads.clear()
    sleeps = helpers.Background(lambda: waker.wait_for_notification(LONG))
    for number in range(3):
        listener.notify(engine, listener.AWAITED, [number])
        helpers.wait_until(lambda number=number: len(heard) > number)
        assert sleeps.thread.is_alive()
    engine.execute(f"NOTIFY {CHANNEL}")
    assert sleeps.result() is True
    assert (heard, waker.payloads) == (["0", "1", "2"], {""})
    listener.notify(engine, listener.AWAITED, [3])
    helpers.wait_until(lambda: select.select([listening], [], [], 0.0)[0])
    waker.wake()
    began = time.monotonic()
    assert waker.wait_for_notification(LONG) is False
    assert time.monotonic() - began < LONG / 2, "a ring has ended no sleep"
    assert heard[3:] == ["3"]
    listener.notify(engine, listener.AWAITED, [4])
    assert waker.wait_for_notification(0.05) is False
    heard.clear()

    def answer(word):
        heard.append(word)
        listener.notify(engine, listener.AWAITED, [5])
        time.sleep(0.01)

    waker._on_awaited = answer
    listener.notify(engine, listener.AWAITED, [5])
    assert waker.wait_for_notification(0.05) is False, "in a storm the time ends a sleep too"
    assert len(heard) > 1
    waker.stop_listening()
    waker.close()
