"""Helpers that several test files share: they make jobs, read whole rows, and wait for conditions with a deadline."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing as closing
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.apps import apps
from psycopg.rows import dict_row

from django_pgqueue.db import engine_connection
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.declared.limits import CallLimit
from django_pgqueue.ends import end_checks
from django_pgqueue.ends.end_check import Reactor
from django_pgqueue.lifecycle import claims, enqueueing, graphs, rescues, schedules, ticks, unique
from django_pgqueue.lifecycle.enqueueing import NewJob, Uniqueness
from django_pgqueue.lifecycle.schedules import Definition, Scheduled
from django_pgqueue.lifecycle.ticks import Fired, Tick
from django_pgqueue.lifecycle.types import Claimed, Cursor, ExecutionKey, Failed, Lane, Succeeded, TransitionResult
from django_pgqueue.options.task_options import UNSET, JobOptions
from django_pgqueue.states import Outcome
from django_pgqueue.worker.execution.job_events import FOREGROUND

NOOP = "tests.app.tasks.noop"
NO_ARGUMENTS = '{"args":[],"kwargs":{}}'
DEFAULT_LANE = Lane("default", 0)
TABLES = (
    *("pgqueue_job", "pgqueue_execution", "pgqueue_worker", "pgqueue_rollup"),
    *("pgqueue_archived_job", "pgqueue_audit", "pgqueue_audit_job"),
    *("pgqueue_pause", "pgqueue_schedule", "pgqueue_schedulerun", "pgqueue_uniqueness_window", "pgqueue_installation"),
    *("pgqueue_execution_log", "pgqueue_search_key", "pgqueue_worker_request", "pgqueue_limit_state"),
    *("pgqueue_limit_override", "pgqueue_open_breaker", "pgqueue_breaker_count", "pgqueue_step", "pgqueue_event"),
    "pgqueue_dependency",
    *("pgqueue_batch", "pgqueue_batch_removal"),
)
AGES = 20e-6, 10e-6
"""Seconds since the made-up start and end of an execution. Every claim is longer ago than that."""
Rows = dict[int, dict[str, Any]]


LOCK_WAIT_SECONDS = 20.0
"""How long a session of a test waits for a lock. An engine connection waits for 2 s, which a busy machine can exceed
while the test lets one session wait for another."""


def connect(role: str = "test", *, durable: bool = False) -> EngineConnection:
    """Open an engine connection to the test database. Its commits wait for the disk only if `durable` is true."""
    connection = engine_connection.connect("default", role)
    if not durable:
        connection.execute("SET synchronous_commit = off")
    connection.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS:g}s'")
    return connection


def empty_tables(connection: psycopg.Connection[Any]) -> None:
    connection.execute(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY; DELETE FROM auth_group")


@contextmanager
def without_statistics(connection: psycopg.Connection[Any], tables: Iterable[str]) -> Iterator[None]:
    """Empty all tables, and delete the planner's statistics of `tables`. Autovacuum is off for them in the block.

    Otherwise the planner knows the pages that an earlier test has filled. If an autovacuum came between, it knows no
    live rows in them, and reads the whole table. ANALYZE of an empty table keeps the statistics of rows that are gone.
    """
    names = list(tables)
    for name in names:
        connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    empty_tables(connection)
    connection.execute("DELETE FROM pg_statistic WHERE starelid = ANY (%s::text[]::regclass[])", [names])
    try:
        yield
    finally:
        empty_tables(connection)
        for name in names:
            connection.execute(f"ALTER TABLE {name} RESET (autovacuum_enabled)")


@contextmanager
def filled(
    connection: psycopg.Connection[Any], tables: Iterable[str], statements: Iterable[str], statistics: str
) -> Iterator[None]:
    """Fill tables by these statements. `statistics` is one of `tests.test_sql.STATISTICS`: when they are analysed."""
    names = list(tables)
    with without_statistics(connection, names):
        if statistics == "analysed idle":
            connection.execute(f"ANALYZE {', '.join(names)}")
        if statistics == "analysed at rest":
            come_to_rest(connection)
        for statement in statements:
            connection.execute(statement)
        if statistics == "analysed full":
            connection.execute(f"VACUUM ANALYZE {', '.join(names)}")
        yield


AT_REST = 100_000
HISTORY = {
    "pgqueue_job": (
        "(id, task_name, arguments, state, attempt, run_after, finished_at, batch_id) "
        "SELECT -n, 'noop', '{}', 'succeeded', 1, now(), now(), -1 - n / 10"
    ),
    "pgqueue_execution": (
        "(id, job_id, attempt, worker_id, claimed_at, lease_expires_at, outcome, finished_at) "
        "SELECT -n, -n, 1, 1, now(), now(), 'succeeded', now()"
    ),
    "pgqueue_step": (
        "(job_id, name, position, kind, attempt, started_at, finished_at, event_name, event_key, event_id) "
        "SELECT -n, 'old', 1, 'event', 1, now(), now(), 'old', n, -n"
    ),
    "pgqueue_event": "(id, name, key, sent_at) SELECT -n, 'old', n, now()",
    "pgqueue_dependency": "(job_id, needs_id, policy) SELECT -n, -n - 1, 'cancel'",
    "pgqueue_batch": "(id, closed_at, completed_at, succeeded_at) SELECT -n, now(), now(), now()",
}


def come_to_rest(connection: psycopg.Connection[Any]) -> None:
    """Add what a long time of work leaves behind, and let the planner see it: no job is ready, running or waiting.

    No job has had a unique key or a limit, so the planner also knows nothing about what a project begins to use later.
    """
    for table, rows in HISTORY.items():
        connection.execute(f"INSERT INTO {table} {rows} FROM generate_series(1, {AT_REST}) AS n")
    connection.execute(f"VACUUM ANALYZE {', '.join(HISTORY)}")


CLEAR = "; ".join(
    [
        *(f"DELETE FROM {table}" for table in (*TABLES, "auth_group")),
        "SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S' AND relname LIKE 'pgqueue%'",
    ]
)
IS_LARGE = "SELECT sum(pg_relation_size(name)) > 1000000 FROM unnest(%s::text[]) AS name"


def begin_anew(connection: psycopg.Connection[Any]) -> None:
    """Empty the tables as `empty_tables` does. If they have only a few rows, this takes 3 ms instead of 40 ms."""
    if scalar(connection, IS_LARGE, [list(TABLES)]):
        empty_tables(connection)
    else:
        connection.execute(CLEAR)


_cleared = 0


def clear_tables(connection: psycopg.Connection[Any]) -> None:
    """Empty the tables of jobs and executions, for tests that do it hundreds of times.

    A TRUNCATE would take ten times as long. Dead rows would slow down later statements, so each tenth call runs VACUUM.
    """
    global _cleared
    connection.execute("DELETE FROM pgqueue_execution")
    connection.execute("DELETE FROM pgqueue_job")
    connection.execute("SELECT setval('pgqueue_job_id_seq', 1, false), setval('pgqueue_execution_id_seq', 1, false)")
    _cleared += 1
    if _cleared % 10 == 0:
        connection.execute("VACUUM pgqueue_job, pgqueue_execution")


def make_jobs(connection, count: int = 1, **changes: Any) -> list[int]:
    """Enqueue due jobs of a known task, with the options in `changes`, and return their ids."""
    options = {
        "task_name": NOOP,
        "queue_name": "default",
        "priority": 0,
        "arguments": [NO_ARGUMENTS] * count,
        "max_attempts": 10,
        "run_after": None,
        "delay_seconds": 0.0,
        **changes,
    }
    options["arguments"] = f"[{','.join(options['arguments'])}]"
    return enqueueing.enqueue_many(connection, **options)


UNIQUE_CALL: dict[str, Any] = {
    "task_name": NOOP,
    "queue_name": "default",
    "priority": 0,
    "max_attempts": 10,
    "run_after": None,
    "delay_seconds": 0.0,
}


def unique_job(
    key: str | None,
    call: str = NO_ARGUMENTS,
    *,
    ready_only: bool = False,
    period_seconds: float | None = None,
    on_conflict: str = "skip",
    **changes: Any,
) -> NewJob:
    """Return a job with a unique key that is not added yet, with the options in `changes`."""
    rule = Uniqueness(ready_only, period_seconds, on_conflict, has_steps=False)
    return NewJob({**UNIQUE_CALL, **changes}, call, uniqueness=rule, key=key)


def enqueue_unique(
    connection, key: str, *, replace: bool = False, arguments: str = NO_ARGUMENTS, **changes: Any
) -> Any:
    """Enqueue a job with a unique key. Return None if another job has the key."""
    add = unique.replace if replace else unique.enqueue_unique
    return add(connection, unique_job(key, arguments, **changes))


def enqueue_for_period(connection, *keys: str | None, period_seconds: float = 3600.0, **changes: Any) -> list[int]:
    """Enqueue a job for each key without an open uniqueness window, and return the ids of the new jobs."""
    jobs = [unique_job(key, period_seconds=period_seconds, **changes) for key in keys]
    return [job.job_id for job in unique.enqueue_for_period(connection, jobs)]


def replace_for_period(connection, *keys: str, **changes: Any) -> list[int]:
    """Replace the call of each waiting job that has one of these keys, and return the ids of these jobs."""
    jobs = [unique_job(key, **changes) for key in keys]
    return [job.job_id for job, _ in unique.replace_for_period(connection, jobs)]


def make_job(connection, **changes: Any) -> int:
    [job_id] = make_jobs(connection, **changes)
    return job_id


def make_nodes(
    connection, count: int = 1, *, needs: Iterable[int] = (), policy: str = "cancel", batch_id=None
) -> list[int]:
    """Add nodes of a workflow, each of which depends on the jobs `needs`. Return their ids."""
    job_ids, needed = graphs.draw_ids(connection, count), list(needs)
    row = {"task_name": NOOP, "queue_name": "default", "priority": 0, "max_attempts": 10, "delay_seconds": 0.0}
    job = NewJob({**row, "batch_id": batch_id}, NO_ARGUMENTS)
    graphs.add_nodes(connection, job_ids, [bool(needed)] * count, [job] * count)
    edges = [(job_id, needs_id, policy) for job_id in job_ids for needs_id in needed]
    if edges:
        graphs.add_dependencies(connection, edges)
    return job_ids


def make_suspended_job(connection) -> int:
    """Add a job that a step suspends for an hour after its first attempt. Return its id."""
    job_id = make_job(connection, delay_seconds=3600.0)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, wake_at) "
            "SELECT id, 'long', 1, 'sleep', 1, enqueued_at, run_after FROM pgqueue_job WHERE id = %s",
            [job_id],
        )
    return job_id


def lanes_from_start(*lanes: Lane) -> dict[Lane, Cursor]:
    return dict.fromkeys(lanes or (DEFAULT_LANE,), Cursor())


def claim_all(connection, *lanes: Lane, limit: int = 500, worker_id: int = 1, **changes: Any) -> list[Claimed]:
    """Claim up to `limit` due jobs of these lanes, from the start of each lane, and all into free slots."""
    options = {"limit": limit, "free_slots": limit, "worker_id": worker_id, "lease_seconds": 60.0, **changes}
    return claims.claim(connection, lanes_from_start(*lanes), **options)


def definition(name: str = "nightly", **changes: Any) -> Definition:
    """Return the definition of a schedule of a known task: every minute, with the columns in `changes`."""
    columns = {
        "task_name": NOOP,
        "arguments": NO_ARGUMENTS,
        "expression": "* * * * *",
        "time_zone": "UTC",
        "missed": "latest",
        "if_running": "overlap",
        "jitter_seconds": 0.0,
        **changes,
    }
    given = {column: columns.pop(column) for column in JobOptions._fields if column in columns}
    options = JobOptions(**{"queue_name": "default", "priority": 0, "max_attempts": 10, **given})
    return Definition(name=name, options=options, **columns)


def make_schedule(connection, name: str = "nightly", *, due_in: float = 0.0, **changes: Any) -> int:
    """Add a schedule as the admin does, with its next tick in `due_in` seconds, and return its id."""
    [seen_at, _] = schedules.read_schedules(connection)
    next_run_at = seen_at + timedelta(seconds=due_in)
    made = schedules.add_schedule(connection, definition(name, **changes), origin="admin", next_run_at=next_run_at)
    assert made is not None
    return made


def new_job(
    key: str | None = None,
    period_seconds: float | None = None,
    *,
    search_keys: dict[str, str] | None = None,
    limit: CallLimit | None = None,
    **columns: Any,
) -> NewJob:
    """Return a job that is not added yet. A schedule gives it its arguments."""
    of_task = {"task_name": NOOP, "queue_name": "default", "priority": 0, "max_attempts": 10, "delay_seconds": 0.0}
    rule = None if key is None else Uniqueness(False, period_seconds, "skip", has_steps=False)
    return NewJob({**UNSET, **of_task, **columns}, NO_ARGUMENTS, search_keys, limit, rule, key)


def schedule_of(connection, schedule_id: int) -> Scheduled:
    [found] = [one for one in schedules.read_schedules(connection)[1] if one.schedule_id == schedule_id]
    return found


def tick_of(one: Scheduled, following_in: float = 60.0, **changes: Any) -> Tick:
    """Return the next tick of a schedule as it was read."""
    following_at = one.next_run_at + timedelta(seconds=following_in)
    return Tick(one, one.next_run_at, one.next_run_at, following_at, new_job())._replace(**changes)


def fire(connection, one: Scheduled, following_in: float = 60.0, **changes: Any) -> Fired | None:
    """Fire the next tick of a schedule as it was read."""
    return ticks.fire(connection, tick_of(one, following_in, **changes))


def claim_one(connection, **changes: Any) -> Claimed:
    [claimed] = claim_all(connection, limit=1, **changes)
    return claimed


def key_of(connection, execution_id: int) -> ExecutionKey:
    """Return the key of the execution with this id. If there is no such execution, its claim time is 0."""
    query = "SELECT floor(1000 * date_part('epoch', claimed_at)) FROM pgqueue_execution WHERE id = %s"
    row = connection.execute(query, [execution_id]).fetchone()
    return ExecutionKey(execution_id, row[0] if row else 0.0)


def succeeded(*keys: ExecutionKey, result: str | None = None) -> list[Succeeded]:
    return [Succeeded(key, result, *AGES) for key in keys]


def failed(key: ExecutionKey, delay_seconds: float | None = 0.0, outcome: str = "failed") -> list[Failed]:
    return [Failed(key, Outcome(outcome), delay_seconds, *AGES, "RuntimeError", "as asked", "...")]


def end_lease(connection, *execution_ids: int) -> None:
    """End the leases of these open executions. Without ids, end the leases of all open executions.

    The leases of their workers end too.
    """
    connection.execute(
        "UPDATE pgqueue_worker SET lease_expires_at = statement_timestamp() - interval '1 s' WHERE id IN ("
        "SELECT worker_id FROM pgqueue_execution WHERE outcome IS NULL AND (id = ANY(%(ids)s) OR %(ids)s = '{}'))",
        {"ids": list(execution_ids)},
    )
    connection.execute(
        "UPDATE pgqueue_execution SET lease_expires_at = statement_timestamp() - interval '1 s' "
        "WHERE outcome IS NULL AND (id = ANY(%(ids)s) OR %(ids)s = '{}')",
        {"ids": list(execution_ids)},
    )


def lease_of(job: Any) -> datetime:
    """Return the end of the lease of the worker that runs a job. Before its first heartbeat it has none."""
    job.refresh_from_db()
    worker = apps.get_model("pgqueue", "Worker").objects.get(pk=job.worker_id)
    return worker.lease_expires_at or job.enqueued_at


NAME_EXECUTIONS = (
    "UPDATE pgqueue_job AS job SET execution_id = execution.id, worker_id = execution.worker_id "
    "FROM pgqueue_execution AS execution "
    "WHERE execution.job_id = job.id AND execution.outcome IS NULL AND job.state = 'running'"
)
"""Writes the open execution into the row of each running job, as a claim does."""


def sweep_ends(connection, name: str, after_id: int = 0) -> end_checks.Swept:
    """Look at one page of the sweep with this name, as the maintenance of a worker does."""
    [(check, one)] = [(check, one) for check in end_checks.CHECKS for one in check.sweeps if one.name == name]
    return end_checks.sweep(connection, check, one, after_id, Reactor(FOREGROUND.react))


def rescue(connection, delay_seconds: float | None = 0.0) -> dict[int, TransitionResult]:
    done = rescues.rescue(connection, lambda held: delay_seconds, error="its worker was lost")
    return {held.execution_id: moved for held, moved in done}


def rescue_by(maintenance) -> None:
    """Rescue as the maintenance of a worker does when it has observed the leases for long enough."""
    maintenance.rescuer.rescue()
    maintenance.rescuer.watch._seconds += 3600.0
    maintenance.rescuer.rescue()


def rows_of(connection, table: str) -> Rows:
    """Return all rows of a table, with all columns, by their primary key, which is the first column."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    return {next(iter(row.values())): row for row in rows}


