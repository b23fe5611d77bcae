"""The integration with OpenTelemetry: spans by the messaging conventions, linked, and own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, metrics, trace
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_pgqueue import middleware, signals
from django_pgqueue.contrib.opentelemetry import OpenTelemetryMiddleware
from django_pgqueue.contrib.opentelemetry import middleware as own
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks as app
from tests.contrib import tasks

pytestmark = pytest.mark.django_db
PATH = "django_pgqueue.contrib.opentelemetry."
LIST = [(PATH + "OpenTelemetryMiddleware")]
Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    own = TracerProvider()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", own)
    return own


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    own = InMemoryMetricReader()
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", MeterProvider([own]))
    return own


@pytest.fixture
def spans(provider: TracerProvider, reader: InMemoryMetricReader, settings: Any) -> Iterator[Spans]:
    """Return a function that returns the spans that have ended since its last call."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings.PGQUEUE = {"TASK_MODULES": ["tests.contrib.tasks"], "MIDDLEWARE": LIST}

    def ended() -> list[ReadableSpan]:
        found = list(exporter.get_finished_spans())
        exporter.clear()
        return found

    yield ended
    for signal in (signals.job_enqueued, signals.worker_process_stopping):
        signal.disconnect(dispatch_uid=own.UID)
    middleware.chain.cache_clear()


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data: Any = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


# ------------------------------------------------------------------ spans


@pytest.mark.parametrize("task", [app.add, app.async_add], ids=["sync", "async"])
def test_otel_job_makes_linked_spans_by_the_conventions(spans, task):
    job = task.using(queue_name="mail").enqueue(1, 2)
    run_jobs()
    sent, ran = spans()
    common = {"messaging.system": "pgqueue", "messaging.destination.name": "mail", "pgqueue.task.name": task.name}
    assert (sent.name, sent.kind, sent.parent) == ("send mail", SpanKind.PRODUCER, None)
    operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert dict(sent.attributes) == common | operation
    assert (ran.name, ran.kind, ran.parent) == ("process mail", SpanKind.CONSUMER, None)
    operation = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
    attempt = {"messaging.message.id": str(job.pk), "pgqueue.attempt": 1, "pgqueue.outcome": "succeeded"}
    assert dict(ran.attributes) == common | operation | attempt
    assert [link.context.span_id for link in ran.links] == [sent.context.span_id]
    assert ran.context.trace_id != sent.context.trace_id
    assert ran.status.status_code is StatusCode.UNSET


def test_otel_header_is_in_the_form_of_w3c(spans, provider):
    with provider.get_tracer("shop").start_as_current_span("checkout") as request:
        job = app.noop.enqueue()
    sent, _ = spans()
    ids = f"{sent.context.trace_id:032x}-{sent.context.span_id:016x}"
    assert list(job.headers) == ["traceparent"]
    assert job.headers["traceparent"].startswith(f"00-{ids}-0")
    assert sent.parent.span_id == request.get_span_context().span_id


def test_otel_batch_is_one_span_for_all_its_jobs(spans):
    app.add.enqueue_many(((n,), {}) for n in range(3))
    run_jobs()
    sent, *ran = spans()
    assert [[link.context.span_id for link in span.links] for span in ran] == [[sent.context.span_id]] * 3


def test_otel_one_trace_makes_attempts_children(spans, settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "MIDDLEWARE": [PATH + "OneTraceMiddleware"]}
    app.noop.enqueue()
    run_jobs()
    sent, ran = spans()
    assert (ran.parent.span_id, ran.context.trace_id) == (sent.context.span_id, sent.context.trace_id)
    assert not ran.links


def test_otel_each_attempt_is_a_span_with_its_error(spans):
    tasks.fail_twice.enqueue()
    run_jobs()
    _, *ran = spans()
    assert [span.attributes["pgqueue.attempt"] for span in ran] == [1, 2]
    for span in ran:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
        assert (span.attributes["error.type"], span.attributes["pgqueue.outcome"]) == ("ValueError", "failed")
        [event] = span.events
        assert event.attributes["exception.message"] == "as asked"
        assert "fail_twice" in event.attributes["exception.stacktrace"]


@pytest.mark.parametrize(
    ("kind", "outcomes"), [("snooze", ["snoozed"]), ("cancel", ["cancelled"]), ("retry", ["retried", "retried"])]
)
def test_otel_requests_of_a_task_are_no_errors(spans, kind, outcomes):
    tasks.direct.enqueue(kind)
    run_jobs()
    _, *ran = spans()
    assert [span.attributes["pgqueue.outcome"] for span in ran] == outcomes
    assert {span.status.status_code for span in ran} == {StatusCode.UNSET}


def test_otel_spans_of_a_task_are_children_of_its_attempt(spans, provider, monkeypatch):
    def traced() -> None:
        with provider.get_tracer("shop").start_as_current_span("inner"):
            pass

    monkeypatch.setattr(tasks, "work", traced)
    tasks.works.enqueue()
    run_jobs()
    _, inner, ran = spans()
    assert inner.parent.span_id == ran.context.span_id
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_otel_baggage_reaches_the_task(spans, monkeypatch):
    seen = []
    monkeypatch.setattr(tasks, "work", lambda: seen.append(baggage.get_baggage("tenant")))
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        tasks.works.enqueue()
    finally:
        context.detach(token)
    run_jobs()
    assert seen == ["acme"]


