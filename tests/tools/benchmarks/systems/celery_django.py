"""Celery with Redis in a Django project, by its guides "First steps with Django" and "Optimizing"."""

from tests.tools.benchmarks.place import FILES, Bench
from tests.tools.benchmarks.systems import celery, django
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

WORK = """
import os

from celery import Celery

app = Celery("work", broker="redis+socket://" + os.environ["REDIS_SOCKET"])
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 128
app.conf.worker_disable_rate_limits = True
app.conf.CELERY_DB_REUSE_MAX = 1_000_000
app.autodiscover_tasks(["app"])
"""
DECORATOR = """
import work  # the tasks belong to its app
from celery import shared_task as task
"""
ADAPTER = """
from work import app


def start():
    app.connection_for_write().ensure_connection()


def enqueue_many(task, numbers):
    with app.producer_pool.acquire(block=True) as producer:
        for number in numbers:
            getattr(tasks, task).apply_async((number,), producer=producer)
"""


def worker(load: Load) -> Command:
    children = load.concurrency or 1
    pool = ("--pool", "solo") if children == 1 else ("--pool", "prefork", "--concurrency", str(children))
    return ("start.py", str(load.processes), *celery.CLI, *celery.NAME, *pool)


def unfinished(bench: Bench) -> int:
    return celery.unfinished(bench)


SYSTEM = System(
    name="celery-django",
    distribution="celery",
    packages=("celery[redis]==5.7.0", *django.PACKAGES),
    files={
        **django.project("django.contrib.contenttypes", "decorator", ADAPTER),
        "work.py": WORK,
        "decorator.py": DECORATOR,
        "start.py": (FILES / "start.py").read_text(),
    },
    prepare=[django.MIGRATE],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"touch"}),
    settings=(
        "the best of one or two workers with --pool solo, or with --pool prefork and 2 or 4 children; "
        "worker_prefetch_multiplier 128, task_ignore_result, worker_disable_rate_limits, without gossip, mingle and "
        "heartbeat; CELERY_DB_REUSE_MAX 1,000,000, because a worker otherwise connects to the database for each task "
        "(81 jobs/s instead of 208 with --pool solo); early acks, its default: a lost worker "
        "loses jobs. Redis is at its defaults but saves nothing; its CPU is not counted"
    ),
    broker="redis",
    drain_jobs=10_000,
    oldest_python=(3, 12),
    sweep=(1, 2, 4),
    processes=(1, 2),
    ways=frozenset({"bulk"}),
)
