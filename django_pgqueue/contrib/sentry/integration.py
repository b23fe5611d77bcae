"""Report dead jobs to Sentry, and give each attempt a scope of its own.

`sentry_sdk.init()` calls `PgQueueIntegration.setup_once()`, which adds a middleware and connects receivers of signals.
Both belong to the process and do nothing while Sentry's current client has no `PgQueueIntegration`.

An attempt that fails does not know whether its job is dead: the transition decides that, and another process may write
it. `SentryReporter` therefore keeps the scope of a failed attempt, and the receiver of `job_dead` sends the event with
it. Whatever made a job dead, its event is sent exactly once, where `job_dead` is sent.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import Scope, global_event_processors, use_isolation_scope, use_scope
from sentry_sdk.utils import event_from_exception

from django_pgqueue import middleware, signals
from django_pgqueue.contrib.sentry import monitors, traces
from django_pgqueue.declared.steps import Suspended
from django_pgqueue.exceptions import Cancel, Retry, Snooze
from django_pgqueue.tasks import registry

from .stack_text import exception_values

if TYPE_CHECKING:
    from django_pgqueue.middleware import Call
    from django_pgqueue.tasks.context import TaskContext


PACKAGE: Final = "django_pgqueue"
LIBRARIES: Final = sys.stdlib_module_names | {"django", "psycopg", "psycopg_binary", "asgiref", "pydantic", "msgspec"}
"""Top packages whose functions this package calls with arguments of jobs."""
HIDING: Final = "django.views.decorators.debug"
"""The module of `sensitive_variables()`, which wraps the functions that take sensitive arguments."""
FAILURES: Final = ("job_dead", "job_failed")
"""The names of the worker's log events that report the failure of a job."""
IDENTIFIER: Final = "pgqueue"
FLUSH_SECONDS: Final = 1.5
"""How long the end of a process waits until Sentry has received its events. The receivers have two seconds."""
KEPT_LIMIT: Final = 200
"""How many scopes of failed attempts a process keeps. An event without its scope has no user and no breadcrumbs."""
OF_JOB: Final = ("job_id", "database", "execution_id", "queue_name", "attempt")
"""The values that describe an attempt: attributes of its context, and arguments of the receivers."""
CHUNK_IDS: Final = 100
"""How many ids of its jobs the context of a chunk has."""
REPORTS: Final = ("dead", "failures")


def is_about_failure(record: logging.LogRecord | None) -> bool:
    """Return whether a log record reports a failed or dead job, which the receivers of the signals report too.

    Sentry sends the variables of all frames. The frames of this package, and those of the libraries between it and the
    project's code, contain the arguments of jobs, so their variables are always removed. A task with `sensitive` passes
    its arguments to functions that may give them any names, so the events of its attempts contain no variables at all.
    """
    name = getattr(record, "event", "")
    if record is None or record.name != "django_pgqueue.worker" or not isinstance(name, str):
        return False
    return name in FAILURES or (name == "job_refused" and "is now dead" in record.msg)


def without_engine_values(event: Any) -> Any:
    """Remove the variables of this package's frames, and of the libraries' frames that it has called."""
    for frames in _stacks_of(event):
        is_ours = False
        for frame in frames:  # the outermost first
            module = str(frame.get("module") or "")
            top = module.partition(".")[0]
            if top == PACKAGE:
                is_ours = True
            elif top not in LIBRARIES:
                is_ours = False
            if is_ours or module == HIDING:
                frame.pop("vars", None)
    return event


def without_values(event: Any, hint: dict[str, Any]) -> Any:
    """Remove the variables of all frames. An event processor for the scopes of sensitive tasks."""
    for frames in _stacks_of(event):
        for frame in frames:
            frame.pop("vars", None)
    return event


