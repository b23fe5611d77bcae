"""Test `Throttled`: how the attempt ends, and that the limit key is held for all workers."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from types import MappingProxyType

import pytest
from django.contrib.auth.models import Group
from django.db.models import F

from django_pgqueue.declared.limits import Limit
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import EPOCH, Claimed
from django_pgqueue.models import Execution, Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.completion import writer
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.isolation import wire
from django_pgqueue.worker.isolation.wire import KEPT
from tests.app import tasks

pytestmark = pytest.mark.django_db
CALLS = Limit("calls", rate="100/s", burst=100)


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"calls": CALLS}))
    monkeypatch.setattr(writer, "_throttled", set())


def throttle(kind, after=60, **options):
    called = {"sync": tasks.raise_directive, "async": tasks.throttle_async, "atomic": tasks.throttle_atomically}[kind]
    arguments = ("throttled", after) if kind == "sync" else (after,)
    return called.using(**options).enqueue(*arguments)


@pytest.mark.parametrize("kind", ["sync", "async", "atomic"])
def test_throttled_snoozes_its_job_and_holds_the_others(kind):
    throttled = throttle(kind, limit=CALLS)
    other, plain = tasks.noop.using(limit=CALLS).enqueue(), tasks.noop.enqueue()
    assert run_jobs() == 2
    throttled.refresh_from_db()
    execution = Execution.objects.get(job=throttled)
    assert (throttled.state, throttled.attempt, execution.outcome) == ("ready", 0, "snoozed")
    assert 59 < (throttled.run_after - execution.finished_at).total_seconds() < 70
    states = Job.objects.in_bulk([other.pk, plain.pk])
    assert (states[other.pk].state, states[plain.pk].state) == ("ready", "succeeded")
    assert not Group.objects.exists()


def test_held_jobs_run_after_the_hold():
    throttle("sync", limit=CALLS)
    other = tasks.noop.using(limit=CALLS).enqueue()
    assert run_jobs(until=58) == 1
    assert run_jobs(until=62) == 2
    assert Job.objects.get(pk=other.pk).state == "succeeded"


@pytest.mark.parametrize("kind", ["sync", "async", "atomic"])
def test_throttled_without_limit_snoozes_and_warns_once_a_task(caplog, kind):
    jobs = [throttle(kind) for _ in range(3)]
    with caplog.at_level(logging.WARNING, logger="django_pgqueue.worker"):
        assert run_jobs() == 3
    assert {job.state for job in Job.objects.filter(run_after__gt=F("enqueued_at"))} == {"ready"}
    [record] = caplog.records
    assert record.event == "throttled_without_limit"
    assert f"job {jobs[0].pk} raised Throttled, but has no limit, so it is only snoozed" in record.getMessage()


def test_throttled_with_limit_and_snooze_warn_of_nothing(caplog):
    throttle("sync", limit=CALLS)
    tasks.raise_directive.enqueue("snooze", 60)
    with caplog.at_level(logging.WARNING, logger="django_pgqueue.worker"):
        assert run_jobs() == 2
    assert caplog.records == []


def test_report_of_isolated_process_keeps_all_that_is_written():
    """An isolated process sends its report as JSON. A field that is not sent would be lost, such as a hold."""
    own = {"claimed", "ending", "task", "exception", "others"}
    assert {each.name for each in fields(Report)} - own == set(KEPT)
    job = ("default", 0, EPOCH, "{}", 1, 10, 0, True, None, 0.0)
    claimed = Claimed(1, 2, tasks.noop.name, *job, limit_key="calls")
    report = Report(claimed, Ending.SNOOZED, 1.0, 2.0, delay_seconds=60.0, holds_key=True)
    sent = {name: getattr(report, name) for name in KEPT} | {"ending": report.ending.value}
    received = wire.as_report(wire.as_claimed(json.loads(json.dumps(wire.as_json(claimed)))), sent)
    assert (received.holds_key, received.claimed.limit_key) == (True, "calls")
