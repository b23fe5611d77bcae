"""Test that a figure which a value in a row makes unreadable fails alone, and that each output says so."""

import io
import re

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import Error, OperationalError, transaction
from django.test import Client

from django_pgqueue import Limit, stats
from django_pgqueue.admin.console import activity
from django_pgqueue.metrics import collect, gauges
from django_pgqueue.stats import queries, rollup_queries, suspended
from django_pgqueue.stats.graphs import queries as graph_queries
from django_pgqueue.tasks import registry
from tests import helpers
from tests.stats.conftest import add_worker as add_worker
from tests.stats.conftest import connection as connection

OVERFLOW = "/* pgqueue:overflow */ SELECT 9223372036854775807 + 1 + count(*) FROM pgqueue_job"
FIGURES = {
    "ready": (queries, "READY_BY_LANE"),
    "running": (queries, "OPEN_EXECUTIONS_BY_TASK"),
    "waiting": (graph_queries, "FIRST_WAITING"),
    "dead": (queries, "NEWEST_DEAD"),
    "enqueued": (queries, "NEWEST_ENQUEUED"),
    "finished": (rollup_queries, "ENDED_BY_TASK"),
    "workers": (queries, "WORKERS"),
    "suspended": (suspended, "SUSPENDED_JOBS"),
}
"""Each figure of the overview, and the statement that reads it."""
ABSENT = {
    "ready": "pgqueue_oldest_due_seconds",
    "running": "pgqueue_queue_slots_busy",
    "enqueued": "pgqueue_enqueued_per_minute",
    "finished": "pgqueue_finished_per_minute",
    "workers": "pgqueue_live_workers",
    "dead": "pgqueue_dead_last_day",
    "suspended": "pgqueue_jobs_suspended",
}
NUMBERS = {
    "enqueued": ("enqueued_per_minute",),
    "finished": ("finished_per_minute",),
    "workers": ("workers", "slots_busy", "slots_total"),
    "running": ("slots_busy",),
}
"""The numbers of a figure that is no count of jobs."""
STATES = {"ready": "due", "running": "lost", "waiting": "waiting", "dead": "dead"}
ALONE = {
    "schedules": (gauges, "LATEST_SCHEDULE", "pgqueue_schedules_late_seconds"),
    "batches": (suspended, "BATCHES_BY_STATE", "pgqueue_oldest_open_batch_seconds"),
    "pgqueue_events_unreceived": (suspended, "UNRECEIVED_EVENTS", "pgqueue_events_unreceived"),
}


@pytest.fixture(params=[False, True], ids=["autocommit", "in a transaction"])
def in_transaction(request, connection):
    """Read the figures with and without an open transaction, which a failed statement would break."""
    with transaction.atomic() if request.param else connection.wrap_database_errors:
        yield


@pytest.mark.promise("figures-fail-alone")
@pytest.mark.parametrize("figure", FIGURES)
def test_overview_unreadable_figure_is_named_others_are_read(
    connection, add_worker, monkeypatch, figure, in_transaction
):
    add_worker()
    helpers.make_jobs(connection, 3)
    monkeypatch.setattr(*FIGURES[figure], OVERFLOW)
    found = stats.overview()
    assert list(found.unread) == [figure]
    assert "out of range" in found.unread[figure]
    assert (found.due.value, found.workers) == (3 * (figure != "ready"), None if figure == "workers" else 1)
    assert found.unserved_queues == ()


@pytest.mark.promise("figures-fail-alone")
@pytest.mark.parametrize("figure", FIGURES)
def test_overview_unreadable_figure_is_not_0(connection, add_worker, monkeypatch, figure):
    """Its counts are not exact, and its other numbers are None, in each queue too."""
    add_worker()
    helpers.make_jobs(connection, 1)
    monkeypatch.setattr(*FIGURES[figure], OVERFLOW)
    overview = stats.overview()
    states = {state for state in gauges.STATES if gauges.FIGURE_OF_STATE.get(state, state) == figure}
    for found in (overview, *overview.queues):
        assert {state for state in gauges.STATES if str(getattr(found, state)) == "–"} == states
        numbers = ("enqueued_per_minute", "finished_per_minute", "workers", "slots_busy", "slots_total")
        assert {name for name in numbers if getattr(found, name) is None} == set(NUMBERS.get(figure, ()))
    assert (str(overview.dead_24h) == "–") == (figure == "dead")
    assert (str(overview.suspended) == "–") == (figure == "suspended")


