"""The worker survives database outages: it logs them at most once a second, and continues by itself.

Each case has its own worker, role and database on one server. All outages happen at the same time, so that all cases
together take as long as one. `tests/process/test_network.py` tests what a network does to statements in progress.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from django_pgqueue import health
from tests.helpers import scalar

from .harness import Worker
from .server import Server

pytestmark = pytest.mark.process

OUTAGE_SECONDS = 3.0
MAX_WAIT_SECONDS = 30.0
MAX_JOB_SECONDS = 4 * MAX_WAIT_SECONDS
"""How long the job that runs during the outage may wait for its end. It must outlast all waits of the test."""
BEFORE, MEANWHILE = 20, 30
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
TABLES = ("pgqueue_job", "pgqueue_execution", "pgqueue_worker")
ENQUEUE = (
    "INSERT INTO pgqueue_job (task_name, arguments, run_after) "
    "SELECT 'tests.app.tasks.' || %s, %s::json, now() + make_interval(secs => %s) FROM generate_series(1, %s)"
)
NO_ARGUMENTS = '{"args":[],"kwargs":{}}'
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (\d+) \S+ (\w+) ")


class Case:
    """A worker, and an outage of its database."""

    jobs_continue = False
    """Whether jobs continue to run during the outage."""

    def __init__(self, server: Server, tmp_path: Path) -> None:
        self.server = server
        self.name = self.role = name = type(self).__name__.lower()
        self.end_file = tmp_path / f"{name}.go"
        self.started = tmp_path / f"{name}.started"
        self.tmp_path = tmp_path
        self.outage_began_at = 0.0
        self.lines: list[tuple[str, float]] = []
        self.jobs_continued = False
        self.health_file = tmp_path / f"{name}.json"
        self.health: dict[str, Any] = {}
        with server.connect() as admin:
            admin.execute(f"CREATE ROLE {self.role} LOGIN PASSWORD 'one'")
            admin.execute(f"CREATE DATABASE {self.name} TEMPLATE migrated")
        with self.connect() as admin:
            admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {self.role}")
            admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {self.role}")

    def settings(self) -> dict[str, Any]:
        return self.server.settings | {"NAME": self.name, "USER": self.role, "PASSWORD": "one"}

    def connect(self) -> psycopg.Connection:
        host, user = str(self.server.settings["HOST"]), str(self.server.settings["USER"])
        return psycopg.connect(host=host, user=user, dbname=self.name, autocommit=True)

    def start(self) -> None:
        arguments = {"args": [str(self.end_file), MAX_JOB_SECONDS], "kwargs": {"started": str(self.started)}}
        self.enqueue("wait_for_file", json.dumps(arguments), 1)
        self.enqueue("noop", NO_ARGUMENTS, BEFORE - 1)
        log = self.tmp_path / f"{self.name}.log"
        self.worker = Worker(log, "--health-file", str(self.health_file), database=self.settings(), LEASE=30.0)

    def enqueue(self, task: str, arguments: str, count: int, *, in_seconds: float = 0.0) -> None:
        with self.connect() as admin:
            admin.execute(ENQUEUE, [task, arguments, in_seconds, count])

    def left(self) -> int:
        """Return how many jobs have not succeeded."""
        with self.connect() as admin:
            return int(scalar(admin, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'"))

    def begin(self) -> None:
        """Start the outage."""

    def end(self) -> None:
        """End the outage."""

    def run(self, *statements: str, database: str | None = None) -> None:
        with self.connect() if database is None else self.server.connect() as admin:
            for statement in statements:
                admin.execute(statement.format(role=self.role, name=self.name))

    end_line = "database outage is over"
    """What the worker logs at the end."""

    def reports_outage(self) -> bool:
        self.health = json.loads(self.health_file.read_text())
        return bool(self.health["status"] == "database away")

    def lines_since(self, instant: float) -> list[tuple[str, float]]:
        """Return (process id, time) of each log line of level WARNING or above. Each line of a traceback counts."""
        found, pid, logged_at, counts = [], "", 0.0, False
        for line in self.worker.said.splitlines():
            if match := LINE.match(line):
                logged_at = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
                pid, counts = match[2], match[3] not in ("DEBUG", "INFO")
            if counts and logged_at >= instant:
                found.append((pid, logged_at))
        return found


class Settings(Case):
    """Settings of the role that do not apply to the engine's sessions."""

    jobs_continue = True

    def begin(self) -> None:
        for setting in ("statement_timeout = 1", "lock_timeout = 1", "idle_in_transaction_session_timeout = 1"):
            self.run(f"ALTER ROLE {{role}} SET {setting}")
        self.run("ALTER ROLE {role} SET default_transaction_isolation = serializable", TERMINATE)

    def end(self) -> None:
        self.run("ALTER ROLE {role} RESET ALL")


