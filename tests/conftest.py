"""Fixtures that several test files use, and the options and the order of a test run."""

import gc
import signal
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from django.core.management.color import no_style
from django.db import connection as django_connection
from django.db import connections
from django.db.backends.postgresql.operations import DatabaseOperations
from django.test import TransactionTestCase
from hypothesis import HealthCheck, Phase, settings

from django_pgqueue.db import engine_connection, notifications, statements
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import completions
from django_pgqueue.lifecycle.types import Cancelled, Claimed, ExecutionKey, Released
from django_pgqueue.stats.causes import current, facts
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests import helpers
from tests.distribution import ByFile, place_of

COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("pgqueue", max_examples=400, **COMMON)
settings.register_profile("quick", max_examples=10, **COMMON)
settings.register_profile("mutation", max_examples=400, phases=[Phase.explicit, Phase.generate], **COMMON)
settings.load_profile("pgqueue")


SLOW = ("concurrency", "deploys", "example", "faults", "process", "security")
"""Directories that `--only-quick` leaves out, except for tests with the marker `quick`."""


FROM_APPS = {"django_content_type", "auth_permission"}
"""Tables whose rows follow from the apps. No test writes to them, so they need not be emptied and filled again."""
OWN_APPS = ["django_pgqueue", "tests.app"]
"""The apps whose tables are emptied after a test with the fixture `committing`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--browser`, `--only-quick` and `--stateful-examples`."""
    parser.addoption("--browser", action="store_true", help="run the tests in a browser, which `bin/browser` does")
    parser.addoption("--only-quick", action="store_true", help="leave out the tests that take long")
    parser.addoption(
        "--stateful-examples", type=int, default=0, help="histories for each state machine, without a time limit"
    )


