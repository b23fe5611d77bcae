"""Procrastinate, by its quick start and what it says of concurrency and the size of the pool."""

from tests.tools.benchmarks.place import FILES, Bench
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

WORK = """
import procrastinate

import record

app = procrastinate.App(connector=procrastinate.PsycopgConnector())


@app.task(name="noop")
def noop(number):
    record.ran(number)


@app.task(name="anoop")
async def anoop(number):
    record.ran(number)


@app.task(name="began")
def began(number):
    record.began(number)


@app.task(name="abegan")
async def abegan(number):
    record.began(number)
"""

ADAPTER = """
from contextlib import contextmanager

import psycopg
from work import app

connection = None


def start():
    app.open()


def deferring(task, **options):
    return app.tasks[task].configure(connection=connection, **options)


def enqueue(task, number):
    deferring(task).defer(number=number)


def enqueue_later(task, number, seconds):
    deferring(task, schedule_in={"seconds": seconds}).defer(number=number)


def enqueue_many(task, numbers):
    app.tasks[task].batch_defer(*({"number": number} for number in numbers))


@contextmanager
def transaction():
    global connection
    with psycopg.connect() as connection:
        yield
    connection = None
"""

WORKER = """
import sys

from procrastinate import PsycopgConnector
from work import app

concurrency = int(sys.argv[1])
connector = PsycopgConnector(min_size=concurrency + 1, max_size=concurrency + 1)
app.with_connector(connector).run_worker(concurrency=concurrency)
"""
CLI = ("-m", "procrastinate", "--app=work.app")
CONCURRENCY = 10


def worker(load: Load) -> Command:
    return ("start.py", str(load.processes), "worker.py", str(load.concurrency or CONCURRENCY))


def unfinished(bench: Bench) -> int:
    return bench.count("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")


SYSTEM = System(
    name="procrastinate",
    distribution="procrastinate",
    packages=("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
    files={"work.py": WORK, "adapter.py": ADAPTER, "worker.py": WORKER, "start.py": (FILES / "start.py").read_text()},
    prepare=[(*CLI, "schema", "--apply")],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "anoop", "began", "abegan"}),
    settings=(
        "concurrency 10, of 1, 5, 10, 30 and 100; a pool of one connection more, as its discussion of pool sizes says; "
        "sync tasks run in its threads; finished jobs are kept, its default"
    ),
    drain_jobs=2000,  # with more it is slower per job
    ways=frozenset({"bulk", "single", "transaction", "paced", "later"}),
)
