"""One scenario's world: a fresh database on the suite's server, workers, producers, and the history of it all."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import operator
from tests import helpers
from tests.process.harness import Worker, environment
from tests.process.server import Server
from tests.tools.faults import checker, failpoints, journal, limits
from tests.tools.faults.history import History, collect
from tests.tools.faults.lives import BY_OPERATOR, Rules, Violation
from tests.tools.faults.schema import SCHEMA
from tests.tools.faults.suite import Suite

TASKS: Final = "tests.tools.faults.app.tasks."
TIMES: Final = {"POLL_INTERVAL": 0.2, "POLL_INTERVAL_WITHOUT_LISTEN": 0.2}
"""Besides the harness's own short times: lease 2 s, beat 0.5 s, rescue 0.25 s, grace 2 s."""
PATIENCE_SECONDS: Final = 30.0
OF_JOB: Final = frozenset(
    {"queue_name", "priority", "max_attempts", "delay_seconds", "run_after", "task_name", "expires_seconds"}
)
SHAPES: Final = frozenset({"chain", "fan_in", "graph", "batch", "held", "tale"})
"""Those that `flow_producer` knows; besides, "event" and "close" (of a batch)."""
SETTINGS_MODULE: Final = "tests.tools.faults.settings"
UNFINISHED: Final = """
SELECT (SELECT count(*) FROM pgqueue_job WHERE finished_at IS NULL)
     + (SELECT count(*) FROM pgqueue_batch WHERE closed_at IS NOT NULL AND completed_at IS NULL)
     + (SELECT count(*) FROM pgqueue_step WHERE compensation IS NOT NULL)
"""


T = TypeVar("T")


class Skip(Exception):
    """This machine cannot show the fault; the words say why."""


