"""PgQueuer, by its quick start and its guide "Performance Tuning"."""

from tests.tools.benchmarks.place import FILES, Bench
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

WORK = """
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.models import Job

import record


@asynccontextmanager
async def main():
    connection = await asyncpg.connect()
    queue = PgQueuer.from_asyncpg_connection(connection)

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        record.ran(int(job.payload))

    @queue.entrypoint("anoop")
    async def anoop(job: Job) -> None:
        record.ran(int(job.payload))

    @queue.entrypoint("began")
    async def began(job: Job) -> None:
        record.began(int(job.payload))

    @queue.entrypoint("abegan")
    async def abegan(job: Job) -> None:
        record.began(int(job.payload))

    yield queue
    await connection.close()
"""

ADAPTER = """
from datetime import timedelta

import psycopg
from pgqueuer.db import SyncPsycopgDriver
from pgqueuer.queries import SyncQueries


def start():
    global connection, queries
    connection = psycopg.connect(autocommit=True)
    queries = SyncQueries(SyncPsycopgDriver(connection))


def enqueue(task, number):
    queries.enqueue(task, b"%d" % number)


def enqueue_later(task, number, seconds):
    queries.enqueue(task, b"%d" % number, execute_after=timedelta(seconds=seconds))


def enqueue_many(task, numbers):
    payloads = [b"%d" % number for number in numbers]
    queries.enqueue([task] * len(payloads), payloads, [0] * len(payloads))


def transaction():
    return connection.transaction()
"""
CLI = ("-m", "pgqueuer")
BATCH = 500


def worker(load: Load) -> Command:
    return ("start.py", str(load.processes), *CLI, "run", "work:main", *limits(load.concurrency))


def limits(concurrency: int | None) -> Command:
    if concurrency is None:
        return ("--batch-size", str(BATCH))
    at_once = max(2, concurrency)  # it refuses fewer than two batches
    return ("--batch-size", str(min(BATCH, at_once // 2)), "--max-concurrent-tasks", str(at_once))


def unfinished(bench: Bench) -> int:
    return bench.count("SELECT count(*) FROM pgqueuer")


SYSTEM = System(
    name="pgqueuer",
    distribution="pgqueuer",
    packages=(
        "pgqueuer[asyncpg]==1.6.0",
        "psycopg[binary]==3.3.9",
        "typer==0.24.1",  # with 0.29.2 `pgq run` ends with an AttributeError
    ),
    files={"work.py": WORK, "adapter.py": ADAPTER, "start.py": (FILES / "start.py").read_text()},
    prepare=[(*CLI, "install"), (*CLI, "autovac")],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "anoop", "began", "abegan"}),
    settings=(
        "`pgq autovac`; one connection; --batch-size 500, of 10, 100, 500 and 1000, each with one connection and a "
        "pool, and of 10, 100 and 500 with 2 and 5 managers in the process; uvloop, which `pgq run` has; durable, "
        "its default. It has only coroutines: what is a sync no-op elsewhere is called in one, without a thread. "
        "Enqueued by its sync queries and driver"
    ),
    ways=frozenset({"bulk", "single", "transaction", "paced", "later"}),
)
