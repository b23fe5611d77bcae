"""Test what OpenTelemetry and Sentry see of a chunk: one span for the call, and each failed job with its own id."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("opentelemetry.instrumentation.psycopg")
pytest.importorskip("sentry_sdk")

import sentry_sdk
from django.contrib.auth.models import Group
from opentelemetry.trace import SpanKind, StatusCode

from django_pgqueue import middleware
from django_pgqueue.contrib.sentry import monitors
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.contrib.test_opentelemetry import PATH, points, provider, reader
from tests.contrib.test_opentelemetry import spans as spans_of_contrib
from tests.contrib.test_sentry import bare, exception_of, init

from . import tasks

__all__ = ["bare", "init", "provider", "reader", "spans_of_contrib"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def spans(spans_of_contrib, settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "TASK_MODULES": [tasks.__name__]}
    return spans_of_contrib


def enqueue(*items, task=tasks.fail_some):
    return [task.enqueue(item) for item in items]


# ------------------------------------------------------------------ OpenTelemetry


def test_otel_chunk_is_one_span_linked_to_all_producers(spans):
    jobs = enqueue("a")
    tasks.fail_some.enqueue_many([("b",), ("c",)])
    Job.objects.filter(pk=tasks.fail_some.enqueue("d").pk).update(headers=None)
    run_jobs()
    *sent, ran = spans()
    assert (ran.name, ran.kind, ran.parent) == ("process default", SpanKind.CONSUMER, None)
    assert [link.context.span_id for link in ran.links] == [span.context.span_id for span in sent[:2]]
    assert ran.attributes["messaging.batch.message_count"] == 4
    assert ran.attributes["pgqueue.outcome"] == "succeeded"
    assert {"messaging.message.id", "pgqueue.attempt"}.isdisjoint(ran.attributes)
    assert jobs[0].headers


def test_otel_chunk_of_one_job_is_the_span_of_that_job(spans):
    [job] = enqueue("a")
    run_jobs()
    [_, ran] = spans()
    assert (ran.attributes["messaging.message.id"], ran.attributes["pgqueue.attempt"]) == (str(job.pk), 1)
    assert "messaging.batch.message_count" not in ran.attributes


def test_otel_one_trace_chunk_has_a_parent_only_if_all_share_it(spans, settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "MIDDLEWARE": [PATH + "OneTraceMiddleware"]}
    tasks.fail_some.enqueue_many([("a",), ("b",)])
    run_jobs()
    [sent, ran] = spans()
    assert ran.parent.span_id == sent.context.span_id
    enqueue("a", "b")
    run_jobs()
    [*sent, ran] = spans()
    assert (ran.parent, len(ran.links)) == (None, 2)


def test_otel_failed_jobs_of_a_chunk_are_events_with_their_ids(spans, reader):
    jobs = enqueue("ok", "same", "other", "cancel", "same")
    run_jobs()
    ran = spans()[-1]
    events = [(each.attributes["messaging.message.id"], each.attributes["exception.type"]) for each in ran.events]
    failed = [(jobs[1], "ValueError"), (jobs[2], "LookupError"), (jobs[4], "ValueError")]
    assert events == [(str(job.pk), name) for job, name in failed]
    assert (ran.status.status_code, ran.attributes["pgqueue.outcome"]) == (StatusCode.ERROR, "partly_failed")
    found = points(reader)
    consumed = {each.attributes.get("error.type"): each.value for each in found["messaging.client.consumed.messages"]}
    assert consumed == {None: 2, "ValueError": 2, "LookupError": 1}
    assert [each.count for each in found["messaging.process.duration"]] == [1]


def test_otel_exception_of_the_call_is_that_of_the_span(spans, reader):
    jobs = enqueue("raise", "other", "ok", "cancel")
    run_jobs()
    ran = spans()[-1]
    assert (ran.attributes["error.type"], ran.attributes["pgqueue.outcome"]) == ("OSError", "failed")
    ids = [event.attributes.get("messaging.message.id") for event in ran.events]
    assert ids == [None, str(jobs[1].pk)]
    found = points(reader)["messaging.client.consumed.messages"]
    assert {each.attributes.get("error.type"): each.value for each in found} == {"OSError": 2, "LookupError": 1, None: 1}


def test_chunk_without_jobs_that_fit_has_no_span(spans):
    jobs = enqueue("a", "b")
    Job.objects.update(arguments={"args": [], "kwargs": {}})
    run_jobs()
    assert [span.kind for span in spans()] == [SpanKind.PRODUCER] * len(jobs)


# ------------------------------------------------------------------ Sentry


def test_sentry_each_failed_job_of_a_chunk_is_one_event(init):
    items = init()
    jobs = enqueue("ok", "same", "other", "cancel", "same")
    run_jobs()
    sent = {event["tags"]["job_id"]: exception_of(event)["type"] for event in items.events}
    assert sent == {str(jobs[1].pk): "ValueError", str(jobs[2].pk): "LookupError", str(jobs[4].pk): "ValueError"}
    assert len(items.events) == 3
    for event in items.events:
        assert event["contexts"]["job"]["job_id"] == int(event["tags"]["job_id"])
        assert event["contexts"]["chunk"]["job_ids"] == [job.pk for job in jobs]


def test_sentry_job_of_a_chunk_without_its_row_is_one_event(init):
    items = init()
    groups = [Group.objects.create(name=f"group {number}") for number in range(3)]
    jobs = enqueue(*groups, task=tasks.rows_on_loop)
    groups[1].delete()
    run_jobs()
    assert [event["tags"]["job_id"] for event in items.events] == [str(jobs[1].pk)]
    assert items.events[0]["contexts"]["chunk"]["jobs"] == 3


@pytest.mark.parametrize(("report", "dead"), [("dead", [True]), ("failures", [False, True])])
def test_sentry_exception_of_the_call_is_one_event(init, report, dead):
    items = init({"report": report})
    retried = [tasks.fail_some.using(max_attempts=2).enqueue("raise") for _ in range(2)]
    died = enqueue("ok", "ok")
    run_jobs()
    ids = [event["tags"]["job_id"] for event in items.events if exception_of(event)["type"] == "OSError"]
    first = {False: retried[0], True: died[0]}
    assert sorted(ids) == sorted(str(first[each].pk) for each in dead)
    assert items.events[0]["contexts"]["chunk"]["job_ids"] == [job.pk for job in (*retried, *died)]


def test_sentry_event_inside_a_chunk_names_no_single_job(init, monkeypatch):
    items = init()
    monkeypatch.setattr(tasks, "seen", SimpleNamespace(append=lambda _: sentry_sdk.capture_message("inside")))
    enqueue(1, 2, task=tasks.double)
    run_jobs()
    [event] = items.events
    assert event["tags"].items() >= {"task": tasks.double.name, "jobs": "2"}.items()
    assert "job_id" not in event["tags"]


def test_sentry_chunk_is_one_transaction(init):
    items = init(traces_sample_rate=1.0)
    enqueue("ok", "other")
    run_jobs()
    [item] = items.of("transaction")
    trace = item["contexts"]["trace"]
    assert (trace["op"], trace["status"]) == ("queue.process", "internal_error")
    assert trace["data"]["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in trace["data"]


def test_sentry_each_job_of_a_chunk_sends_its_check_ins(init):
    items = init({"monitor_schedules": True})
    for item in ("ok", "cancel", "other"):
        monitor = json.dumps({"slug": item, "id": item, "config": {}})
        tasks.fail_some.using(headers={monitors.HEADER: monitor}).enqueue(item)
    run_jobs()
    sent = [(each["monitor_slug"], each["status"]) for each in items.of("check_in")]
    assert sent[:3] == [(item, "in_progress") for item in ("ok", "cancel", "other")]
    assert sorted(sent[3:]) == [("cancel", "error"), ("ok", "ok"), ("other", "error")]


# ------------------------------------------------------------------ progress


def test_progress_of_a_chunk_is_not_stored():
    class Reporter:
        def run(self, context):
            context.progress(1, 2)
            return sentry_sdk.isolation_scope()

    middleware.add("reporter", Reporter())
    try:
        enqueue("a", "b")
        run_jobs()
    finally:
        middleware.remove("reporter")
    assert set(Job.objects.values_list("progress_done", flat=True)) == {None}
