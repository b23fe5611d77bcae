"""Celery with Redis, by its first steps and its guide "Optimizing"."""

from tests.tools.benchmarks.place import FILES, Bench
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.brokers import redis_says
from tests.tools.peers.place import Command

WORK = """
import os

from celery import Celery

import record

app = Celery("work", broker="redis+socket://" + os.environ["REDIS_SOCKET"])
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 128
app.conf.worker_disable_rate_limits = True


@app.task(name="noop")
def noop(number):
    record.ran(number)


@app.task(name="began")
def began(number):
    record.began(number)
"""

ADAPTER = """
from work import app


def start():
    app.connection_for_write().ensure_connection()


def enqueue(task, number):
    app.tasks[task].delay(number)


def enqueue_later(task, number, seconds):
    app.tasks[task].apply_async((number,), countdown=seconds)


def enqueue_many(task, numbers):
    with app.producer_pool.acquire(block=True) as producer:
        for number in numbers:
            app.tasks[task].apply_async((number,), producer=producer)
"""
CLI = ("-m", "celery", "-A", "work", "worker", "--without-gossip", "--without-mingle", "--without-heartbeat")
NAME = ("-n", "{process}@%h")


def worker(load: Load) -> Command:
    return ("start.py", str(load.processes), *CLI, *NAME, "--pool", "solo")


def unfinished(bench: Bench) -> int:
    return int(redis_says(bench, "LLEN", "celery")) + int(redis_says(bench, "HLEN", "unacked"))


SYSTEM = System(
    name="celery",
    distribution="celery",
    packages=("celery[redis]==5.7.0",),
    files={"work.py": WORK, "adapter.py": ADAPTER, "start.py": (FILES / "start.py").read_text()},
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"noop", "began"}),
    settings=(
        "--pool solo, whose median was best of prefork with 1 and 2 children, of 1 and 10 threads, and of solo; "
        "worker_prefetch_multiplier 128, of 4, 128 and 1024; task_ignore_result, worker_disable_rate_limits, without "
        "gossip, mingle and heartbeat; hiredis made no difference; early acks, its default: a lost worker loses jobs. "
        "It has no coroutine tasks. Redis is at its defaults but saves nothing; its CPU is not counted"
    ),
    broker="redis",
    drain_jobs=10_000,
)