class ReadOnly(Case):
    def begin(self) -> None:
        self.run("ALTER ROLE {role} SET default_transaction_read_only = on", TERMINATE)

    def end(self) -> None:
        self.run("ALTER ROLE {role} RESET ALL")


class NoTables(Case):
    def begin(self) -> None:
        self.run(*(f"ALTER TABLE {table} RENAME TO gone_{table}" for table in TABLES))

    def end(self) -> None:
        self.run(*(f"ALTER TABLE gone_{table} RENAME TO {table}" for table in TABLES))


class NoDatabase(Case):
    def begin(self) -> None:
        self.run("ALTER DATABASE {name} ALLOW_CONNECTIONS false", TERMINATE, database="postgres")
        self.run("ALTER DATABASE {name} RENAME TO gone_{name}", database="postgres")

    def end(self) -> None:
        self.run("ALTER DATABASE gone_{name} RENAME TO {name}", database="postgres")
        self.run("ALTER DATABASE {name} ALLOW_CONNECTIONS true", database="postgres")


class NoConnect(Case):
    def begin(self) -> None:
        self.run("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC, {role}", TERMINATE)

    def end(self) -> None:
        self.run("GRANT CONNECT ON DATABASE {name} TO {role}")


class NoRight(Case):
    """The role lacks a privilege on two tables only. Statements that do not need it continue to work."""

    def begin(self) -> None:
        self.run("REVOKE UPDATE ON pgqueue_execution, pgqueue_worker FROM {role}")

    def end(self) -> None:
        self.run("GRANT UPDATE ON pgqueue_execution, pgqueue_worker TO {role}")

    end_line = "the duty 'rescue' of the maintenance works again"

    def reports_outage(self) -> bool:
        """Wait for the duty that needs the privilege. Refused completions and heartbeats have lines of their own."""
        return super().reports_outage() and "the duty 'rescue' of the maintenance failed" in self.worker.said


class NoPassword(Case):
    def begin(self) -> None:
        self.run("ALTER ROLE {role} PASSWORD 'two'", TERMINATE)

    def end(self) -> None:
        self.run("ALTER ROLE {role} PASSWORD 'one'")


class NoRoom(Case):
    """The SQLSTATE is the same as when all of max_connections are in use."""

    def begin(self) -> None:
        self.run("ALTER ROLE {role} CONNECTION LIMIT 0", TERMINATE)

    def end(self) -> None:
        self.run("ALTER ROLE {role} CONNECTION LIMIT -1")


class Locked(Case):
    """The tables are locked, as by a slow migration."""

    def begin(self) -> None:
        self.locking = self.connect()
        self.locking.execute("BEGIN")
        self.locking.execute("LOCK TABLE pgqueue_job, pgqueue_execution IN ACCESS EXCLUSIVE MODE")

    def end(self) -> None:
        self.locking.close()


class NoName(Case):
    """The name of the server's host cannot be resolved."""

    def settings(self) -> dict[str, Any]:
        self._set_service_host(str(self.server.settings["HOST"]))
        return {**super().settings(), "HOST": "", "PORT": "", "OPTIONS": {"service": "mine"}}

    def _set_service_host(self, host: str) -> None:
        (self.tmp_path / "services").write_text(f"[mine]\nhost={host}\n")

    def begin(self) -> None:
        self._set_service_host("nowhere.invalid")
        self.run(TERMINATE)

    def end(self) -> None:
        self._set_service_host(str(self.server.settings["HOST"]))


CASES = [
    Settings,
    ReadOnly,
    NoTables,
    NoDatabase,
    NoConnect,
    NoRight,
    NoPassword,
    NoRoom,
    Locked,
    NoName,
]


def serve(home: Path) -> Server:
    server = Server(home)
    with server.connect() as admin:
        admin.execute("CREATE DATABASE migrated TEMPLATE postgres")
    hba = server.cluster.data / "pg_hba.conf"
    hba.write_text("local all nopassword scram-sha-256\n" + hba.read_text())
    with server.connect() as admin:
        admin.execute("SELECT pg_reload_conf()")
    return server


