"""dj-queue: a supervisor with processes of threads, and a dispatcher for what is due later."""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

BEST = 20
PREFETCH = {"noop": 50, "anoop": 50}
PREFETCH_OF_OTHERS = 10
"""So that two processes share a small backlog."""
SETTINGS = """
WORKERS = {
    "threads": int(os.environ.get("THREADS", "3")),
    "processes": int(os.environ.get("PROCESSES", "1")),
    "prefetch_multiplier": int(os.environ.get("PREFETCH", "2")),
}
TASKS = {
    "default": {
        "BACKEND": "dj_queue.backend.DjQueueBackend",
        "QUEUES": [],
        "OPTIONS": {"workers": [WORKERS], "dispatchers": [{"polling_interval": 0.1}]},
    },
}
"""
ADAPTER = """

def enqueue_many(task, numbers):
    task = getattr(tasks, task)
    task.get_backend().enqueue_all([(task, [number], {}) for number in numbers])
"""
WORKER = """
import os
import sys

os.environ["THREADS"], os.environ["PROCESSES"], os.environ["PREFETCH"] = sys.argv[1:]

from django.core.management import execute_from_command_line

execute_from_command_line(["manage.py", "dj_queue"])
"""
TUNE_AUTOVACUUM = """
import io

import django
from django.core.management import call_command
from django.db import connection

django.setup()
call_command("dj_queue_postgres_autovacuum", stdout=(printed := io.StringIO()))
with connection.cursor() as cursor:
    cursor.execute(printed.getvalue())
"""
UNFINISHED = "SELECT count(*) FROM dj_queue_jobs WHERE finished_at IS NULL"


def worker(load: Load) -> Command:
    prefetch = PREFETCH.get(load.task, PREFETCH_OF_OTHERS)
    return ("worker.py", str(load.concurrency or BEST), str(load.processes), str(prefetch))


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


SYSTEM = System(
    name="dj-queue",
    distribution="dj-queue",
    packages=("dj-queue==0.14.2", *django.PACKAGES),
    files={**django.project("dj_queue", "django.tasks", ADAPTER, SETTINGS), "worker.py": WORKER},
    prepare=[django.MIGRATE, ("-c", TUNE_AUTOVACUUM)],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "anoop", "began", "abegan", "touch"}),
    settings=(
        f"threads {BEST} (3), the best for no-ops of 1, 2, 4, 10, 20; prefetch_multiplier (2) 50 for no-ops, of 2, 10, "
        f"50, and {PREFETCH_OF_OTHERS} for others; the dispatcher's polling_interval 0.1 (1); its autovacuum settings; "
        "CONN_MAX_AGE None; bulk is enqueue_all"
    ),
    drain_jobs=15_000,
    oldest_python=(3, 12),
    sweep=(1, 2, 4, 10, 20),
    processes=(1, 2),
    ways=frozenset({"bulk", "single", "transaction", "paced", "later"}),
)