def test_otel_long_headers_lose_the_trace_not_the_job(spans):
    token = context.attach(baggage.set_baggage("tenant", "a" * 100))
    try:
        jobs = [app.noop.using(headers={"own": "x" * size}).enqueue() for size in (3800, 4000, 4070)]
    finally:
        context.detach(token)
    assert [set(job.headers) for job in jobs] == [
        {"own", "traceparent", "baggage"},
        {"own", "traceparent"},
        {"own"},
    ]


def test_otel_unreadable_headers_are_ignored(spans):
    headers = {"traceparent": 7, "tracestate": "x"}
    middleware.chain.cache_clear()
    job = app.noop.enqueue()
    Job.objects.filter(pk=job.pk).update(headers=headers)
    run_jobs()
    _, ran = spans()
    assert not ran.links


def test_otel_without_provider_adds_no_header(settings):
    settings.PGQUEUE = {"MIDDLEWARE": LIST}
    assert app.noop.enqueue().headers is None
    run_jobs(raising=True)
    signals.job_enqueued.disconnect(dispatch_uid=own.UID)
    signals.worker_process_stopping.disconnect(dispatch_uid=own.UID)


class ByTask(OpenTelemetryMiddleware):
    def span_name(self, operation: str, queue_name: str, task_name: str) -> str:
        return f"{operation} {task_name}"


def test_otel_span_name_can_be_overridden(spans, settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "MIDDLEWARE": [f"{__name__}.ByTask"]}
    app.noop.enqueue()
    run_jobs()
    assert [span.name for span in spans()] == [f"send {app.noop.name}", f"process {app.noop.name}"]


# ------------------------------------------------------------------ measurements


def test_otel_jobs_are_counted_and_timed(spans, reader):
    app.add.enqueue_many(((n,), {}) for n in range(3))
    tasks.fail_at_once.enqueue()
    run_jobs()
    found = points(reader)
    task = "pgqueue.task.name"
    sent = {point.attributes[task]: point.value for point in found["messaging.client.sent.messages"]}
    assert sent == {app.add.name: 3, tasks.fail_at_once.name: 1}
    consumed = {
        (point.attributes[task], point.attributes.get("error.type")): point.value
        for point in found["messaging.client.consumed.messages"]
    }
    assert consumed == {(app.add.name, None): 3, (tasks.fail_at_once.name, "ValueError"): 1}
    [durations] = [point for point in found["messaging.process.duration"] if point.attributes[task] == app.add.name]
    assert (durations.count, durations.explicit_bounds) == (3, own.SECONDS)
    assert 0 < durations.sum < 5


# ------------------------------------------------------------------ processes


def test_otel_end_of_a_process_flushes_its_spans(spans, provider):
    exporter = InMemorySpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    app.noop.enqueue()
    run_jobs()
    assert exporter.get_finished_spans() == ()
    signals.worker_process_stopping.send(sender=None, kind="worker", database="default")
    assert [span.name for span in exporter.get_finished_spans()] == ["send default", "process default"]
    provider.shutdown()


def test_otel_flush_that_fails_lets_the_other_provider_flush(monkeypatch):
    flushed = []

    class Broken:
        def force_flush(self, milliseconds: int) -> None:
            raise RuntimeError("from an exporter")

    class Sound:
        def force_flush(self, milliseconds: int) -> None:
            flushed.append(milliseconds)

    monkeypatch.setattr(trace, "get_tracer_provider", Broken)
    monkeypatch.setattr(metrics, "get_meter_provider", Sound)
    own.flush()
    assert flushed == [900]


def test_otel_engine_connection_makes_no_spans(spans, provider, monkeypatch):
    """An idle worker polls, and sends heartbeats. Those statements are not traced, and the application's are.

    `uninstrument()` leaves the bound method of one class, so that connect() of a subclass returns that class. The
    class methods are therefore put back after the test.
    """
    import psycopg

    for connection_class in (psycopg.Connection, psycopg.AsyncConnection):
        monkeypatch.setattr(connection_class, "connect", vars(connection_class)["connect"])
    PsycopgInstrumentor().instrument(tracer_provider=provider, skip_dep_check=True)
    try:
        with helpers.connect() as engine:
            engine.execute("SELECT 1")
            engine.cursor().execute("SELECT 2")
            parameters = {"dbname": engine.info.dbname, "host": engine.info.host, "port": engine.info.port}
            user = {"user": engine.info.user, "password": engine.info.password}
        assert spans() == []
        with psycopg.connect(**parameters, **user) as own:
            own.cursor().execute("SELECT 3")
        assert [span.name for span in spans()] == ["SELECT"]
    finally:
        PsycopgInstrumentor().uninstrument()
