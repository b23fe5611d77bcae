"""Traces: a transaction for each attempt, in the trace of the code that enqueued the job.

Without tracing in Sentry's options, jobs get no headers and attempts no transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sentry_sdk
from sentry_sdk.tracing import Span
from sentry_sdk.tracing_utils import has_tracing_enabled

from django_pgqueue.contrib.trace_headers import add_fitting, failures_of
from django_pgqueue.declared.steps import Suspended
from django_pgqueue.exceptions import Cancel, Retry, Snooze

if TYPE_CHECKING:
    from django_pgqueue.middleware import Call
    from django_pgqueue.tasks.context import TaskContext

ORIGIN: Final = "auto.queue.pgqueue"
TRACE: Final = "sentry-trace"
BAGGAGE: Final = "baggage"
STATUSES: Final[dict[type[BaseException], str]] = {Snooze: "ok", Suspended: "ok", Cancel: "cancelled", Retry: "aborted"}
"""The status of a transaction that such an exception has ended. Another exception is an internal error."""


def add_headers(call: Call) -> None:
    """Add the trace to the headers of new jobs, if there is an active span, as far as the headers have room."""
    parent: object = sentry_sdk.get_current_span()  # in stream mode it is of another class
    if not isinstance(parent, Span):
        return
    with parent.start_child(op="queue.publish", name=call.task.name, origin=ORIGIN) as span:
        span.set_data("messaging.destination.name", call.task.queue_name)
        headers = {TRACE: span.to_traceparent()}
        baggage = span.to_baggage()
        if baggage is not None:
            headers[BAGGAGE] = baggage.serialize()
    add_fitting(call.headers, headers)


@contextmanager
def transaction_of(context: TaskContext) -> Iterator[None]:
    """Continue the trace in the headers of a job, and run its attempt in a transaction if Sentry traces."""
    headers: dict[str, Any] = {name: context.headers[name] for name in (TRACE, BAGGAGE) if name in context.headers}
    transaction = sentry_sdk.continue_trace(
        headers, op="queue.process", name=context.task_name, source="task", origin=ORIGIN
    )
    options = sentry_sdk.get_client().options
    if not has_tracing_enabled(options) or options.get("trace_lifecycle") == "stream":
        yield
        return
    raised: BaseException | None = None
    with sentry_sdk.start_transaction(transaction) as span:
        span.set_data("messaging.system", "pgqueue")
        span.set_data("messaging.destination.name", context.queue_name)
        if len(context.chunk) > 1:
            span.set_data("messaging.batch.message_count", len(context.chunk))
        else:
            span.set_data("messaging.message.id", str(context.job_id))
            span.set_data("messaging.message.retry.count", context.attempt - 1)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 -- it is raised again below, after the transaction
            raised = error
        failures = failures_of(context)
        span.set_status(_status_of(failures[0][1] if failures and raised is None else raised))
    try:
        if raised is not None:
            raise raised
    finally:
        del raised  # otherwise the exception and this frame refer to each other, and keep the job's variables alive


def _status_of(raised: BaseException | None) -> str:
    if raised is None:
        return "ok"
    return next((status for kind, status in STATUSES.items() if isinstance(raised, kind)), "internal_error")
