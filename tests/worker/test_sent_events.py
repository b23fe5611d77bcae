"""The events of which a worker process hears, until its maintenance wakes the jobs that wait for them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from django_pgqueue.worker.maintenance import end_sweeps
from django_pgqueue.worker.maintenance.end_sweeps import SentEvents
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from tests.steps import test_statements as steps


def link_to(engine):
    return SimpleNamespace(alias="default", use=lambda: nullcontext(engine))


def test_sent_events_wake_jobs_in_the_next_round_only(engine):
    woken, transitions = [], []
    sent = SentEvents(lambda: woken.append(True))
    reactions = SimpleNamespace(after=lambda connection, made: transitions.extend(made), react=None)
    maintenance = Maintenance(link_to(engine), reactions=reactions, sent=sent)
    [duty] = [each for each in maintenance.duties if each.name == "sent events"]
    maintenance.duties = [duty]
    duty.due_at = float("inf")
    job_id = steps.suspended(engine)
    assert not duty.is_due
    sent.add([steps.send(engine)])
    assert (woken, duty.is_due) == ([True], True)
    maintenance.tick()
    assert [(each.job_id, each.is_due) for each in transitions] == [(job_id, True)]
    assert steps.is_due(engine, job_id)
    assert not sent.is_new()


def test_sent_events_without_any_send_no_statement():
    assert SentEvents().run(None, None) is False


def test_sent_events_forged_ones_need_bounded_memory(monkeypatch):
    monkeypatch.setattr(end_sweeps.steps, "wake_for_events", lambda connection, ids: found.extend(ids) or [])
    sent, found = SentEvents(), []
    for event_id in range(3 * end_sweeps.MOST_EVENTS):
        sent.add([event_id])
    sent.run(link_to(None), None)
    assert len(found) == end_sweeps.MOST_EVENTS
