"""What people and deploys did in a period: acts from the audit, and the first worker of each release."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.lifecycle import audit
from django_pgqueue.models import AuditEntry, Worker
from django_pgqueue.stats import past_acts as module
from django_pgqueue.stats.past_acts import PastAct, past_acts

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def kept_for_ever(monkeypatch):
    """The records of the workers of these tests are years old at some time."""
    monkeypatch.setattr(module, "RECORDED", timedelta(days=36_500))


HOUR = timedelta(hours=1)


def add_act(hours: float, action: str = "pause", chosen: dict[str, Any] | None = None, **columns: Any) -> int:
    entry = audit.begin_audit(connection, action, chosen or {}, done_by="ada", reason="because")
    AuditEntry.objects.filter(pk=entry).update(began_at=START + hours * HOUR, **columns)
    return entry


def add_worker(release: str, hours: float, version: str = "1", **columns: Any) -> None:
    at = START + hours * HOUR
    about = {"hostname": "h", "pid": 1, "supervisor_pid": 2, "concurrency": 1}
    Worker.objects.create(**{**about, "release": release, "version": version, "started_at": at, **columns})


def read(*actions: str, **options: Any) -> list[PastAct]:
    return past_acts(actions or ("pause",), START, START + 2 * HOUR, **options).acts


def starts(since: float = 0.0, until: float = 9.0) -> list[tuple[str, str]]:
    found = past_acts((), START + since * HOUR, START + until * HOUR)
    return [(start.release, start.version) for start in found.starts]


def test_acts_of_the_period_and_actions_oldest_first():
    late, early = add_act(2), add_act(0, "resume", {"queue_name": "mail"})
    for others in ((-0.1, "pause"), (2.1, "pause"), (1, "delete")):
        add_act(*others)
    found = read("pause", "resume")
    assert [act.act_id for act in found] == [early, late]
    first = found[0]
    assert (first.action, first.done_by, first.reason, first.began_at) == ("resume", "ada", "because", START)
    assert (first.text("queue_name"), first.text("task_name")) == ("mail", "")


def test_acts_on_one_job_are_left_out_for_actions_of_many():
    one, many, planned = (add_act(1, "retry", job_count=count) for count in (1, 2, 1))
    AuditEntry.objects.filter(pk=planned).update(total=40)
    assert [act.act_id for act in read("retry")] == [one, many, planned]
    assert [(act.act_id, act.job_count) for act in read("retry", of_many=["retry"])] == [(many, 2), (planned, 40)]
    AuditEntry.objects.filter(pk=planned).update(ended_at=START + HOUR)
    assert [act.act_id for act in read("retry", of_many=["retry"])] == [many], "it has changed one of the 40"


def test_acts_on_one_job_are_apart_and_the_latest(monkeypatch):
    """They are outside the period, and an act on another job or with another name is not among them."""
    monkeypatch.setattr(module, "OF_JOB_READ", 2)
    entries = [add_act(-hours, "cancel", {"task_name": "app.one"}) for hours in (9, 8, 7)]
    others = [add_act(-5, "retry"), add_act(-4, "cancel")]
    for entry in (*entries, others[0]):
        audit.record_audit(connection, entry, [7, 8])
    audit.record_audit(connection, others[1], [8])
    found = past_acts(("pause",), START, START + HOUR, job_id=7, on_job=("cancel",))
    assert [(act.act_id, act.done_by) for act in found.on_job] == [(each, "ada") for each in entries[1:]]
    assert (found.acts, past_acts(("pause",), START, START + HOUR, on_job=("cancel",)).on_job) == ([], [])


def test_acts_only_the_latest_are_read(monkeypatch):
    monkeypatch.setattr(module, "READ", 3)
    added = [add_act(number / 10) for number in range(5)] + [add_act(0.05, "resume")]
    assert [act.act_id for act in read("pause", "resume")] == [added[5], *added[2:5]]


def test_act_with_a_filter_that_nobody_can_read_names_nothing():
    add_act(1, chosen={"job_ids": list(range(10_000))})
    add_act(1, chosen={"queue_name": {"not": "a text"}, "tasks": 5})
    cut, odd = read()
    assert cut.chosen == module.UNKNOWN and cut.can_concern(["queue_name"], ["mail"])
    assert odd.text("queue_name") == ""


@pytest.mark.parametrize(
    ("chosen", "concerns"),
    [
        ({}, True),
        ({"queue_name": "mail"}, True),
        ({"queue_name": "pdf"}, False),
        ({"queues": ["pdf", "mail"]}, True),
        ({"queues": ["pdf"]}, False),
        ({"queue": "pdf", "task_name": "mail"}, False),
        ({"task_name": "app.one"}, True),
    ],
)
def test_act_can_concern_what_it_names_or_everything(chosen, concerns):
    act = PastAct(1, "retry", START, "", "", 2, chosen)
    assert act.can_concern(module.QUEUES, {"mail", "default"}) is concerns


def test_first_worker_of_each_release_in_order():
    for release, hours in (("b", 1), ("a", 5), ("b", 4), ("c", 3), ("a", 6)):
        add_worker(release, hours)
    assert starts() == [("c", "1"), ("a", "1")], "workers of the oldest release may have been removed"
    assert starts(since=4) == [("a", "1")]
    assert starts(until=4) == [("c", "1")]
    assert starts(since=0, until=0.5) == []


def test_first_worker_of_a_version_counts_without_release():
    add_worker("", 1, "1.0")
    add_worker("", 2, "2.0")
    add_worker("a", 3, "2.0")
    add_worker("a", 4, "2.1")
    add_worker("", 5, "2.1")
    add_worker("", 6, "3.0")
    assert starts() == [("", "2.0"), ("a", "2.0"), ("", "3.0")]


def test_worker_without_supervisor_is_no_start_of_a_release():
    add_worker("a", 1)
    add_worker("of a shell", 2, supervisor_pid=None)
    assert starts() == []


def test_start_is_unknown_after_the_records_of_workers_are_removed(monkeypatch):
    """The first workers of a release may have been removed, while later ones are there."""
    for release, days in (("a", 9), ("b", 8), ("c", 2)):
        add_worker(release, 0, started_at=datetime.now(UTC) - timedelta(days=days))
    monkeypatch.setattr(module, "RECORDED", timedelta(days=6))
    now = datetime.now(UTC)
    assert [start.release for start in past_acts((), now - timedelta(days=30), now).starts] == ["c"]


def test_act_with_values_of_any_kind_names_only_texts():
    add_act(1, chosen={"queues": [["a"], 5, "mail"], "worker_id": [1]})
    [act] = read()
    assert act.can_concern(module.QUEUES, {"mail"}) and not act.can_concern(module.QUEUES, {"pdf"})


def test_number_of_releases_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "RELEASES_READ", 3)
    for number in range(6):
        add_worker(f"r{number}", number)
    assert starts() == [("r1", "1"), ("r2", "1")]
