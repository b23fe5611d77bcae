"""django-ox: a worker claims job by job, for a pool of threads."""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

BEST = 4
SETTINGS = """
TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}}
"""
ADAPTER = """
from django_ox import bulk


def enqueue_many(task, numbers):
    bulk.enqueue_many(getattr(tasks, task), [((number,), {}) for number in numbers])
"""
UNFINISHED = "SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING', 'WAITING')"


def worker(load: Load) -> Command:
    threads, processes = str(load.concurrency or BEST), str(load.processes)
    more = ("--interval", "0.1", "--verbosity", "0")
    return ("-m", "django", "ox_worker", "--concurrency", threads, "--processes", processes, *more)


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


SYSTEM = System(
    name="django-ox",
    distribution="django-ox",
    packages=("django-ox==1.9.1", *django.PACKAGES),
    files=django.project("django_ox", "django.tasks", ADAPTER, SETTINGS),
    prepare=[django.MIGRATE],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "anoop", "began", "abegan", "touch"}),
    settings=(
        f"--concurrency {BEST} (for no-ops 2, 4 were alike, 1, 10, 20 slower); --interval 0.1 (1), --verbosity 0; "
        "CONN_MAX_AGE None; bulk is enqueue_many"
    ),
    drain_jobs=5_000,
    oldest_python=(3, 12),
    sweep=(1, 2, 4, 10, 20),
    processes=(1, 2),
    ways=frozenset({"bulk", "single", "transaction", "paced", "later"}),
)
