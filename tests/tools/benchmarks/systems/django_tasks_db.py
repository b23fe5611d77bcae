"""django-tasks-db: a worker runs one job at a time, so more at a time are more workers."""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

BEST = 2
SETTINGS = """
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default"]}}
"""
ADAPTER = """

def enqueue_many(task, numbers):
    with transaction():
        for number in numbers:
            enqueue(task, number)
"""
WORKERS = """
import os
import signal
import sys

import django
from django.core.management import call_command

workers = []


def stop(signum, frame):
    for worker in workers:
        os.kill(worker, signum)


django.setup()  # once for all, so that the last worker begins as soon as the first
for _ in range(int(sys.argv[1])):
    worker = os.fork()
    if not worker:
        call_command("db_worker", "--no-startup-delay", "--interval", "0.1", "--verbosity", "0")
        sys.exit()
    workers.append(worker)
signal.signal(signal.SIGTERM, stop)
for worker in workers:
    os.waitpid(worker, 0)
"""
UNFINISHED = "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')"


def worker(load: Load) -> Command:
    return ("workers.py", str((load.concurrency or BEST) * load.processes))


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


SYSTEM = System(
    name="django-tasks-db",
    distribution="django-tasks-db",
    packages=("django-tasks-db==0.13.0", *django.PACKAGES),
    files={**django.project("django_tasks_db", "django.tasks", ADAPTER, SETTINGS), "workers.py": WORKERS},
    prepare=[django.MIGRATE],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "anoop", "began", "abegan", "touch"}),
    settings=(
        f"{BEST} worker processes where others have one (for no-ops 1, 2, 4 were alike, 10, 20 slower); "
        "--interval 0.1 (1), --no-startup-delay, --verbosity 0; CONN_MAX_AGE None; "
        "no bulk enqueue: a loop in one transaction"
    ),
    drain_jobs=5_000,
    oldest_python=(3, 12),
    sweep=(1, 2, 4, 10, 20),
    ways=frozenset({"bulk", "single", "transaction", "paced", "later"}),
)
