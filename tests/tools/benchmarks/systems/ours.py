"""This project, from this checkout, with no setting changed."""

from pathlib import Path

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

ADAPTER = """
import record
from django.db.transaction import on_commit


def enqueue_many(task, numbers):
    getattr(tasks, task).enqueue_many((((number,), {}) for number in numbers), returning=False)


def enqueue_payload(task, numbers, text):
    getattr(tasks, task).enqueue_many((((number, text), {}) for number in numbers), returning=False)


def enqueue_noted(task, number):
    with transaction():
        on_commit(lambda: record.committed(number))  # before the notification, which comes after the commit too
        enqueue(task, number)
"""
UNFINISHED = "SELECT count(*) FROM pgqueue_job WHERE finished_at IS NULL"


def worker(load: Load) -> Command:
    more = ("--concurrency", str(load.concurrency)) if load.concurrency else ()
    return ("-m", "django", "runworker", "--processes", str(load.processes), *more)


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


SYSTEM = System(
    name="us",
    distribution="",
    packages=("cronsim==2.8", *django.PACKAGES),
    files=django.project("django_pgqueue", "django_pgqueue", ADAPTER),
    prepare=[django.MIGRATE],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "anoop", "began", "abegan", "touch", "nap", "carry", "fruit"}),
    settings="none changed",
    path=Path(__file__).resolve().parents[4],
    sweep=(1, 2, 4, 10),
    processes=(1, 2),
    ways=frozenset({"bulk", "single", "transaction", "paced", "later", "payload"}),
)