@pytest.fixture(scope="module")
def cases_after_outage(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[list[Case]]:
    """Run all cases, and return them after their outage and recovery."""
    tmp_path = tmp_path_factory.mktemp("endurance")
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgq", dir="/tmp")))
        home.chmod(0o755)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        server = serve(home)
        stack.callback(server.cluster.stop, "immediate")
        cases = [kind(server, tmp_path) for kind in CASES]
        for case in cases:
            case.start()
            stack.callback(case.worker.end)
        wait_for_all(cases, lambda case: case.started.exists() and case.left() == 1)
        for case in cases:
            case.enqueue("noop", NO_ARGUMENTS, MEANWHILE, in_seconds=OUTAGE_SECONDS / 2)
        cause_outages(cases)
        yield cases


def cause_outages(cases: list[Case]) -> None:
    for case in cases:
        case.outage_began_at = time.time()
        case.begin()
    wait_for_all([case for case in cases if case.jobs_continue], lambda case: case.left() == 1)
    time.sleep(max(0.0, cases[0].outage_began_at + OUTAGE_SECONDS - time.time()))
    wait_for_all([case for case in cases if not case.jobs_continue], lambda case: case.reports_outage())
    for case in cases:
        case.lines = case.lines_since(case.outage_began_at)
        case.jobs_continued = case.jobs_continue and case.left() == 1
        case.end()
        case.end_file.touch()
    wait_for_all(cases, lambda case: case.left() == 0)


def wait_for_all(cases: Iterable[Case], condition: Callable[[Case], bool]) -> None:
    """Wait until a condition is true for all cases, within a limit. Tests report the cases where it stays false."""
    waiting, deadline = list(cases), time.monotonic() + MAX_WAIT_SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = [case for case in waiting if not condition(case)]
        time.sleep(0.05)


@pytest.fixture(params=CASES, ids=lambda kind: kind.__name__)
def case(request: pytest.FixtureRequest, cases_after_outage: list[Case]) -> Case:
    return next(case for case in cases_after_outage if type(case) is request.param)


def test_worker_after_outage_ran_each_job_once_uncharged(case, count=BEFORE + MEANWHILE):
    assert case.worker.process.poll() is None, case.worker.said
    with case.connect() as admin:
        assert scalar(admin, "SELECT count(*) FROM pgqueue_job") == count
        states = admin.execute("SELECT DISTINCT state, attempt, crashes FROM pgqueue_job").fetchall()
        assert states == [("succeeded", 1, 0)], case.worker.said
        assert scalar(admin, "SELECT count(*) FROM pgqueue_execution WHERE outcome = 'succeeded'") == count
    assert "set aside" not in case.worker.said


def test_worker_during_outage_runs_jobs_where_possible(case):
    assert case.jobs_continued is case.jobs_continue, case.worker.said


def test_worker_during_outage_logs_at_most_once_a_second(case):
    assert case.lines or case.jobs_continue, case.worker.said
    assert_once_a_second(case, case.lines)


def assert_once_a_second(case: Case, lines: list[tuple[str, float]]) -> None:
    """Assert that each process logs at most one line per second.

    A line is written shortly after it was permitted, or up to 3 s later if the machine stalls.
    """
    for pid in {pid for pid, _ in lines}:
        times = [logged_at for other, logged_at in lines if other == pid]
        assert len(times) <= 1 + times[-1] - times[0] + 3, case.worker.said


def test_health_during_outage_is_database_away_but_alive(case):
    if case.jobs_continue:
        return
    assert case.health["status"] == "database away"
    assert case.health["errors"] + sum(process["errors"] for process in case.health["processes"]) > 0
    assert health.judge(str(case.health_file))[0]


def test_worker_after_outage_logs_its_end_and_is_ready(case):
    if not case.jobs_continue:
        case.worker.wait_until(lambda: case.end_line in case.worker.said)
        case.worker.wait_until(lambda: health.judge(str(case.health_file), ready=True)[0])


def test_worker_during_failover_limits_log_and_runs_all_jobs(cases_after_outage):
    """As in a failover, the server stops, then rejects connections, and then is read-only.

    This must be the last test of the file: it ends all workers except one, to be quick.
    """
    began_at = time.time()
    case, *others = cases_after_outage
    for other in others:
        other.worker.end()
    cluster = case.server.cluster
    case.enqueue("noop", NO_ARGUMENTS, MEANWHILE, in_seconds=0.5)
    for hot_standby in ("off", "on"):
        cluster.stop("fast")
        time.sleep(1)
        (cluster.data / "standby.signal").touch()
        cluster.settings["hot_standby"] = hot_standby
        cluster.start()
        time.sleep(1.5)
    with case.server.connect() as admin:
        assert scalar(admin, "SELECT pg_promote()")
    case.worker.wait_until(lambda: case.left() == 0)
    test_worker_after_outage_ran_each_job_once_uncharged(case, BEFORE + 2 * MEANWHILE)
    lines = case.lines_since(began_at)
    assert lines, case.worker.said
    assert_once_a_second(case, lines)
