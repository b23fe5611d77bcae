"""The main process of a worker with several databases: the ends of its supervisors, signals, and reports."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

import pytest
from django.core.management.base import CommandError
from django.db import connections
from django.test import override_settings

from django_pgqueue.db.queue_databases import distinct, queue_aliases
from django_pgqueue.ground.readings import DATABASE_UP, NOT_READ, Gauge, Reading, of_several
from django_pgqueue.management.commands import runworker
from django_pgqueue.management.commands.runworker import chosen_databases
from django_pgqueue.worker import Options
from django_pgqueue.worker.monitoring.http_server import Request
from django_pgqueue.worker.monitoring.metrics_process import Pages
from django_pgqueue.worker.runtime import health_report
from django_pgqueue.worker.runtime.health_report import HealthReport, judge_all
from django_pgqueue.worker.runtime.shared_memory import HealthMemory
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from django_pgqueue.worker.supervision import helper_process, stop_signals, supervisor_group
from django_pgqueue.worker.supervision.stop_signals import PassedOnSignals, StopSignals
from django_pgqueue.worker.supervision.supervisor_group import DatabaseFilter, SupervisorGroup
from tests import helpers

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # of execnet


class FakeSupervisor:
    """A supervisor that does what its database is named: "empty", "fails", "is stopped", "crashes" or "waits".

    "stubborn" is a supervisor whose jobs continue until the third signal, and "works" one that runs a job when it is
    first started. Each start and each signal adds a line to the file `starts`.
    """

    starts = Path()

    def __init__(self, options, listener=None, memory=None, passed_on=None) -> None:
        self.does, self.memory = options.database, memory
        self.signals = StopSignals(self.on_signal, passed_on)

    def on_signal(self, count):
        self.note(f"signal {count}")
        if self.does != "stubborn" or count >= 3:
            os._exit(0)

    def note(self, line):
        with self.starts.open("a") as file:
            file.write(f"{line}\n")

    def run(self):
        self.memory.round_finished(is_foreign=False)
        self.note(self.does)
        if self.does == "works":
            time.sleep(0.2)
            self.memory.free_place().finished = int(not self.memory.finished)
        if self.does == "fails":
            return 1
        if self.does == "is stopped":
            self.memory.stopping_since = time.monotonic()
        if self.does == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.does in ("waits", "stubborn"):
            self.signals.listen(supervisor_group.Waker())
            stop_at = time.monotonic() + 20
            while time.monotonic() < stop_at:
                time.sleep(0.5)
            return 7
        return 0


@pytest.fixture
def group(monkeypatch, tmp_path):
    """Return a function that runs a group in a child process, and returns its exit code and how long it took."""
    monkeypatch.setattr(supervisor_group, "Supervisor", FakeSupervisor)
    monkeypatch.setattr(FakeSupervisor, "starts", tmp_path / "starts")
    (tmp_path / "starts").touch()
    monkeypatch.setattr(supervisor_group, "run_exit_functions", lambda: None)
    monkeypatch.setattr(helper_process.django_connections, "close_for_good", lambda: None)  # those of pytest

    def run(*names, meanwhile=lambda pid: None, **options):
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            code = 99
            signal.alarm(30)
            try:
                code = SupervisorGroup([Options(database=name, metrics_port=None, **options) for name in names]).run()
            finally:
                os._exit(code)
        meanwhile(pid)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), time.monotonic() - began

    return run


def wait_for(tmp_path, *lines):
    """Wait until each of these lines is in the file `starts`."""
    helpers.wait_until(lambda: set(lines) <= set((tmp_path / "starts").read_text().splitlines()))


@pytest.mark.promise("several-databases-whole")
@pytest.mark.parametrize(
    ("end", "exit_code"),
    [("fails", 1), ("crashes", 1), ("is stopped", 0), ("empty", 0)],
)
def test_end_of_one_supervisor_stops_the_others(group, end, exit_code):
    code, seconds = group("waits", end)
    assert (code, seconds < 10) == (exit_code, True)


@pytest.mark.promise("several-databases-until-empty")
def test_empty_database_with_until_empty_stops_no_other(group, tmp_path):
    def stop_later(pid):
        wait_for(tmp_path, "waits", "empty")
        time.sleep(0.5)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it still serves the other database"
        os.kill(pid, signal.SIGTERM)

    assert group("waits", "empty", until_empty=True, meanwhile=stop_later)[0] == 0
    assert group("empty", "empty", until_empty=True)[0] == 0
    assert group("empty", "fails", until_empty=True)[0] == 1
    code, seconds = group("waits", "is stopped", until_empty=True)
    assert (code, seconds < 10) == (0, True), "an operator stops the whole worker"


@pytest.mark.promise("several-databases-until-empty")
def test_empty_database_is_served_again_after_jobs_elsewhere(group, tmp_path):
    assert group("empty", "works", until_empty=True)[0] == 0
    assert sorted((tmp_path / "starts").read_text().split()) == ["empty", "empty", "works"]


def test_finished_jobs_count_after_their_place_is_used_again():
    memory = WorkerMemory(1, supervisor=HealthMemory())
    for number in range(1, 5):
        memory.free_place().finished = 10
        assert memory.finished == 10 * number


def test_third_signal_ends_main_process_with_130(group, tmp_path):
    def send(pid):
        wait_for(tmp_path, "stubborn")
        for count in (1, 2):
            os.kill(pid, signal.SIGTERM)
            wait_for(tmp_path, f"signal {count}")
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        os.kill(pid, signal.SIGTERM)

    code, seconds = group("stubborn", "stubborn", meanwhile=send)
    assert (code, seconds < 10) == (130, True)


# ------------------------------------------------------------------------------- signals


@pytest.mark.promise("several-databases-signals")
def test_passed_on_signals_act_once_and_after_end_of_main_process(monkeypatch):
    passed_on, acted = PassedOnSignals(), []
    monkeypatch.setattr(stop_signals.os, "getppid", lambda: passed_on._main_pid)
    signals = StopSignals(acted.append, passed_on)
    signals.look()
    assert acted == []
    passed_on.received = 1
    signals.look()
    signals.look()
    assert (acted, signals.count) == ([1], 1)
    passed_on.received = 3
    signals.look()
    assert acted == [1, 3]
    orphan = StopSignals(acted.append, PassedOnSignals())
    monkeypatch.setattr(stop_signals.os, "getppid", lambda: 1)
    orphan.look()
    assert acted == [1, 3, 1], "the main process is gone"


# ------------------------------------------------------------------------------- health


def working():
    memory, now = WorkerMemory(1, counting=True, supervisor=HealthMemory()), time.monotonic()
    process = memory.free_place()
    process.pid, process.started_at, process.responded_at = 11, now, now
    process.lease_until = now + 10_000_000.0
    process.answered("claim")
    return memory


def test_worker_is_ready_if_all_databases_are(monkeypatch):
    clock = helpers.Clock(monkeypatch, health_report)
    memories = {"a": working(), "b": working()}
    assert judge_all(memories).is_ready
    memories["b"].supervisor.outage_since = clock.now - 5
    judgement = judge_all(memories)
    assert (judgement.is_alive, judgement.status) == (True, "database away")
    assert judgement.reasons == ("b: statements have been failing for 5 s",)
    memories["a"].stopping_since = time.monotonic()
    assert judge_all(memories).status == "stopping", "the more serious one"
    memories["a"].round_finished_at = time.monotonic() - 1000
    assert not judge_all(memories).is_alive


def test_worker_with_ended_supervisor_reports_the_others():
    memories = {"a": working(), "b": working()}
    memories["a"].round_finished_at = time.monotonic() - 1000
    memories["a"].has_ended = True
    assert (judge_all(memories).is_alive, judge_all(memories).status) == (True, "ok")
    memories["b"].has_ended = True
    assert judge_all(memories).status == "ended"


def test_report_of_several_databases_names_each():
    memories = {"a": working(), "b": working()}
    memories["b"].supervisor.pid, memories["b"].supervisor.errors = 4, 3
    about = HealthReport(memories).as_dict()
    assert (about["pid"], about["errors"], len(about["processes"])) == (os.getpid(), 3, 2)
    assert about["databases"]["b"] == {
        "status": "ok",
        "alive": True,
        "ready": True,
        "reasons": [],
        "pid": 4,
        "errors": 3,
        "processes": [11],
    }
    assert "databases" not in HealthReport(working()).as_dict()


# ------------------------------------------------------------------------------- metrics


@pytest.mark.promise("several-databases-metrics")
def test_metrics_of_several_databases_have_label():
    memories = {"a": working(), "b": working()}
    memories["b"].stopping_since = time.monotonic()
    [first] = memories["a"].counts[:1]
    cells = first.jobs.cells
    cells[first.jobs.start_of(("mail", "send"))] = 2.0
    page = text_of(Pages(HealthReport(memories)))
    assert 'pgqueue_ready{database="a"} 1.0' in page
    assert 'pgqueue_ready{database="b"} 0.0' in page
    assert 'pgqueue_attempts_total{database="a",outcome="succeeded",queue="mail",task="send"} 2.0' in page
    assert 'pgqueue_claim_batch_size_bucket{database="b",le="1"} 0.0' in page
    assert "database=" not in text_of(Pages(HealthReport(working())))


def text_of(pages):
    return asyncio.run(pages.metrics(Request("/metrics", "", ""))).body.decode()


def test_figures_of_lost_database_delay_no_other():
    ended = []

    def hangs():
        time.sleep(0.2)
        ended.append(True)
        return (NOT_READ,)

    read = {"a": lambda: (Reading(DATABASE_UP, (((), 1.0),)),), "b": hangs}
    page = text_of(Pages(HealthReport({"a": working(), "b": working()}), read))
    assert 'pgqueue_database_up{database="a"} 1.0' in page
    assert 'pgqueue_database_up{database="b"} 0.0' in page
    assert ended


def test_readings_of_several_databases_share_gauges():
    jobs = Gauge("pgqueue_jobs", "Jobs.", ("queue",))
    readings = of_several(
        {"a": [Reading(jobs, ((("mail",), 2.0),))], "b": [Reading(jobs, ((("mail",), 3.0),)), NOT_READ]}
    )
    assert readings == [
        Reading(jobs._replace(labels=("database", "queue")), ((("a", "mail"), 2.0), (("b", "mail"), 3.0))),
        Reading(DATABASE_UP._replace(labels=("database",)), ((("b",), 0.0),)),
    ]


# ------------------------------------------------------------------------------- log lines


@pytest.mark.parametrize(("alias", "args"), [("reports", ("x",)), ("100%", ("x",)), ("100%", ())])
def test_log_lines_begin_with_the_database(alias, args):
    record = logging.LogRecord("django_pgqueue.worker", logging.INFO, "", 0, "job %s" if args else "50 %", args, None)
    assert DatabaseFilter(alias).filter(record)
    assert record.getMessage() == f"[{alias}] " + ("job x" if args else "50 %")
    assert vars(record)["database"] == alias


# ------------------------------------------------------------------------------- command line


@pytest.fixture
def aliases():
    """Add the aliases `second`, another database; `copy`, the same as `default`; `direct`, for LISTEN; and `lite`."""
    first = connections.settings["default"]
    own = connections["default"].settings_dict
    added = {
        "second": {**first, **own, "NAME": "another"},
        "copy": {**first, **own},
        "direct": {**first, **own, "PORT": "1"},
        "lite": {**first, "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    }
    connections.settings.update(added)
    yield
    for alias in added:
        del connections.settings[alias]
        if hasattr(connections._connections, alias):
            del connections[alias]


def chosen(*databases, all_databases=False):
    return chosen_databases({"database": [*databases] or None, "all_databases": all_databases})


@pytest.mark.usefixtures("aliases")
def test_runworker_databases_are_given_once_or_all():
    assert chosen() == ["default"]
    assert chosen("second", "default", "second") == ["second", "default"]
    assert chosen_databases({"database": "second", "all_databases": False}) == ["second"]
    with override_settings(PGQUEUE={"LISTEN_DATABASE": {"default": "direct"}}):
        assert queue_aliases() == ["default", "second", "copy"]
        assert chosen(all_databases=True) == distinct(["default", "second", "copy"]) == ["default", "second"]


class LiteRouter:
    """Sends jobs to a database that cannot have them, and allows the tables in some others."""

    def __init__(self, *allowed):
        self.allowed = allowed

    def db_for_write(self, model, **hints):
        return "lite"

    def allow_migrate(self, db, app_label, **hints):
        return db in self.allowed


@pytest.mark.usefixtures("aliases")
def test_all_databases_leave_out_the_routers_choice_without_tables():
    with override_settings(DATABASE_ROUTERS=[LiteRouter("lite", "second")]):
        assert queue_aliases() == ["lite", "second"]
        assert chosen(all_databases=True) == ["second"]
    with (
        override_settings(DATABASE_ROUTERS=[LiteRouter()]),
        pytest.raises(CommandError, match="No database has the tables"),
    ):
        chosen(all_databases=True)


@pytest.mark.usefixtures("aliases")
@pytest.mark.parametrize(
    ("databases", "all_databases", "message"),
    [
        (("second", "lite"), False, "The database 'lite' is not PostgreSQL"),
        (("second", "nowhere"), False, "DATABASES has no alias 'nowhere'"),
        (("default", "copy"), False, "--database copy leads to the same database as another alias"),
        (("default",), True, "Pass --database or --all-databases, not both"),
    ],
)
def test_runworker_invalid_databases_raise(databases, all_databases, message):
    with pytest.raises(CommandError, match=message):
        chosen(*databases, all_databases=all_databases)


def test_banner_names_all_databases():
    line = runworker.banner(Options(database="a", processes=2), aliases=["a", "b"])
    assert "databases 'a', 'b', each with all queues, 2 processes x 10 jobs" in line
