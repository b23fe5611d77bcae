"""A worker outlives every state of its database: it says so once, not a thousand times, and goes on by itself.

Each case has a worker, a role and a database of its own on one server, and all of them are ill at the same time, so
that the whole takes as long as one. `tests/process/test_network.py` has what a network does to statements under way.
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

ILL_SECONDS = 3.0
PATIENCE_SECONDS = 30.0
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
    """A worker, and what happens to its database."""

    works_on = False
    """Whether jobs run all the same."""

    def __init__(self, server: Server, tmp_path: Path) -> None:
        self.server = server
        self.name = self.role = name = type(self).__name__.lower()
        self.going_on = tmp_path / f"{name}.go"
        self.started = tmp_path / f"{name}.started"
        self.tmp_path = tmp_path
        self.ill_at = 0.0
        self.lines: list[tuple[str, float]] = []
        self.worked_on = False
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
        self.enqueue("wait_for_file", f'{{"args":["{self.going_on}"],"kwargs":{{"started":"{self.started}"}}}}', 1)
        self.enqueue("noop", NO_ARGUMENTS, BEFORE - 1)
        log = self.tmp_path / f"{self.name}.log"
        self.worker = Worker(log, "--health-file", str(self.health_file), database=self.settings(), LEASE=30.0)

    def enqueue(self, task: str, arguments: str, count: int, *, in_seconds: float = 0.0) -> None:
        with self.connect() as admin:
            admin.execute(ENQUEUE, [task, arguments, in_seconds, count])

    def left(self) -> int:
        """How many jobs have not succeeded."""
        with self.connect() as admin:
            return int(scalar(admin, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'"))

    def begin(self) -> None:
        """Fall ill."""

    def end(self) -> None:
        """Be well again."""

    def run(self, *statements: str, database: str | None = None) -> None:
        with self.connect() if database is None else self.server.connect() as admin:
            for statement in statements:
                admin.execute(statement.format(role=self.role, name=self.name))

    def tells_of_trouble(self) -> bool:
        self.health = json.loads(self.health_file.read_text())
        return bool(self.health["status"] == "database away")

    def lines_since(self, instant: float) -> list[tuple[str, float]]:
        """The lines of level WARNING and above: the process, and when. Each line of a traceback counts."""
        found, pid, logged_at, counts = [], "", 0.0, False
        for line in self.worker.said.splitlines():
            if match := LINE.match(line):
                logged_at = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
                pid, counts = match[2], match[3] not in ("DEBUG", "INFO")
            if counts and logged_at >= instant:
                found.append((pid, logged_at))
        return found


class Settings(Case):
    """Settings of the role that the engine's sessions do without."""

    works_on = True

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
    """A right on one table alone: what does not need it goes on."""

    def begin(self) -> None:
        self.run("REVOKE UPDATE ON pgqueue_execution FROM {role}")

    def end(self) -> None:
        self.run("GRANT UPDATE ON pgqueue_execution TO {role}")


class NoPassword(Case):
    def begin(self) -> None:
        self.run("ALTER ROLE {role} PASSWORD 'two'", TERMINATE)

    def end(self) -> None:
        self.run("ALTER ROLE {role} PASSWORD 'one'")


class NoRoom(Case):
    """The same SQLSTATE as when all of max_connections are taken."""

    def begin(self) -> None:
        self.run("ALTER ROLE {role} CONNECTION LIMIT 0", TERMINATE)

    def end(self) -> None:
        self.run("ALTER ROLE {role} CONNECTION LIMIT -1")


class Locked(Case):
    """As by a migration that takes its time."""

    def begin(self) -> None:
        self.held = self.connect()
        self.held.execute("BEGIN")
        self.held.execute("LOCK TABLE pgqueue_job, pgqueue_execution IN ACCESS EXCLUSIVE MODE")

    def end(self) -> None:
        self.held.close()


