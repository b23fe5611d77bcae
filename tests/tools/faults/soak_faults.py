"""Faults that the soak may inject at any moment, each undone before the next: a table of functions of the crew."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import psycopg

from django_pgqueue.db.notifications import CANCEL_REQUESTED, CHANNEL, PAUSES_CHANGED
from django_pgqueue.lifecycle import pauses, ticks
from django_pgqueue.states import Pausable
from tests import helpers
from tests.process.harness import descendants
from tests.tools.faults.invariants_blame import FROZEN

if TYPE_CHECKING:
    from tests.process.harness import Worker
    from tests.tools.faults.soak import Crew

PAUSED_QUEUE: Final = "at-times"
"""What the producers call the queue that is paused now and then."""
LOCKED: Final = (
    *("pgqueue_job", "pgqueue_execution", "pgqueue_schedule", "pgqueue_schedulerun"),
    *("pgqueue_execution_log", "pgqueue_installation", "pgqueue_search_key", "pgqueue_limit_state"),
    *("pgqueue_limit_override", "pgqueue_pause", "pgqueue_open_breaker", "pgqueue_breaker_count"),
    *("pgqueue_dependency", "pgqueue_batch", "pgqueue_step", "pgqueue_event"),
)
"""The tables that a fault locks. Workers use all of them, which is not so for archived jobs and the audit."""
FAULTS: Final[dict[str, Callable[[Crew], None]]] = {}


def injectable(function: Callable[[Crew], None]) -> Callable[[Crew], None]:
    """Add a fault, under its function's name."""
    FAULTS[function.__name__.replace("_", " ")] = function
    return function


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _child(crew: Crew, worker: Worker) -> int:
    children = worker.children
    return crew.chance.choice(children) if children else worker.process.pid


@injectable
def process_killed(crew: Crew) -> None:
    """SIGKILL one worker process."""
    _kill(_child(crew, crew.one()), signal.SIGKILL)


@injectable
def supervisor_killed(crew: Crew) -> None:
    """SIGKILL a supervisor alone."""
    crew.one().send(signal.SIGKILL)


@injectable
def host_lost(crew: Crew) -> None:
    """SIGKILL a supervisor and its processes."""
    crew.one().send_all(signal.SIGKILL)


@injectable
def deploy(crew: Crew) -> None:
    """Stop a worker by SIGTERM, now and then by two."""
    worker = crew.one()
    worker.send(signal.SIGTERM)
    if crew.chance.random() < 0.3:
        time.sleep(0.2)
        worker.send(signal.SIGTERM)
    crew.run.ended(worker)


@injectable
def process_frozen(crew: Crew) -> None:
    """SIGSTOP one worker process for a while, which may be longer than its lease."""
    pid = _child(crew, crew.one())
    crew.run.note(FROZEN, pids=[pid])
    _kill(pid, signal.SIGSTOP)
    time.sleep(crew.chance.uniform(0.3, 5))
    _kill(pid, signal.SIGCONT)


@injectable
def host_frozen(crew: Crew) -> None:
    """SIGSTOP a whole worker for a while; then its supervisor wakes first, or all at once."""
    worker = crew.one()
    pids = [worker.process.pid, *worker.children]
    crew.run.note(FROZEN, pids=pids)
    for pid in pids:
        _kill(pid, signal.SIGSTOP)
    time.sleep(crew.chance.uniform(0.3, 5))
    for pid in pids:
        _kill(pid, signal.SIGCONT)
        time.sleep(crew.chance.choice([0, 0.7]))


@injectable
def producer_killed(crew: Crew) -> None:
    """SIGKILL a process that enqueues."""
    _kill(crew.chance.choice(crew.producers).pid, signal.SIGKILL)


@injectable
def sessions_ended(crew: Crew) -> None:
    """Terminate some or all of the sessions in the database."""
    share = crew.chance.choice([0.2, 0.5, 1.0])
    crew.run.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND random() < %s",
        [share],
    )


@injectable
def statements_cancelled(crew: Crew) -> None:
    """Cancel what runs, twenty times in a row."""
    for _ in range(20):
        crew.run.sql(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state = 'active'"
        )
        time.sleep(0.02)


@injectable
def server_restarted(crew: Crew) -> None:
    """Stop the server, orderly or by a crash, and start it after a while."""
    cluster = crew.run.server.cluster
    cluster.stop(crew.chance.choice(["fast", "immediate"]))
    time.sleep(crew.chance.choice([0, 0.5, 4]))
    cluster.start()


@injectable
def backend_killed(crew: Crew) -> None:
    """SIGKILL one of the server's processes, so that it ends all sessions."""
    with contextlib.suppress(psycopg.Error), crew.run.connect() as victim:
        _kill(victim.info.backend_pid, signal.SIGKILL)
        victim.execute("SELECT pg_sleep(0.1)")


@injectable
def table_locked(crew: Crew) -> None:
    """Lock a table as a migration does."""
    table = crew.chance.choice(LOCKED)
    with crew.run.connect() as migration, migration.transaction():
        migration.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        time.sleep(crew.chance.uniform(0.2, 4))