@pytest.mark.promise("figures-fail-alone")
@pytest.mark.parametrize("figure", FIGURES)
def test_gauges_unreadable_figure_has_no_samples(connection, add_worker, monkeypatch, caplog, figure):
    add_worker()
    helpers.make_jobs(connection, 3)
    monkeypatch.setattr(*FIGURES[figure], OVERFLOW)
    found = {gauge.name: dict(samples) for gauge, samples in collect()}
    assert set(found) == {gauge.name for gauge, _ in gauges.READS}
    assert (found["pgqueue_database_up"], found["pgqueue_figures_unread"]) == ({(): 1}, {(): 1})
    missing = {state for state in gauges.STATES if ("default", state) not in found["pgqueue_jobs"]}
    expected = {state for state in gauges.STATES if gauges.FIGURE_OF_STATE.get(state, state) == figure}
    assert missing == expected
    assert (STATES.get(figure) in missing) == (figure in STATES)
    if figure in ABSENT:
        assert found[ABSENT[figure]] == {}
    assert f"the figure '{figure}' of the database 'default' could not be read" in caplog.text


@pytest.mark.promise("figures-fail-alone")
@pytest.mark.parametrize("figure", [*ALONE, "limits"])
def test_gauges_own_figure_unreadable_fails_alone(connection, monkeypatch, figure):
    helpers.make_jobs(connection, 3)
    if figure == "limits":
        monkeypatch.setattr(registry, "limits", lambda: {"x": Limit("x", concurrency=1)})
        monkeypatch.setattr(stats, "limits", lambda alias: {}["x"])
        absent = "pgqueue_limit_jobs"
    else:
        module, name, absent = ALONE[figure]
        monkeypatch.setattr(module, name, OVERFLOW)
    found = {gauge.name: dict(samples) for gauge, samples in collect()}
    assert (found[absent], found["pgqueue_figures_unread"]) == ({}, {(): 1})
    assert found["pgqueue_jobs"]["default", "due"] == 3


@pytest.mark.promise("figures-fail-alone")
def test_status_unreadable_figure_is_named(connection, monkeypatch):
    helpers.make_jobs(connection, 3)
    monkeypatch.setattr(*FIGURES["suspended"], OVERFLOW)
    out = io.StringIO()
    call_command("pgqueue", "status", stdout=out)
    assert "due         3" in out.getvalue()
    assert "not read    suspended: bigint out of range" in out.getvalue()


@pytest.mark.parametrize(
    ("figure", "line"),
    [
        ("ready", "due         –\nlater       – scheduled, – retrying\n"),
        ("running", "running     –, and – lost\n"),
        ("dead", "dead        –, – of them in 24 h\n"),
        ("enqueued", "per minute  – in, 0 out\n"),
        ("finished", "per minute  1 in, – out\n"),
        ("workers", "workers     –, – of – slots busy\n"),
    ],
)
def test_status_unreadable_figure_is_a_dash(connection, monkeypatch, figure, line):
    helpers.make_jobs(connection, 1)
    monkeypatch.setattr(*FIGURES[figure], OVERFLOW)
    out = io.StringIO()
    call_command("pgqueue", "status", stdout=out)
    assert line in out.getvalue()


def test_command_row_that_cannot_be_read_is_a_command_error(connection, monkeypatch):
    monkeypatch.setattr(*FIGURES["dead"], OVERFLOW)
    with pytest.raises(CommandError, match="The values of a row cannot be read: bigint out of range"):
        call_command("pgqueue", "queues")


@pytest.fixture
def client(connection):
    found = Client()
    found.force_login(User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)[0])
    return found


@pytest.mark.promise("figures-fail-alone")
@pytest.mark.parametrize("page", ["overview", "queues", "queue"])
@pytest.mark.parametrize("figure", ["dead", "workers", "running"])
def test_page_unreadable_figure_is_named_others_are_shown(client, connection, monkeypatch, page, figure):
    helpers.make_jobs(connection, 3)
    monkeypatch.setattr(*FIGURES[figure], OVERFLOW)
    answer = client.get(f"/admin/pgqueue/job/{page}/?queue=default")
    text = answer.content.decode()
    assert answer.status_code == 200
    assert f"The figure “{figure}” cannot be read because of a value in a row: bigint out of range" in text
    assert "pgqueue-table" in text