def _stacks_of(event: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the frames of each stack of an event."""
    for place in ("exception", "threads"):
        for value in (event.get(place) or {}).get("values") or ():
            yield (value.get("stacktrace") or {}).get("frames") or []


class PgQueueIntegration(Integration):
    """Report jobs of django_pgqueue to Sentry.

    Args:
        report: "dead": send one event for each job that becomes dead. "failures": also send one for each failed attempt
            that will be retried, unless the task raised `Retry`.
        monitor_schedules: Whether each schedule is a cron monitor in Sentry, with check-ins of its jobs.

    Raises:
        ValueError: `report` has another value.

    Example:
        >>> sentry_sdk.init(dsn="https://key@sentry.example.com/1", integrations=[PgQueueIntegration()])
    """

    identifier = IDENTIFIER
    origin = traces.ORIGIN

    def __init__(self, *, report: Literal["dead", "failures"] = "dead", monitor_schedules: bool = False) -> None:
        if report not in REPORTS:
            raise ValueError(f"invalid report {report!r}: it must be 'dead' or 'failures'")
        self.report = report
        self.monitor_schedules = monitor_schedules

    @staticmethod
    def setup_once() -> None:
        """Add the middleware, and connect the receivers. Sentry calls this once in a process."""
        connect()


def active_integration() -> PgQueueIntegration | None:
    """Return the integration of Sentry's current client, or None."""
    return sentry_sdk.get_client().get_integration(PgQueueIntegration)


class KeptScope(NamedTuple):
    """The scopes of a failed attempt, and the check-in of its job."""

    isolation: Scope
    current: Scope
    check_in: monitors.CheckIn | None
    sent: list[tuple[BaseException, bool]]
    """Exceptions that were sent, and whether the job was dead. All jobs of a chunk share this list."""
    ended_call: bool
    """Whether the exception has ended the whole call, and not one job of a chunk alone."""


class SentryReporter:
    """The middleware, and the receivers of signals."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int | None], KeptScope] = OrderedDict()
        """The scopes of failed attempts whose failure is not written yet, by database and execution."""

    # ---------------------------------------------------------------- middleware

    def enqueue(self, call: Call) -> None:
        """Add the current trace to the headers of new jobs, and the monitor of the schedule that enqueues them."""
        integration = active_integration()
        if integration is None:
            return
        if call.schedule is not None and integration.monitor_schedules:
            monitors.add_header(call.headers, call.schedule)
        traces.add_headers(call)

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        """Run an attempt in a scope of its own, in a transaction if Sentry traces, and send the check-ins."""
        integration = active_integration()
        if integration is None:
            yield
            return
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            describe_call(scope, context)
            check_ins = monitors.check_ins_of(context) if integration.monitor_schedules else {}
            began_at = time.monotonic()
            for check_in in check_ins.values():
                check_in.send("in_progress")
            try:
                with traces.transaction_of(context):
                    try:
                        yield
                    except BaseException as error:
                        self._keep(context, scope, check_ins, error)
                        raise
                    self._keep(context, scope, check_ins, None)
            except BaseException as error:
                monitors.send_ends(check_ins, context, error, time.monotonic() - began_at)
                raise
            monitors.send_ends(check_ins, context, None, time.monotonic() - began_at)

    def _keep(
        self,
        context: TaskContext,
        scope: Scope,
        check_ins: Mapping[int | None, monitors.CheckIn],
        raised: BaseException | None,
    ) -> None:
        """Keep the scopes of an attempt for the job that has failed, or for each such job of a chunk."""
        sent: list[tuple[BaseException, bool]] = []
        for job in context.chunk or (context,):
            own_error = job.chunk_error()
            if isinstance(own_error or raised, Snooze | Suspended | Cancel | None):
                continue
            current = sentry_sdk.get_current_scope().fork()  # with the span of the attempt, which ends now
            kept = KeptScope(scope, current, check_ins.get(job.execution_id), sent, ended_call=own_error is None)
            self._kept[job.database, job.execution_id] = kept
        while len(self._kept) > KEPT_LIMIT:
            self._kept.popitem(last=False)

    # ---------------------------------------------------------------- receivers

    def job_failed(self, sender: str, exception: BaseException | None = None, **about: Any) -> None:
        """Forget the scope of the attempt. Send an event if each failure is reported and the task raised no `Retry`."""
        kept = self._kept.pop((about["database"], about["execution_id"]), None)
        integration = active_integration()
        if integration is not None and integration.report == "failures" and not isinstance(exception, Retry):
            _capture(sender, kept, exception, about, is_dead=False)

    def job_dead(self, sender: str, exception: BaseException | None = None, **about: Any) -> None:
        """Send the event of a dead job, and the last check-in of its schedule."""
        kept = self._kept.pop((about["database"], about["execution_id"]), None)
        integration = active_integration()
        if integration is None:
            return
        _capture(sender, kept, exception, about, is_dead=True)
        if integration.monitor_schedules:
            check_in = _stored_check_in(about["database"], about["job_id"]) if kept is None else kept.check_in
            if check_in is not None:
                check_in.send("error", about.get("duration_seconds"))

    def worker_process_stopping(self, **_: Any) -> None:
        """Wait until Sentry has received the events of this process."""
        sentry_sdk.flush(timeout=FLUSH_SECONDS)


REPORTER: Final = SentryReporter()
RECEIVERS: Final[dict[signals.WorkerSignal, Callable[..., None]]] = {
    signals.job_failed: REPORTER.job_failed,
    signals.job_dead: REPORTER.job_dead,
    signals.worker_process_stopping: REPORTER.worker_process_stopping,
}


def connect() -> None:
    """Add the middleware, connect the receivers, and add the filter of events to this process."""
    middleware.add(IDENTIFIER, REPORTER)
    for signal, receiver in RECEIVERS.items():
        signal.connect(receiver, dispatch_uid=IDENTIFIER)
    # Before Sentry's filter of duplicates, which would take our event for a duplicate of the log line that we drop.
    global_event_processors.insert(0, _filter)


def _filter(event: Any, hint: dict[str, Any]) -> Any:
    """Drop the event of a log line about a failure that has an event of its own. Remove values from the others."""
    if active_integration() is None:
        return event
    if is_about_failure(hint.get("log_record")):
        return None
    return without_engine_values(event)


def describe_call(scope: Scope, context: TaskContext) -> None:
    """Describe an attempt as `describe()`, or a chunk of several jobs by the number and the first ids of its jobs."""
    if len(context.chunk) <= 1:
        describe(scope, context.task_name, {name: getattr(context, name) for name in OF_JOB})
        return
    about = {"task": context.task_name, "queue": context.queue_name, "jobs": len(context.chunk)}
    job_ids = [job.job_id for job in context.chunk[:CHUNK_IDS]]
    scope.set_context("chunk", {**about, "database": context.database, "job_ids": job_ids})
    _describe_task(scope, context.task_name, about)


def describe(scope: Scope, task_name: str, job: Mapping[str, Any]) -> None:
    """Set the transaction's name, the tags and the context of an attempt, and hide the values of sensitive tasks."""
    about = {"job_id": job["job_id"], "task": task_name, "queue": job["queue_name"], "attempt": job["attempt"]}
    scope.set_context("job", {**about, "execution_id": job["execution_id"], "database": job["database"]})
    _describe_task(scope, task_name, about)


def _describe_task(scope: Scope, task_name: str, tags: Mapping[str, Any]) -> None:
    scope.set_transaction_name(task_name, source="task")
    for name, value in tags.items():
        scope.set_tag(name, str(value))
    task = registry.get(task_name)
    if task is not None and task.sensitive:
        scope.add_event_processor(without_values)


def _capture(
    task_name: str, kept: KeptScope | None, exception: BaseException | None, about: dict[str, Any], *, is_dead: bool
) -> None:
    """Send the event of a failure, with the scope of its attempt if this process has it."""
    event, hint = _event_of(task_name, exception, about)
    if kept is not None:
        if exception is not None:
            sent = [was_dead for each, was_dead in kept.sent if each is exception]
            if kept.ended_call and is_dead in sent:
                return  # the event of the first job has the ids of the others
            if sent:
                hint.pop("exc_info", None)  # otherwise Sentry drops the event as a duplicate
            kept.sent.append((exception, is_dead))
        scope = kept.isolation.fork()
        describe(scope, task_name, about)
        with use_isolation_scope(scope), use_scope(kept.current):
            sentry_sdk.capture_event(event, hint=hint)
        return
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        describe(scope, task_name, about)
        sentry_sdk.capture_event(event, hint=hint)


def _event_of(task_name: str, exception: BaseException | None, about: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return an event, and the hint for its processors. Without an exception, its text is read."""
    mechanism = {"type": IDENTIFIER, "handled": False}
    if exception is not None:
        event, hint = event_from_exception(
            exception, client_options=sentry_sdk.get_client().options, mechanism=mechanism
        )
        return event, dict(hint)
    values = exception_values(about["exception_class"], about["error"], about["traceback"])
    values[-1]["mechanism"] = mechanism
    event = {"level": "error", "exception": {"values": values}}
    if "stacktrace" not in values[-1]:  # Sentry would put all such jobs into one issue
        event["fingerprint"] = [IDENTIFIER, task_name, about["exception_class"], about["error"]]
    return event, {}


def _stored_check_in(database: str, job_id: int) -> monitors.CheckIn | None:
    """Return the check-in of a job from its row: of an isolated job, or of one whose worker was lost."""
    from django_pgqueue.models import Job  # settings modules import this one, before models can be

    headers = Job.objects.using(database).filter(pk=job_id).values_list("headers", flat=True).first()
    return monitors.check_in_of(headers or {})
