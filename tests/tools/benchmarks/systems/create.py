"""Yardstick (b): Django's own `create()` of a model with our job's table, and `bulk_create()` of many."""

from tests.tools.benchmarks.systems import ours

ADAPTER = """
import django

django.setup()
from django.db import transaction

from django_pgqueue.models import Job

transaction = transaction.atomic


def start():
    pass


def fields(task, number):
    return {"task_name": f"app.tasks.{task}", "arguments": {"args": [number], "kwargs": {}}}


def enqueue(task, number):
    Job.objects.create(**fields(task, number))


def enqueue_many(task, numbers):
    Job.objects.bulk_create((Job(**fields(task, number)) for number in numbers), batch_size=2000)
"""

SYSTEM = ours.SYSTEM._replace(
    name="create",
    files={**ours.SYSTEM.files, "adapter.py": ADAPTER},
    tasks=frozenset({"noop"}),
    runs=False,
    settings="Job.objects.create(), Job.objects.bulk_create(batch_size=2000)",
    ways=frozenset({"single", "transaction", "bulk"}),
)