def everything(connection) -> dict[str, Rows]:
    return {table: rows_of(connection, table) for table in TABLES}


@contextmanager
def users_trigger(
    connection, condition: str, sqlstate: str = "P0001", table: str = "pgqueue_job", event: str = "UPDATE"
) -> Iterator[None]:
    """Add a trigger, as users can, that rejects every row for which a condition on OLD and NEW is true."""
    connection.execute(
        "CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF {condition} THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{sqlstate}'; END IF; "
        "RETURN coalesce(NEW, OLD); END$$"
    )
    connection.execute(
        f"CREATE TRIGGER users_rule BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION users_rule()"
    )
    try:
        yield
    finally:
        connection.execute("DROP FUNCTION users_rule CASCADE")


CHECKS = (
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE contype = 'c' AND connamespace = current_schema()::regnamespace AND conname ~ '^pgqueue_' "
    "AND conname !~ '_(run_after|span|policy)$'"
)


@contextmanager
def without_row_checks(connection) -> Iterator[None]:
    """Drop the check constraints of the tables, so that a test can write rows that violate them.

    The statements must survive such rows anyway. At the end, the tables are emptied and the constraints are restored.
    """
    checks = connection.execute(CHECKS).fetchall()
    assert len(checks) == 54, len(checks)
    for table, name, _ in checks:
        connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    try:
        yield
    finally:
        empty_tables(connection)
        for table, name, definition in checks:
            connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")


