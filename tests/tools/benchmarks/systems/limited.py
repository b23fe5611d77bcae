"""Our project with tasks that have limits. Other scenarios have none, so that they measure a project without limits."""

from __future__ import annotations

from tests.tools.benchmarks.systems import django
from tests.tools.peers.place import Command

HOLDER = "holder"
"""The queue of `hold`, which a worker of its own serves."""

TASKS = f"""
from django_pgqueue import Limit

ALONE = Limit("alone", concurrency=1)


@task(limit=ALONE)
def alone(number):
    record.ran(number)


@task(limit=ALONE, queue_name="{HOLDER}")
def hold(number):
    record.ran(number)
    time.sleep(3600)


@task(limit=Limit("tenant", key=lambda number: number % 1000, concurrency=10))
def of_tenant(number):
    record.ran(number)


@task(limit=Limit("customer", key=lambda number: number % 100_000, concurrency=1))
def of_customer(number):
    record.ran(number)


@task(limit=Limit("lock", key=lambda number: number % 1000, concurrency=1))
def locked(number):
    record.ran(number)


@task(limit=Limit("hundred", rate="100/s", burst=10))
def hundred(number):
    record.began(number)


@task(limit=Limit("rated", rate="5000/s", burst=500))
def rated(number):
    record.began(number)


@task(limit=Limit("crowded", concurrency=10))
def crowded(number):
    record.ran(number)


@task(limit=Limit("fair", key=lambda number: "large"))
def fair_large(number):
    record.began(number)


@task(limit=Limit("fair", key=lambda number: "small"))
def fair_small(number):
    record.began(number)


@task(limit=Limit("single", concurrency=1))
def one_by_one(number):
    record.began(number)
    record.committed(number)  # its end


PAIR = Limit("pair", concurrency=1)


@task(limit=PAIR, queue_name="left")
def pair_left(number):
    record.began(number)
    time.sleep(0.7 + number % 14 / 20)
    record.committed(number)


@task(limit=PAIR, queue_name="right")
def pair_right(number):
    record.began(number)
    record.committed(number)


@task(limit=Limit("paced", rate="2/s"))
def paced(number):
    record.began(number)


@task(limit=Limit("hourly", rate="1/h"))
def hourly(number):
    record.ran(number)
"""
FILL = """
INSERT INTO pgqueue_job (task_name, queue_name, priority, arguments, max_attempts, limit_key)
SELECT 'app.tasks.alone', 'default', 0, '{"args": [0], "kwargs": {}}', 10, 'alone'
FROM generate_series(1, %(jobs)s)
"""
"""Jobs of `alone`, in the lane of the other tasks."""
FILES = {"app/tasks.py": django.TASKS.format(module="django_pgqueue") + TASKS}


def worker(*words: str) -> Command:
    """The command of a worker with these options."""
    return ("-m", "django", "runworker", *words)
