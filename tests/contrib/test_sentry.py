"""The integration with Sentry: one event for each dead job, with the attempt's own scope and without its arguments."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from django.test import override_settings
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations import _installed_integrations, _processed_integrations
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.scope import Scope, global_event_processors
from sentry_sdk.transport import Transport

from django_pgqueue import Cancel, cron, every, log, middleware, signals
from django_pgqueue.contrib.sentry import PgQueueIntegration, integration, monitors
from django_pgqueue.contrib.sentry.stack_text import exception_values, frames_of
from django_pgqueue.models import Job
from django_pgqueue.schedules import declarations
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.claiming import claimer
from tests.app import tasks as app
from tests.contrib import tasks

pytestmark = pytest.mark.django_db
CARD = "-".join(["4111", "1111"])
"""An argument that no source line contains, because events contain source lines."""
MODULES = {"TASK_MODULES": ["tests.contrib.tasks"]}


class Items(Transport):
    """Keeps what would be sent."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.sent: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent += [item.payload.json for item in envelope.items if item.payload.json is not None]

    def of(self, kind: str | None) -> list[dict[str, Any]]:
        """Return the items of a type; an error event has none."""
        return [item for item in self.sent if item.get("type") == kind]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.of(None)


Init = Callable[..., Items]


@pytest.fixture
def bare() -> Iterator[Init]:
    """Return a function that initialises Sentry as by default, with Django's integration. Undo it after the test."""

    def init(*integrations: Any, **options: Any) -> Items:
        items = Items()
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:9/1",
            transport=items,
            integrations=[DjangoIntegration(), *integrations],
            auto_enabling_integrations=False,
            **options,
        )
        return items

    yield init
    for signal in integration.RECEIVERS:
        signal.disconnect(dispatch_uid="pgqueue")
    middleware.remove("pgqueue")
    global_event_processors[:] = [each for each in global_event_processors if each is not integration._filter]
    _processed_integrations.discard("pgqueue")
    _installed_integrations.discard("pgqueue")
    Scope.get_global_scope().set_client(None)
    sentry_sdk.get_isolation_scope().clear()
    sentry_sdk.get_current_scope().clear()


@pytest.fixture
def init(bare: Init) -> Init:
    """Return a function that initialises Sentry with the integration, with these options of it."""
    return lambda options=None, **more: bare(PgQueueIntegration(**options or {}), **more)


@pytest.fixture(autouse=True)
def _logged(settings: Any) -> Iterator[None]:
    settings.PGQUEUE = MODULES
    log.enable()
    yield
    log.disable()


def run(*jobs: Job) -> list[Job]:
    run_jobs()
    return [Job.objects.get(pk=job.pk) for job in jobs]


