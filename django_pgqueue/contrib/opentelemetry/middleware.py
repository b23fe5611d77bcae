"""Make a span for each enqueue and for each attempt, by OpenTelemetry's conventions for messaging.

The project lists one of the classes in `PGQUEUE["MIDDLEWARE"]`. They use OpenTelemetry's API only; the project chooses
the SDK and its exporters. Spans are made in the process that runs the job, in worker processes and in isolated ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import context as telemetry_context
from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode

from django_pgqueue import signals
from django_pgqueue.contrib.trace_headers import add_fitting, failures_of
from django_pgqueue.declared.steps import Suspended
from django_pgqueue.exceptions import Cancel, Retry, Snooze

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from django_pgqueue.middleware import Call
    from django_pgqueue.tasks.context import TaskContext


SCOPE: Final = "django_pgqueue"
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 1800)
"""Bounds of the buckets of durations: those of the conventions up to 10 s, and further ones for long jobs."""
FLUSH_MS: Final = 900
"""How long each of the two providers may take to send what it has. The receivers have two seconds together."""
UID: Final = "pgqueue-opentelemetry"
SYSTEM: Final = "pgqueue"
ORDER: Final = ("traceparent", "tracestate", "baggage")
"""The headers of a trace that are kept first if there is no room for all."""
REQUESTS: Final[dict[type[BaseException], str]] = {
    Snooze: "snoozed",
    Suspended: "suspended",
    Cancel: "cancelled",
    Retry: "retried",
}
"""Exceptions with which a task requests something, and the outcome of the attempt. They are no errors."""


class Measurements:
    """The instruments of one process."""

    def __init__(self) -> None:
        meter = metrics.get_meter(SCOPE)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that have ended."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of attempts.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        signals.job_enqueued.connect(self.enqueued, weak=False, dispatch_uid=UID)
        signals.worker_process_stopping.connect(flush, dispatch_uid=UID)

    def enqueued(self, sender: str, queue_name: str, **_: Any) -> None:
        """Count a job. A receiver of `job_enqueued`."""
        self._sent.add(1, attributes_of("send", queue_name, sender))

    def processed(self, seconds: float, attributes: dict[str, str], error_type: str) -> None:
        """Time a call of a task's function. `error_type` is empty if it has not failed."""
        self._duration.record(seconds, _with_error(attributes, error_type))

    def consumed(self, attributes: dict[str, str], error_types: Iterable[str]) -> None:
        """Count the attempts of a call, by their errors. An empty type is an attempt that has not failed."""
        for error_type, count in Counter(error_types).items():
            self._consumed.add(count, _with_error(attributes, error_type))


def _with_error(attributes: dict[str, str], error_type: str) -> dict[str, str]:
    return {**attributes, "error.type": error_type} if error_type else attributes


def flush(**_: Any) -> None:
    """Send the spans and the measurements of this process. A receiver of `worker_process_stopping`."""
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        force_flush = getattr(provider, "force_flush", None)  # the API's own providers have none
        if force_flush is not None:
            with suppress(Exception):  # an exporter that fails must not keep the other provider from its flush
                force_flush(FLUSH_MS)