@injectable
def rows_locked(crew: Crew) -> None:
    """Lock some rows in a forgotten session."""
    with crew.run.connect() as forgotten, forgotten.transaction():
        forgotten.execute("SELECT FROM pgqueue_job WHERE finished_at IS NULL AND id % 3 = 0 FOR UPDATE SKIP LOCKED")
        forgotten.execute("SELECT FROM pgqueue_execution WHERE outcome IS NULL AND id % 2 = 0 FOR UPDATE SKIP LOCKED")
        time.sleep(crew.chance.uniform(0.2, 4))


@injectable
def horizon_pinned(crew: Crew) -> None:
    """Hold a snapshot for a while."""
    with crew.run.connect() as holder, holder.transaction():
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pgqueue_job")
        time.sleep(crew.chance.uniform(1, 5))


@injectable
def tables_rewritten(crew: Crew) -> None:
    """VACUUM FULL under load."""
    with contextlib.suppress(psycopg.errors.DeadlockDetected):
        crew.run.sql(f"VACUUM FULL {crew.chance.choice(['pgqueue_job', 'pgqueue_execution'])}")


@injectable
def read_only(crew: Crew) -> None:
    """Make new sessions read-only for a while, and end the old ones."""
    crew.run.sql(f"ALTER DATABASE {crew.run.database} SET default_transaction_read_only = on")
    try:
        FAULTS["sessions ended"](crew)
        time.sleep(crew.chance.uniform(0.5, 3))
    finally:
        crew.run.sql("SET default_transaction_read_only = off")
        crew.run.sql(f"ALTER DATABASE {crew.run.database} RESET default_transaction_read_only")
        crew.run.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@injectable
def starved(crew: Crew) -> None:
    """Take the processors for a while."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    time.sleep(crew.chance.uniform(1, 4))
    for loop in loops:
        loop.kill()
        loop.wait()


@injectable
def poison(crew: Crew) -> None:
    """Enqueue a job that ends its process."""
    crew.run.enqueue("poison.die", how=crew.chance.choice(["segfault", "exit 0", "kill"]))


@injectable
def deadly(crew: Crew) -> None:
    """Enqueue a job that kills its own process, or never ends, where it has a process or a timeout."""
    name, how = crew.chance.choice(
        [
            ("die", "segfault"),
            ("die", "exit 0"),
            ("endless", "a loop"),
            ("endless", "a sleep"),
            ("endless_alone", "one call in C"),
            ("endless_alone", "C that keeps the interpreter"),
        ]
    )
    crew.run.enqueue(f"deadly.{name}", how=how, max_attempts=2)


@injectable
def below_killed(crew: Crew) -> None:
    """SIGKILL one of the processes that isolated jobs run in, or the one that makes them."""
    below = descendants(_child(crew, crew.one()))
    if below:
        _kill(crew.chance.choice(below), signal.SIGKILL)


@injectable
def operator(crew: Crew) -> None:
    """Cancel, retry and hurry jobs, as people do."""
    wanted = {"cancel": "finished_at IS NULL", "retry": "finished_at IS NOT NULL", "run_now": "state = 'ready'"}
    for act, condition in wanted.items():
        rows = crew.run.sql(f"SELECT id FROM pgqueue_job WHERE {condition} ORDER BY random() LIMIT 5")
        crew.run.act(act, [row[0] for row in rows])


@injectable
def queue_paused(crew: Crew) -> None:
    """Pause the one queue for a while that outlasts this, or resume it; now and then no word of it arrives."""
    if crew.chance.random() < 0.3:
        pauses.resume(crew.run.connection, Pausable.QUEUE, PAUSED_QUEUE)
    else:
        seconds = crew.chance.uniform(5, 30)
        pauses.pause(crew.run.connection, Pausable.QUEUE, PAUSED_QUEUE, for_seconds=seconds)
    if crew.chance.random() < 0.5:
        crew.run.sql("SELECT pg_notify(%s, %s)", [CHANNEL, PAUSES_CHANGED])


@injectable
def running_cancelled(crew: Crew) -> None:
    """Cancel jobs that run: in threads, on the event loop, in processes of their own; and then another fault."""
    jobs = [crew.run.enqueue(task, seconds=4)[0] for task in ("plain", "atomic", "coroutine", "alone")]
    time.sleep(crew.chance.uniform(0, 2))
    second = crew.chance.choice(["process killed", "process frozen", "sessions ended", "deploy", None])
    crew.run.act("cancel", jobs)
    if crew.chance.random() < 0.5:
        crew.run.sql("SELECT pg_notify(%s, %s)", [CHANNEL, CANCEL_REQUESTED])
    if second:
        FAULTS[second](crew)


@injectable
def schedule_run(crew: Crew) -> None:
    """Run a schedule besides its ticks, as an operator does."""
    [[schedule_id]] = crew.run.sql("SELECT id FROM pgqueue_schedule ORDER BY random() LIMIT 1")
    schedule = helpers.schedule_of(crew.run.connection, schedule_id)
    ticks.run_schedule(crew.run.connection, schedule, helpers.new_job())