def exception_of(event: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = event["exception"]["values"][-1]
    return value


# ------------------------------------------------------------------ one event


def test_sentry_dead_job_is_one_event_with_its_tags(init):
    items = init()
    [job] = run(tasks.fail_at_once.using(queue_name="mail").enqueue())
    [event] = items.events
    assert event["transaction"] == "tests.contrib.tasks.fail_at_once"
    tags = {"job_id": str(job.pk), "task": "tests.contrib.tasks.fail_at_once", "queue": "mail", "attempt": "1"}
    assert tags.items() <= event["tags"].items()
    execution = job.executions.get()
    assert event["contexts"]["job"] == {
        "job_id": job.pk,
        "task": job.task_name,
        "queue": "mail",
        "attempt": 1,
        "execution_id": execution.pk,
        "database": "default",
    }
    value = exception_of(event)
    assert (value["type"], value["value"], value["mechanism"]["handled"]) == ("ValueError", "as asked", False)
    assert value["stacktrace"]["frames"][-1]["function"] == "fail_at_once"
    assert event["level"] == "error"


@pytest.mark.parametrize(
    ("report", "events"), [("dead", [("2", "ValueError")]), ("failures", [("1", "ValueError"), ("2", "ValueError")])]
)
def test_sentry_retried_failures_are_events_if_asked(init, report, events):
    items = init({"report": report})
    [job] = run(tasks.fail_twice.enqueue())
    assert job.state == "dead"
    assert [(event["tags"]["attempt"], exception_of(event)["type"]) for event in items.events] == events


def test_sentry_integration_invalid_report_raises():
    with pytest.raises(ValueError, match="invalid report 'all'"):
        PgQueueIntegration(report="all")


@pytest.mark.parametrize("kind", ["snooze", "cancel"])
def test_sentry_snooze_and_cancel_are_no_events(init, kind):
    items = init({"report": "failures"})
    run(tasks.direct.enqueue(kind))
    assert items.events == []


def test_sentry_retry_is_an_event_only_if_the_job_dies(init):
    items = init({"report": "failures"})
    [job] = run(tasks.direct.enqueue("retry"))
    assert job.state == "dead"
    assert [event["tags"]["attempt"] for event in items.events] == ["2"]


def test_sentry_atomic_task_that_fails_at_commit_is_an_event(init):
    items = init()
    [job] = run(app.create_group_and_fail_on_commit.using(max_attempts=1).enqueue("g"))
    assert [event["tags"]["job_id"] for event in items.events] == [str(job.pk)] * (job.state == "dead")
    run(tasks.fail_in_transaction.enqueue())
    assert [event["transaction"] for event in items.events][-1:] == ["tests.contrib.tasks.fail_in_transaction"]


@override_settings(PGQUEUE=MODULES | {"IMMEDIATE": True})
def test_sentry_immediate_job_is_one_event(init):
    items = init()
    tasks.fail_at_once.enqueue()
    assert [event["transaction"] for event in items.events] == ["tests.contrib.tasks.fail_at_once"]


def test_sentry_without_client_does_nothing(init, bare):
    init()
    items = bare()  # a new client without the integration; its receivers are still connected
    run(tasks.fail_at_once.enqueue())
    [event] = items.events
    assert event["logger"] == "django_pgqueue.worker"


def test_sentry_other_errors_of_the_worker_stay_events(init):
    items = init()
    logging.getLogger("django_pgqueue.worker").error("the fetcher failed")
    assert [event["logentry"]["message"] for event in items.events] == ["the fetcher failed"]


def test_sentry_line_about_unclaimable_job_is_no_event(init):
    items = init()
    template = "job %s cannot be claimed and is now dead: %s"
    logger = logging.getLogger("django_pgqueue.worker")
    logger.error(template, 7, "out of range", extra={"event": "job_refused"})
    assert items.events == []
    logger.error("job %s could not be cancelled", 7, extra={"event": "job_refused"})
    assert len(items.events) == 1
    assert template in inspect.getsource(claimer)


# ------------------------------------------------------------------ scopes


@pytest.mark.parametrize(
    ("first", "second"),
    [(tasks.set_user_and_fail, tasks.fail_at_once), (tasks.set_user_in_coroutine, tasks.fail_in_coroutine)],
    ids=["sync", "async"],
)
def test_sentry_job_has_no_scope_of_another_job(init, first, second):
    items = init()
    run(first.enqueue("anna"), second.enqueue())
    users = [event.get("user", {}).get("id") for event in items.events]
    assert users == ["anna", None]
    assert "crumb of anna" not in json.dumps(items.events[1])
    assert sentry_sdk.get_isolation_scope()._user is None


def test_sentry_event_has_the_breadcrumbs_of_its_attempt(init):
    items = init()
    run(tasks.set_user_and_fail.enqueue("anna"))
    [event] = items.events
    assert "crumb of anna" in [crumb["message"] for crumb in event["breadcrumbs"]["values"]]


def test_sentry_keeps_a_limited_number_of_scopes(init, monkeypatch):
    monkeypatch.setattr(integration, "KEPT_LIMIT", 3)
    init()
    reporter = integration.SentryReporter()
    monkeypatch.setattr(integration, "REPORTER", reporter)
    middleware.remove("pgqueue")
    middleware.add("pgqueue", reporter)
    for _ in range(5):
        tasks.fail_at_once.enqueue()
    run_jobs()
    assert len(reporter._kept) == 3


# ------------------------------------------------------------------ privacy


def test_sentry_sensitive_arguments_are_in_no_event(init):
    items = init()
    run(tasks.pay.enqueue(CARD))
    assert [event.get("logentry", {}).get("message", event.get("message")) for event in items.events] == [
        "paying",
        None,
    ]
    assert CARD not in json.dumps(items.sent)
    assert exception_of(items.events[-1])["stacktrace"]["frames"][-1]["function"] == "charge"


def test_sentry_variables_of_other_tasks_are_kept(init):
    items = init()
    run(tasks.fail_at_once.enqueue("order 66"))
    ours, task = exception_of(items.events[0])["stacktrace"]["frames"][-2:]
    assert task["vars"]["order"] == "'order 66'"
    assert ours["module"].startswith("django_pgqueue.")
    assert "vars" not in ours


def test_sentry_failing_enqueue_shows_no_sensitive_argument(init):
    items = init()
    try:
        _enqueue_beside_error()
    except TypeError as error:
        sentry_sdk.capture_exception(error)
    [event] = items.events
    frames = exception_of(event)["stacktrace"]["frames"]
    assert frames[0]["vars"]
    assert CARD not in json.dumps(event)


def _enqueue_beside_error() -> None:
    tasks.pay.enqueue(CARD, order=object())  # type: ignore[arg-type]


# ------------------------------------------------------------------ traces


def test_sentry_attempt_is_a_transaction_of_the_callers_trace(init):
    items = init(traces_sample_rate=1.0)
    with sentry_sdk.start_transaction(name="checkout") as caller:
        job = tasks.fail_at_once.enqueue()
    run(job)
    made, ran = (item for item in items.of("transaction") if item["transaction"] != "other")
    assert made["transaction"] == "checkout"
    [publish] = [span for span in made["spans"] if span["op"] == "queue.publish"]
    trace = ran["contexts"]["trace"]
    assert ran["transaction"] == "tests.contrib.tasks.fail_at_once"
    assert (trace["trace_id"], trace["parent_span_id"]) == (caller.trace_id, publish["span_id"])
    assert (trace["op"], trace["status"]) == ("queue.process", "internal_error")
    assert trace["data"]["messaging.message.id"] == str(job.pk)
    [event] = items.events
    assert event["contexts"]["trace"]["trace_id"] == caller.trace_id


@pytest.mark.parametrize(
    ("enqueue", "status"),
    [
        (lambda: app.noop.enqueue(), "ok"),
        (lambda: tasks.direct.enqueue("snooze"), "ok"),
        (lambda: tasks.direct.enqueue("cancel"), "cancelled"),
        (lambda: tasks.direct.using(max_attempts=1).enqueue("retry"), "aborted"),
    ],
    ids=["success", "snooze", "cancel", "retry"],
)
def test_sentry_transaction_has_the_status_of_the_attempt(init, enqueue, status):
    items = init(traces_sample_rate=1.0)
    run(enqueue())
    [item] = [item for item in items.of("transaction") if item["contexts"]["trace"]["op"] == "queue.process"]
    assert item["contexts"]["trace"]["status"] == status


def test_sentry_without_tracing_adds_no_header(init):
    items = init()
    assert tasks.fail_at_once.enqueue().headers is None
    run_jobs()
    assert items.of("transaction") == []


def test_sentry_long_headers_lose_the_trace_not_the_job(init):
    init(traces_sample_rate=1.0)
    task = tasks.fail_at_once.using(headers={"own": "x" * 4000})
    longer = tasks.fail_at_once.using(headers={"own": "x" * 4070})
    with sentry_sdk.start_transaction(name="checkout"):
        assert set(task.enqueue().headers) == {"own", "sentry-trace"}
        assert set(longer.enqueue().headers) == {"own"}
        assert set(tasks.fail_at_once.enqueue().headers) == {"sentry-trace", "baggage"}


# ------------------------------------------------------------------ monitors


def tick(name: str, expression: str = "0 3 * * *", zone: str = "Europe/Paris", **arguments: Any) -> Any:
    """Return the headers of a job of such a schedule."""
    headers: dict[str, Any] = {}

    class Tick:
        jitter_seconds = arguments.pop("jitter_seconds", 0.0)

    Tick.name, Tick.expression, Tick.time_zone = name, expression, zone  # type: ignore[attr-defined]
    monitors.add_header(headers, Tick)  # type: ignore[arg-type]
    return headers


CONFIG = {"timezone": "Europe/Paris", "schedule": {"type": "crontab", "value": "0 3 * * *"}}


@pytest.mark.parametrize(
    ("how", "statuses"), [("ok", ["in_progress", "ok"]), ("fail", ["in_progress", "error"])], ids=["ok", "error"]
)
def test_sentry_scheduled_job_sends_check_ins(init, how, statuses):
    items = init({"monitor_schedules": True})
    headers = tick("Nightly Report")
    run(tasks.nightly.using(headers=headers).enqueue(how))
    check_ins = items.of("check_in")
    assert [item["status"] for item in check_ins] == statuses
    assert {item["check_in_id"] for item in check_ins} == {json.loads(headers["sentry-monitor"])["id"]}
    assert {item["monitor_slug"] for item in check_ins} == {"nightly-report"}
    assert all(item["monitor_config"] == CONFIG for item in check_ins)


def test_sentry_schedule_puts_its_monitor_into_headers(init, monkeypatch):
    items = init({"monitor_schedules": True})
    monkeypatch.setattr(declarations, "_declared", {})
    declarations.declare(tasks.nightly, cron("* * * * *", tz="Europe/Paris", name="Nightly Report"))
    declarations.declare(tasks.often, every(seconds=30))
    run_jobs(until=61, schedules=True)
    job = Job.objects.filter(task_name=tasks.nightly.name).latest("pk")
    schedule = {"type": "crontab", "value": "* * * * *"}
    assert json.loads(job.headers["sentry-monitor"])["config"] == {"timezone": "Europe/Paris", "schedule": schedule}
    assert not Job.objects.filter(task_name=tasks.often.name, headers__isnull=False).exists()
    mine = [item["status"] for item in items.of("check_in") if item["monitor_slug"] == "nightly-report"]
    assert mine[:2] == ["in_progress", "ok"]
    assert len(items.of("check_in")) == len(mine)


def test_sentry_monitors_are_off_by_default(init):
    items = init()
    run(tasks.nightly.using(headers=tick("nightly")).enqueue("fail"))
    assert items.of("check_in") == []


def test_sentry_lost_scheduled_job_sends_its_last_check_in(init):
    items = init({"monitor_schedules": True})
    job = tasks.nightly.using(headers=tick("nightly")).enqueue("ok")
    lost(job)
    assert [item["status"] for item in items.of("check_in")] == ["error"]


def test_sentry_cancelled_scheduled_job_is_an_error(init):
    items = init({"monitor_schedules": True})
    run(tasks.direct.using(headers=tick("nightly")).enqueue("cancel"))
    assert [item["status"] for item in items.of("check_in")] == ["in_progress", "error"]


@pytest.mark.parametrize(
    ("expression", "schedule"),
    [
        ("@daily", {"type": "crontab", "value": "0 0 * * *"}),
        ("every 5 minutes", {"type": "interval", "value": 5, "unit": "minute"}),
        ("every 1 week", {"type": "interval", "value": 1, "unit": "week"}),
    ],
)
def test_sentry_monitor_has_the_schedule_in_its_form(expression, schedule):
    assert monitors.config_of(expression, "UTC") == {"timezone": "UTC", "schedule": schedule}
    assert monitors.config_of("every 30 seconds", "UTC") is None
    assert tick("often", "every 30 seconds") == {}
    assert monitors.config_of("@daily", "UTC", jitter_seconds=90)["checkin_margin"] == 3


def test_sentry_monitor_name_fits():
    assert monitors.slug_of("shop.Tasks.clean_up") == "shop-tasks-clean_up"
    first, second = (monitors.slug_of("x" * 60 + end) for end in "ab")
    assert len(first) <= 50
    assert first != second


@pytest.mark.parametrize("header", ["{", "[]", "{}", 7, None])
def test_sentry_unreadable_monitor_header_is_ignored(header):
    assert monitors.check_in_of({"sentry-monitor": header}) is None


# ------------------------------------------------------------------ without an exception


def lost(job: Job) -> None:
    about = {"job_id": job.pk, "database": "default", "execution_id": 1, "queue_name": "default", "attempt": 1}
    text = {"exception": None, "exception_class": "", "error": "the worker was lost", "traceback": ""}
    signals.job_dead.send(sender=job.task_name, **about, **text)


def test_sentry_job_of_a_lost_worker_is_an_event(init):
    items = init()
    job = tasks.fail_at_once.enqueue()
    lost(job)
    [event] = items.events
    assert exception_of(event) == {
        "type": "JobDied",
        "value": "the worker was lost",
        "module": None,
        "mechanism": {"type": "pgqueue", "handled": False},
    }
    assert event["tags"]["job_id"] == str(job.pk)
    assert event["fingerprint"] == ["pgqueue", job.task_name, "", "the worker was lost"]


def test_sentry_stack_of_killed_job_is_outermost_first():
    text = (
        "Killed at its timeout. Stack at that time:\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/srv/shop/tasks.py", line 12 in inner\n  File "/srv/shop/tasks.py", line 7 in outer\n'
    )
    assert [(frame["function"], frame["lineno"]) for frame in frames_of(text)] == [("outer", 7), ("inner", 12)]


def test_sentry_traceback_text_has_causes_and_source_lines():
    from django_pgqueue.worker.execution.error_text import traceback_text

    try:
        tasks.fail_apart.func("anna")
    except RuntimeError as error:
        text = traceback_text(error)
    cause, last = exception_values("builtins.RuntimeError", "no money", text)
    assert (cause["type"], cause["value"], last["type"], last["module"]) == (
        *("ValueError", "declined"),
        *("RuntimeError", "builtins"),
    )
    frame = last["stacktrace"]["frames"][-1]
    assert (frame["module"], frame["filename"], frame["function"], frame["context_line"]) == (
        *("tests.contrib.tasks", "tests/contrib/tasks.py"),
        *("fail_apart", 'raise RuntimeError("no money") from error'),
    )
    assert cause["stacktrace"]["frames"][-1]["function"] == "charge"


def test_sentry_event_of_cancel_class_needs_no_frames():
    assert exception_values("django_pgqueue.exceptions.Cancel", str(Cancel("x")), "")[0]["type"] == "Cancel"