@pytest.fixture
def unused_port() -> int:
    """Return a TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def pytest_make_parametrize_id(val: object) -> str | None:
    """Use the function's name as the id of a task: its repr has an address, which differs in each xdist worker."""
    return val.func.__name__ if isinstance(val, Task) else None


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of files under xdist, and reduce the examples of Hypothesis for `--only-quick`.

    By default, xdist orders the files by their number of tests, and the slow files would start last.

    A shell starts its background jobs with Ctrl-C ignored, and so do the processes that they start. Tests that press
    Ctrl-C would then wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.option.loadscopereorder = False
    if config.getoption("--only-quick"):
        settings.load_profile("quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """Use `ByFile` for `--dist loadfile`."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def is_in_slow_directory(path: Path) -> bool:
    """Return whether a file is in one of the `SLOW` directories."""
    return not set(SLOW).isdisjoint(path.parts)


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test is part of `--only-quick`."""
    if item.get_closest_marker("quick"):
        return True
    is_slow = item.get_closest_marker("slow") or item.get_closest_marker("process")
    return not is_slow and not is_in_slow_directory(item.path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests in a browser, unless they are asked for: they need more packages and other settings.

    Under `--only-quick`, do not import files without a quick test: importing all files takes seconds.
    """
    if collection_path == Path(__file__).parent / "browser":
        return None if config.getoption("--browser") else True
    if not config.getoption("--only-quick") or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    is_slow = is_in_slow_directory(collection_path) or "pytestmark = pytest.mark.slow" in text
    return (is_slow and "pytest.mark.quick" not in text) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select and order the tests, and mark the tests that commit.

    With the marker, a test uses the test database, and pytest-django empties only our tables after it. With
    `--stateful-examples`, the tests have no time limit.
    """
    if config.getoption("--only-quick"):
        items[:] = [item for item in items if is_quick(item)]
    if config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(item.nodeid))
    for item in items:
        if config.getoption("--stateful-examples"):
            item.add_marker(pytest.mark.timeout(0), append=False)
        if "committing" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("django_db"):
            item.add_marker(pytest.mark.django_db(transaction=True, available_apps=OWN_APPS))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the 500,000 objects of the collected tests out of garbage collection, because they live until the end.

    Otherwise each full collection would visit them all.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> Iterator[None]:
    """Empty the tables with DELETE after each test that commits, because the TRUNCATE of Django takes 35 ms."""

    def sql_flush(self: DatabaseOperations, style: Any, tables: Sequence[str], **options: Any) -> list[str]:
        return ["; ".join(f"DELETE FROM {self.quote_name(table)}" for table in tables)] if tables else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
        yield


@pytest.fixture(scope="session")
def cleaner(django_db_setup: None) -> Iterator[Callable[[], EngineConnection]]:
    """Return a function that returns the connection that empties the tables before a test.

    The tests share it, because a new session would read the catalog of all tables first, which takes 7 ms.
    """
    opened: list[EngineConnection] = []

    def connect() -> EngineConnection:
        if not opened or opened[-1].closed:
            opened.append(helpers.connect())
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@cache
def tables_of(alias: str) -> list[str]:
    """Return the tables that tests may write to."""
    found = connections[alias].introspection.django_table_names(only_existing=True, include_views=False)
    return sorted(set(found) - FROM_APPS)


def empty_all(alias: str) -> None:
    """Empty the tables of all apps."""
    operations = connections[alias].ops
    operations.execute_sql_flush(operations.sql_flush(no_style(), tables_of(alias)))


@pytest.fixture(scope="session")
def clean(cleaner: Callable[[], EngineConnection]) -> Iterator[Callable[[], None]]:
    """Return a function that empties the tables, and let Django use it after the tests with `committing`.

    Django's own command opens a session for each test, looks up the names of its tables, and fills `FROM_APPS` again.
    """

    def clean() -> None:
        try:
            helpers.begin_anew(cleaner())
        except psycopg.OperationalError:  # the test has ended all sessions
            helpers.begin_anew(cleaner())

    def fixture_teardown(self: TransactionTestCase) -> None:
        if self.available_apps == OWN_APPS:
            clean()
        elif self.available_apps is None:
            for alias in self._databases_names(include_mirrors=False):  # type: ignore[attr-defined]  # not public
                empty_all(alias)
        else:
            assert self.available_apps == [], "the tables of no app are emptied"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", fixture_teardown)
        yield clean


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """Forget what the registry has derived from the tasks of a test, such as tasks of the documentation's examples."""
    yield
    registry._limits = registry._chunk_keys = None


@pytest.fixture(autouse=True)
def fresh_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read counts and causes anew each time, because tests change rows between two readings."""
    current.forget()
    monkeypatch.setattr(current, "AGE_LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(facts, "_may_read_schedules", set())


@pytest.fixture(autouse=True)
def fresh_startup_options() -> Iterator[None]:
    """Forget that the server has refused start-up options, because tests imitate poolers that do so."""
    yield
    for alias, known in list(engine_connection._startup.items()):
        if not known.are_accepted:
            del engine_connection._startup[alias]


@pytest.fixture
def committing(clean: Callable[[], None]) -> Iterator[None]:
    """Empty the tables for a test that commits, on several connections or on connections other than Django's."""
    clean()
    notifications._last_wake_at.clear()
    yield
    statements.clock.shift_seconds = 0.0


@pytest.fixture
def new_connection(committing: None) -> Iterator[Callable[[], EngineConnection]]:
    """Return a function that opens engine connections to the test database. All are closed at the end."""
    opened: list[EngineConnection] = []

    def connect() -> EngineConnection:
        opened.append(helpers.connect())
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def engine(new_connection: Callable[[], EngineConnection]) -> EngineConnection:
    """Return an engine connection, configured as in a worker."""
    connection = new_connection()
    assert connection.info.dbname == django_connection.settings_dict["NAME"]
    assert connection.info.dbname.startswith("test_")
    return connection


@pytest.fixture
def counted_pages(engine: EngineConnection) -> Iterator[None]:
    """Let only this test decide how many pages a scan or a claim reads.

    The indexes of jobs and pauses keep no entries of earlier tests, through which it would walk, and autovacuum removes
    none of this test.
    """
    engine.execute("TRUNCATE pgqueue_job, pgqueue_pause")
    engine.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
    yield
    engine.execute("ALTER TABLE pgqueue_job RESET (autovacuum_enabled)")


@pytest.fixture
def second(new_connection: Callable[[], EngineConnection]) -> EngineConnection:
    """Return the connection of the second side of a race."""
    return new_connection()


@pytest.fixture
def watcher(new_connection: Callable[[], EngineConnection]) -> EngineConnection:
    """Return a connection that takes no part in a race and only observes it."""
    return new_connection()


class Specimen(NamedTuple):
    """A job in a known state, and its last execution: open if the job is running, otherwise closed. 0 means none."""

    job_id: int
    execution_id: int
    key: ExecutionKey


@pytest.fixture
def job_in(engine: EngineConnection) -> Callable[[str], Specimen]:
    """Return a function that makes a job in the given state, through the transitions that lead to it."""
    ends: dict[str, Callable[[Claimed], object]] = {
        "ready": lambda one: completions.release(engine, [Released(one.key)]),
        "ready later": lambda one: completions.fail(engine, helpers.failed(one.key, 3600.0)),
        "running": lambda one: None,
        "succeeded": lambda one: completions.succeed(engine, helpers.succeeded(one.key, result="7")),
        "dead": lambda one: completions.fail(engine, helpers.failed(one.key, None)),
        "cancelled": lambda one: completions.end_cancelled(engine, [Cancelled(one.key, *helpers.AGES, "as asked")]),
        "gone": lambda one: engine.execute(
            "WITH job AS (DELETE FROM pgqueue_job WHERE id = %(job_id)s) "
            "DELETE FROM pgqueue_execution WHERE job_id = %(job_id)s",
            {"job_id": one.job_id},
        ),
    }

    def make(state: str) -> Specimen:
        job_id = helpers.make_job(engine)
        if state in ("waiting", "waiting later"):
            [waiting_id] = helpers.make_nodes(engine, needs=[job_id])
            if state == "waiting later":
                engine.execute("UPDATE pgqueue_job SET run_after = now() + interval '1 h' WHERE id = %s", [waiting_id])
            engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [job_id])
            return Specimen(waiting_id, 0, ExecutionKey(0, 0.0))
        if state == "new":
            return Specimen(job_id, 0, ExecutionKey(0, 0.0))
        claimed = helpers.claim_one(engine)
        assert claimed.job_id == job_id, "the claim returned another job than the new one"
        ends[state](claimed)
        return Specimen(job_id, claimed.execution_id, claimed.key)

    return make


@pytest.fixture
def other(committing: None) -> Iterator[Any]:
    """Provide a second alias, `other`, with its own connection to the same test database."""
    connections.settings["other"] = {**connections.settings["default"], **connections["default"].settings_dict}
    connections["other"].connect()  # bypasses Django's guard, which does not know aliases that were added later
    yield connections["other"]
    connections["other"].close()
    del connections["other"]
    del connections.settings["other"]