def job_row(connection, job_id: int) -> Any:
    return rows_of(connection, "pgqueue_job").get(job_id)


def execution_row(connection, execution_id: int) -> Any:
    return rows_of(connection, "pgqueue_execution").get(execution_id)


def state_of(connection, job_id: int) -> Any:
    row = connection.execute("SELECT state FROM pgqueue_job WHERE id = %s", [job_id]).fetchone()
    return row and row[0]


def scalar(connection, query: str, params: Any = None) -> Any:
    [value] = connection.execute(query, params).fetchone()
    return value


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait until `condition()` is true, and return what it returned; fail after `seconds`."""
    began = time.monotonic()
    while not (answer := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"{condition} was not true within {seconds} s"
        time.sleep(pause_after(waited))
    return answer


def pause_after(waited_seconds: float) -> float:
    """Return the seconds until the next check: 5 ms at first, later a twentieth of the time waited, at most 50 ms.

    Each check is a query. Hundreds of queries a second would take processor time from the code that the test waits for.
    """
    return min(0.05, max(0.005, waited_seconds / 20))


class Clock:
    """The clock of some modules. It starts at the real time, and advances only by `pass_by()` and by each reading.

    A test that uses it does not depend on the speed of the machine. The clock of the leases becomes the same one, and
    `time.time()` goes on with it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, reading_seconds: float = 0.0) -> None:
        self.now, self.reading_seconds = time.monotonic(), reading_seconds
        self._epoch_offset = time.time() - self.now
        replacement = SimpleNamespace(
            **vars(time)
            | {"monotonic": self.read, "time": self.read_epoch, "clock_gettime": lambda clock_id: self.read()}
        )
        for module in modules:
            monkeypatch.setattr(module, "time", replacement)

    def read(self) -> float:
        self.pass_by(self.reading_seconds)
        return self.now

    def read_epoch(self) -> float:
        return self.read() + self._epoch_offset

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def waits_for_lock(watcher, pid: int) -> bool:
    row = watcher.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
    return row is not None and row[0] == "Lock"


def wait_for_lock(watcher, pid: int, seconds: float = 10.0) -> None:
    """Wait until the session with this process id waits for a lock."""
    wait_until(lambda: waits_for_lock(watcher, pid), seconds)


class Background:
    """Runs a call in its own thread. `result()` waits for the call, and raises the exception that it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._answer: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 -- raised again by result()
            self._error = error

    def result(self, seconds: float = 30.0) -> Any:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the call is still running"
        if self._error is not None:
            raise self._error
        return self._answer


@contextmanager
def transaction(connection, *before: str) -> Iterator[Any]:
    """Open a transaction, and roll it back at the end unless it was committed inside."""
    connection.execute("BEGIN")
    for statement in before:
        connection.execute(statement)
    try:
        yield connection
    finally:
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.execute("ROLLBACK")


def cursor_after(claimed: Iterable[Claimed]) -> Cursor:
    last = list(claimed)[-1]
    return Cursor(last.run_after, last.job_id)