class Run:
    """What a scenario is given."""

    def __init__(self, suite: Suite, name: str) -> None:
        self.suite = suite
        self.server: Server = suite.server
        self.name = name
        self.where = suite.where / name
        self.where.mkdir()
        self.random = random.Random(f"{suite.seed} {name}")
        self.database = self._first_database = suite.new_database()
        self.settings: dict[str, Any] = self.server.settings_for(self.database)
        """Django's DATABASES entry of workers and producers; a scenario may lead them elsewhere."""
        self.workers: list[Worker] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.rules = Rules()
        self.began = time.monotonic()
        self._connection: EngineConnection | None = None
        self._undo = contextlib.ExitStack()

    # ---------------------------------------------------------------- processes

    def worker(
        self,
        *arguments: str,
        failpoint: str = "",
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        ready: bool = True,
        database: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Worker:
        """Start `runworker`, by default with 4 slots; wait until it is ready unless told otherwise.

        `failpoint` arms it (see `failpoints`), `prefix` is a program that starts it, options are keys of PGQUEUE.
        """
        if "--concurrency" not in arguments:
            arguments = (*arguments, "--concurrency", "4")
        worker = Worker(
            self.where / f"worker-{len(self.workers)}.log",
            *arguments,
            database=dict(database or self.settings),
            prefix=prefix,
            variables=self.variables(failpoint) | dict(variables or {}),
            fresh_start=self.suite.fresh_start,
            **(TIMES | options),
        )
        self.workers.append(worker)
        if ready:
            worker.wait_until_ready()
        return worker

    def producer(
        self,
        *arguments: str,
        failpoint: str = "",
        module: str = "producer",
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        database: Mapping[str, Any] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a process that enqueues through the public API: `producer` or `bulk_producer`."""
        where = dict(database or self.settings)
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", f"tests.tools.faults.{module}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(where, **TIMES) | self.variables(failpoint) | dict(variables or {}),
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def variables(self, failpoint: str = "") -> dict[str, str]:
        """The environment by which a process takes part in this run."""
        failpoints.parse(failpoint)  # a mistake shows here, not in a worker's log
        return {
            "DJANGO_SETTINGS_MODULE": SETTINGS_MODULE,
            journal.DIRECTORY: str(self.where),
            failpoints.VARIABLE: failpoint,
        }

    def stop(self, worker: Worker, number: int = signal.SIGTERM, within: float = 20) -> int:
        """Signal a worker, wait until it has ended, and note what it left; return its exit code."""
        if worker.process.poll() is None:
            worker.send(number)
        return self.ended(worker, within)

    def ended(self, worker: Worker, within: float = 20) -> int:
        """Wait until a worker has ended by itself, and note what it left; return its exit code."""
        code = worker.exit_code(within)
        last = self.scalar("SELECT coalesce(max(id), 0) FROM fault_event")
        self.note("exit", worker=worker.process.pid, code=code, last=last)
        return code

    # ---------------------------------------------------------------- the database

    @property
    def connection(self) -> EngineConnection:
        """The scenario's own session; a new one if the last was lost."""
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = self.connect()
        return self._connection

    def connect(self) -> EngineConnection:
        """Open another session on this run's database, in autocommit."""
        return self.server.connect(self.database)

    def sql(self, query: str, params: Any = None) -> list[Any]:
        """Run a statement in the scenario's own session, again once if the session was lost; return the rows."""
        try:
            return self._rows(query, params)
        except psycopg.OperationalError:
            return self._rows(query, params)

    def _rows(self, query: str, params: Any) -> list[Any]:
        cursor = self.connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []

    def scalar(self, query: str, params: Any = None) -> Any:
        """Return the one value that a statement gives."""
        [[value]] = self.sql(query, params)
        return value

    def configure(self, name: str, value: str | None) -> None:
        """Change a setting of the whole server, and change it back after the scenario, or at once with None."""
        with self.server.connect("template1") as session:
            if value is None:
                session.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            else:
                self._undo.callback(lambda: self.configure(name, None))
                session.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
            session.execute("SELECT pg_reload_conf()")

    def move_to(self, server: Server) -> None:
        """Use another server from now on, in its database `postgres`: before anything is enqueued or started."""
        with server.connect() as session:
            session.execute(SCHEMA)
        if self._connection is not None:
            self._connection.close()
        self.server, self.database, self.settings = server, "postgres", server.settings_for("postgres")

    def at_end(self, call: Callable[[], Any]) -> None:
        """Have something done after the scenario and its check, whatever comes of it."""
        self._undo.callback(call)

    def enter(self, resource: AbstractContextManager[T]) -> T:
        """Enter a context that lasts until the history is checked, as that of a server of the scenario's own."""
        return self._undo.enter_context(resource)

    # ---------------------------------------------------------------- jobs

    def enqueue(self, task: str, count: int = 1, **options: Any) -> list[int]:
        """Enqueue jobs of one of the suite's tasks, by lifecycle's own statement; return their ids.

        Options that are a job's (`OF_JOB`) are set on it; all others are the task's keyword arguments. Attempts are
        10 unless given, whatever the task says. Each job gets a tag of its own. Tells idle workers.
        """
        arguments = {key: value for key, value in options.items() if key not in OF_JOB}
        tags = [uuid.uuid4().hex for _ in range(count)]
        texts = [json.dumps(limits.calls_of(task, {"tag": tag, **arguments})) for tag in tags]
        of_job = {key: value for key, value in options.items() if key in OF_JOB}
        if limit := limits.of_call(task, arguments):
            of_job["limits"] = [limit] * count
        own_file = self.where / f"scenario{journal.SUFFIX}"
        journal.append_each(own_file, "enqueue-sent", [{"tag": tag} for tag in tags])
        ids = helpers.make_jobs(self.connection, count, task_name=TASKS + task, arguments=texts, **of_job)
        journal.append_each(own_file, "enqueue-returned", [{"tag": tag, "answer": "committed"} for tag in tags])
        self.connection.execute("NOTIFY pgqueue")
        return ids

    def flow(self, shape: str, **options: Any) -> list[int]:
        """Enqueue one of `flows.SHAPES` by the public API, from a process of its own; return the ids of the jobs."""
        before = len(self.journal("flow"))
        process = self.producer(shape, json.dumps(options), module="flow_producer")
        assert process.wait(60) == 0, process.stdout and process.stdout.read()
        return list(self.journal("flow")[before]["jobs"]) if shape in SHAPES else []

    def act(self, name: str, job_ids: Sequence[int]) -> None:
        """Do as an operator: `retry`, `cancel` or `run_now`, by lifecycle, and note it."""
        self.note(BY_OPERATOR, act=name, jobs=list(job_ids))
        getattr(operator, name)(self.connection, job_ids)

    def meddle(self, query: str, params: Any = None, *, jobs: Sequence[int], act: str = "sql") -> None:
        """Change rows past the product, and note which jobs: the checker then asks less of them."""
        self.note(BY_OPERATOR, act=act, jobs=list(jobs))
        self.sql(query, params)

    def states(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return dict(self.sql("SELECT state, count(*) FROM pgqueue_job GROUP BY state ORDER BY state"))

    def outcomes(self) -> dict[str, int]:
        """How many executions ended each way."""
        return dict(self.sql("SELECT coalesce(outcome, 'open'), count(*) FROM pgqueue_execution GROUP BY 1 ORDER BY 1"))

    def job(self, job_id: int) -> dict[str, Any]:
        """A job's row; empty if it is gone."""
        return helpers.job_row(self.connection, job_id) or {}

    def outcomes_of(self, job_id: int) -> list[str]:
        """How a job's executions ended, the oldest first."""
        rows = self.sql(
            "SELECT coalesce(outcome, 'open') FROM pgqueue_execution WHERE job_id = %s ORDER BY id", [job_id]
        )
        return [row[0] for row in rows]

    def unfinished(self) -> int:
        """How many jobs have not ended, and how many ends still have to add a job: of batches, and of undone steps."""
        return int(self.scalar(UNFINISHED))

    # ---------------------------------------------------------------- waiting

    def wait_until(self, condition: Callable[[], Any], within: float = PATIENCE_SECONDS, what: str = "") -> float:
        """Wait for a condition, through a server that is away; return how many seconds that took."""
        began = time.monotonic()
        while not self._holds(condition):
            waited = time.monotonic() - began
            assert waited <= within, f"waited {within:g} s in vain for {what or condition}; jobs: {self.states()}"
            time.sleep(helpers.pause_after(waited))
        return time.monotonic() - began

    @staticmethod
    def _holds(condition: Callable[[], Any]) -> bool:
        try:
            return bool(condition())
        except (psycopg.OperationalError, psycopg.InterfaceError):
            return False

    def wait_until_done(self, within: float = PATIENCE_SECONDS) -> float:
        """Wait until every job has ended, and have the checker insist on it; return how many seconds that took."""
        self.rules = self.rules._replace(finished=True)
        return self.wait_until(lambda: not self.unfinished(), within, "every job to end")

    def while_unfinished(self, within: float = PATIENCE_SECONDS) -> Iterator[None]:
        """Yield again and again until every job has ended. Fail if that takes longer than `within` seconds."""
        began = time.monotonic()
        while self.unfinished():
            assert time.monotonic() - began <= within, f"jobs did not end within {within:g} s: {self.states()}"
            yield

    def wait_for(self, event: str, number: int = 1, within: float = PATIENCE_SECONDS, **fields: Any) -> dict[str, Any]:
        """Wait until the journals have the `number`th line of a kind with these fields; return it."""
        self.wait_until(lambda: len(self.journal(event, **fields)) >= number, within, f"{number} {event} {fields}")
        return self.journal(event, **fields)[number - 1]

    def wait_until_stopped(self, worker: Worker) -> int:
        """Wait until a failpoint has stopped a worker's process, and return its pid.

        Its line in the journal comes a moment before: a SIGCONT sent then would come too early.
        """
        pid = worker.wait_for_child()
        self.wait_until(lambda: is_stopped(pid), what=f"process {pid} to stop")
        return pid

    # ---------------------------------------------------------------- history

    def note(self, event: str, **fields: Any) -> None:
        """Write a line into the history from the scenario's side."""
        journal.append(self.where / f"scenario{journal.SUFFIX}", event, **fields)

    def journal(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the journals' lines of a kind so far."""
        lines = journal.read(self.where)
        return [one for one in lines if one["event"] == event and all(one.get(k) == v for k, v in fields.items())]

    def close(self) -> tuple[History, list[Violation]]:
        """End what still runs, check the history, and put all back."""
        with self._undo:
            try:
                for worker in self.workers:
                    if worker.process.poll() is None and not is_stopped(worker.process.pid):
                        self.stop(worker)
            finally:
                self.end_all()
            for worker in self.workers:
                worker.assert_sound()
            history = collect(self.connection, self.where)
            self.connection.close()
        self.suite.drop_database(self._first_database)
        return history, checker.check(history, self.rules)

    def abandon(self) -> None:
        """End everything and put all back, without a look at the history: for a run that is interrupted."""
        with self._undo:
            self.end_all()

    def end_all(self) -> None:
        """Kill every process of this run that is there still."""
        for worker in self.workers:
            worker.end()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)  # processes that have outlived their supervisor
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by SIGSTOP, and so obeys no signal but SIGKILL."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