@pytest.mark.parametrize("name", ["throughput", "failures", "throughput_by_task"])
def test_overview_page_unreadable_history_is_named(client, connection, monkeypatch, name):
    helpers.make_jobs(connection, 3)
    monkeypatch.setattr(stats, name, lambda *args, **options: 1 // 0)
    text = client.get("/admin/pgqueue/job/overview/").content.decode()
    assert "cannot be read because of a value in a row: ZeroDivisionError" in text
    assert "pgqueue-table" in text


@pytest.mark.parametrize(
    ("figure", "tiles", "cells"),
    [
        (
            "ready",
            {"due", "oldest due", "scheduled", "retrying"},
            {"due", "held", "scheduled", "retrying", "unknown", "paused"},
        ),
        ("running", {"running"}, {"running", "lost"}),
        ("dead", {"dead in 24 h"}, {"dead"}),
        ("finished", {"finished per min"}, set()),
        ("workers", {"workers"}, set()),
    ],
)
def test_page_unreadable_figure_is_a_dash(client, connection, monkeypatch, figure, tiles, cells):
    """No number stands below the banner of its figure, and no warning follows from it."""
    helpers.make_jobs(connection, 3)
    monkeypatch.setattr(*FIGURES[figure], OVERFLOW)
    text = client.get("/admin/pgqueue/job/overview/").content.decode()
    shown = dict(re.findall(r"<dt>([^<]+)</dt><dd[^>]*>(?:<a[^>]*>)?([^<]*)", text))
    expected = tiles | ({"oldest due"} if figure == "ready" else set())
    assert {label for label, value in shown.items() if value.strip() == "–"} == expected
    row = re.findall(r'<td data-label="([^"]+)"[^>]*>(?:<a[^>]*>)?([^<]*)', text)
    assert {label for label, value in row if value.strip() == "–"} == cells
    assert ("– / –" in text) == (figure == "workers")
    assert ("no worker is running" in text) == (figure not in {"workers", "ready"})
    assert ("no worker</span>" in text) == (figure not in {"workers", "ready"})
    assert "is off: there are no rates" not in text and "Nothing yet" not in text


def test_page_of_a_queue_with_unreadable_jobs_says_so(client, connection, monkeypatch):
    helpers.make_jobs(connection, 3)
    monkeypatch.setattr(*FIGURES["ready"], OVERFLOW)
    text = client.get("/admin/pgqueue/job/queue/?queue=default").content.decode()
    assert "The waiting jobs cannot be read." in text and "No job is waiting." not in text
    assert activity.stats is stats


@pytest.mark.promise("figures-fail-alone")
@pytest.mark.parametrize("page", ["tasks", "limits", "incidents", "doctor"])
def test_page_that_cannot_be_read_says_so(client, connection, monkeypatch, page):
    for name in ("tasks", "limits", "incidents"):
        monkeypatch.setattr(stats, name, lambda *args: {}["x"])
    answer = client.get(f"/admin/pgqueue/job/{page}/")
    assert answer.status_code == 200
    assert ("A value in a row cannot be read" in answer.content.decode()) == (page != "doctor")


def test_overview_error_of_all_figures_is_raised(connection, monkeypatch):
    """A missing table or a timeout would fail each figure: the database counts as down."""
    monkeypatch.setattr(*FIGURES["dead"], "/* pgqueue:x */ SELECT * FROM pgqueue_missing")
    with pytest.raises(Error, match="pgqueue_missing"):
        stats.overview()
    monkeypatch.setattr(*FIGURES["dead"], "/* pgqueue:x */ SELECT pg_sleep(9)")
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SET LOCAL statement_timeout = '50ms'")
        with pytest.raises(OperationalError), transaction.atomic():
            stats.overview()


def test_queues_unreadable_figure_raises(connection, monkeypatch):
    """A list of queues has no place to say that a figure is missing."""
    monkeypatch.setattr(*FIGURES["dead"], OVERFLOW)
    with pytest.raises(Error, match="out of range"):
        stats.queues()