class OpenTelemetryMiddleware:
    """Make a producer span for each enqueue, and a consumer span for each attempt that is linked to it.

    Example:
        >>> PGQUEUE = {"MIDDLEWARE": ["django_pgqueue.contrib.opentelemetry.OpenTelemetryMiddleware"]}
    """

    continues_trace: ClassVar[bool] = False
    """Whether an attempt is a child of its producer span instead of a trace of its own."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(SCOPE)
        self._measurements = Measurements()

    def enqueue(self, call: Call) -> None:
        """Make the producer span, and put its context into the headers of the jobs."""
        attributes = attributes_of("send", call.task.queue_name, call.task.name)
        headers: dict[str, str] = {}
        name = self.span_name("send", call.task.queue_name, call.task.name)
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
            propagate.inject(headers)
        add_fitting(call.headers, in_order(headers))

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        """Make the consumer span of an attempt, and measure the attempt."""
        attributes = attributes_of("process", context.queue_name, context.task_name)
        began_at, error_type, types = time.perf_counter(), "", [""]
        around, links = self._origin(context)
        token = telemetry_context.attach(around)
        try:
            with self._tracer.start_as_current_span(
                self.span_name("process", context.queue_name, context.task_name),
                kind=SpanKind.CONSUMER,
                attributes={**attributes, **_attributes_of_jobs(context)},
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    yield
                except BaseException as error:
                    error_type = _record(span, error)
                    raise
                else:
                    span.set_attribute("pgqueue.outcome", "succeeded")
                finally:
                    types = _record_chunk(span, context, error_type)
        finally:
            telemetry_context.detach(token)
            self._measurements.processed(time.perf_counter() - began_at, attributes, error_type)
            self._measurements.consumed(attributes, types)

    def span_name(self, operation: str, queue_name: str, task_name: str) -> str:
        """Return the name of a span: the operation and the queue, by the conventions.

        Override this to use the name of the task.

        Args:
            operation: "send" or "process".
            queue_name: Queue of the job.
            task_name: Name of the task.

        Returns:
            A name with few different values.
        """
        return f"{operation} {queue_name}"

    def _origin(self, context: TaskContext) -> tuple[Context, list[Link]]:
        """Return the context around the span of an attempt, with the producer's baggage, and the links of the span.

        The span of a chunk is linked to the producer spans of all its jobs. It has a parent only if that is the
        producer span of all of them, and the baggage that all of them share.
        """
        received = _received(context.headers)
        if self.continues_trace and (not context.chunk or _span_in(received).is_valid):
            return received, []
        jobs = context.chunk or (context,)
        producers = [_span_in(_received(job.headers)) for job in jobs]
        links = {(each.trace_id, each.span_id): Link(each) for each in producers if each.is_valid}
        return trace.set_span_in_context(trace.INVALID_SPAN, received), list(links.values())


class OneTraceMiddleware(OpenTelemetryMiddleware):
    """Make each attempt a child of its producer span, so that a request and its jobs are one trace."""

    continues_trace = True


def attributes_of(operation: str, queue_name: str, task_name: str) -> dict[str, str]:
    """Return the attributes of a span and of its measurements."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue_name,
        "pgqueue.task.name": task_name,
    }


def _attributes_of_jobs(context: TaskContext) -> dict[str, str | int]:
    """Return the attributes of the job of an attempt, or the number of the jobs of its chunk."""
    if len(context.chunk) > 1:
        return {"messaging.batch.message_count": len(context.chunk)}
    return {"messaging.message.id": str(context.job_id), "pgqueue.attempt": context.attempt}


def _received(headers: Mapping[str, Any]) -> Context:
    return propagate.extract({name: text for name, text in headers.items() if isinstance(text, str)})


def _span_in(received: Context) -> SpanContext:
    return trace.get_current_span(received).get_span_context()


def in_order(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a propagator, those of W3C's trace context first and its baggage last."""
    known = {name: headers[name] for name in ORDER if name in headers}
    others = {name: text for name, text in headers.items() if name not in known}
    baggage = {"baggage": known.pop("baggage")} if "baggage" in known else {}
    return known | others | baggage


def _record(span: Span, error: BaseException) -> str:
    """Record how an attempt ended, and return the type of the error, or an empty string for a request of the task."""
    outcome = next((outcome for kind, outcome in REQUESTS.items() if isinstance(error, kind)), "failed")
    span.set_attribute("pgqueue.outcome", outcome)
    if outcome != "failed":
        return ""
    error_type = _type_of(error)
    span.record_exception(error)
    _mark_failed(span, error_type)
    return error_type


def _record_chunk(span: Span, context: TaskContext, error_type: str) -> list[str]:
    """Record the jobs of a chunk that have failed alone, each with its id. Return the type of the error of each job.

    `error_type` is that of the call, with which the other jobs end.
    """
    types = dict.fromkeys([job.job_id for job in context.chunk or (context,)], error_type)
    types |= {job.job_id: "" for job in context.chunk if job.chunk_error() is not None}
    failures = failures_of(context)
    for job, error in failures:
        types[job.job_id] = _type_of(error)
        span.record_exception(error, {"messaging.message.id": str(job.job_id)})
    if failures and not error_type:
        _mark_failed(span, _type_of(failures[0][1]))
        span.set_attribute("pgqueue.outcome", "partly_failed" if len(failures) < len(context.chunk) else "failed")
    return list(types.values())


def _mark_failed(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR, error_type)


def _type_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