class NoName(Case):
    """The name of the server's host leads nowhere."""

    def settings(self) -> dict[str, Any]:
        self._lead_to(str(self.server.settings["HOST"]))
        return {**super().settings(), "HOST": "", "PORT": "", "OPTIONS": {"service": "mine"}}

    def _lead_to(self, host: str) -> None:
        (self.tmp_path / "services").write_text(f"[mine]\nhost={host}\n")

    def begin(self) -> None:
        self._lead_to("nowhere.invalid")
        self.run(TERMINATE)

    def end(self) -> None:
        self._lead_to(str(self.server.settings["HOST"]))


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
def endured(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[list[Case]]:
    """Every case, after its time of illness and its recovery."""
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
            case.enqueue("noop", NO_ARGUMENTS, MEANWHILE, in_seconds=ILL_SECONDS / 2)
        be_ill(cases)
        yield cases


def be_ill(cases: list[Case]) -> None:
    for case in cases:
        case.ill_at = time.time()
        case.begin()
    wait_for_all([case for case in cases if case.works_on], lambda case: case.left() == 1)
    time.sleep(max(0.0, cases[0].ill_at + ILL_SECONDS - time.time()))
    wait_for_all([case for case in cases if not case.works_on], Case.tells_of_trouble)
    for case in cases:
        case.lines = case.lines_since(case.ill_at)
        case.worked_on = case.works_on and case.left() == 1
        case.end()
        case.going_on.touch()
    wait_for_all(cases, lambda case: case.left() == 0)


def wait_for_all(cases: Iterable[Case], condition: Callable[[Case], bool]) -> None:
    """Wait until a condition has come about for all, but not for ever: the tests tell for which it has not."""
    waiting, deadline = list(cases), time.monotonic() + PATIENCE_SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = [case for case in waiting if not condition(case)]
        time.sleep(0.05)


@pytest.fixture(params=CASES, ids=lambda kind: kind.__name__)
def case(request: pytest.FixtureRequest, endured: list[Case]) -> Case:
    return next(case for case in endured if type(case) is request.param)


def test_it_lives_and_has_done_all_once_and_charged_nothing(case, count=BEFORE + MEANWHILE):
    assert case.worker.process.poll() is None, case.worker.said
    with case.connect() as admin:
        assert scalar(admin, "SELECT count(*) FROM pgqueue_job") == count
        states = admin.execute("SELECT DISTINCT state, attempt, crashes FROM pgqueue_job").fetchall()
        assert states == [("succeeded", 1, 0)], case.worker.said
        assert scalar(admin, "SELECT count(*) FROM pgqueue_execution WHERE outcome = 'succeeded'") == count
    assert "set aside" not in case.worker.said


def test_it_works_on_where_it_can(case):
    assert case.worked_on is case.works_on, case.worker.said


def test_it_says_so_and_not_more_than_once_a_second(case):
    assert case.lines or case.works_on, case.worker.said
    assert_once_a_second(case, case.lines)


def assert_once_a_second(case: Case, lines: list[tuple[str, float]]) -> None:
    """Each process logs at most one line per second."""
    for place, (pid, logged_at) in enumerate(lines):  # a line is written a little after it was allowed
        soon = [other for other in lines[place:] if other[0] == pid and other[1] < logged_at + 0.8]
        assert len(soon) == 1, case.worker.said


def test_its_health_tells_that_it_lives_and_is_not_ready(case):
    if case.works_on:
        return
    assert case.health["status"] == "database away"
    assert case.health["errors"] + sum(process["errors"] for process in case.health["processes"]) > 0
    assert health.judge(str(case.health_file))[0]


def test_it_says_when_it_is_over(case):
    if not case.works_on:
        case.worker.wait_until(lambda: "database outage is over" in case.worker.said)
        case.worker.wait_until(lambda: health.judge(str(case.health_file), ready=True)[0])


def test_a_server_that_stops_and_then_rejects_and_then_only_reads(endured):
    """As when it fails over. The last test of this file: all but one worker are ended, to have it quick."""
    began_at = time.time()
    case, *others = endured
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
    test_it_lives_and_has_done_all_once_and_charged_nothing(case, BEFORE + 2 * MEANWHILE)
    lines = case.lines_since(began_at)
    assert lines, case.worker.said
    assert_once_a_second(case, lines)
