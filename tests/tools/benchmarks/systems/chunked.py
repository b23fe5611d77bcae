"""This project with two tasks that insert a row each: one job in a call, and a hundred jobs in a call."""

from tests.tools.benchmarks.systems import ours

TASKS = """

from django_pgqueue import Chunk


@task
def insert(number):
    Visit.objects.create(customer_id=number % 1000 + 1, number=number)
    record.ran(number)


@task(chunk=100)
def insert_chunk(chunk: Chunk[int]):
    Visit.objects.bulk_create(Visit(customer_id=number % 1000 + 1, number=number) for number in chunk.items)
    for number in chunk.items:
        record.ran(number)
"""

SYSTEM = ours.SYSTEM._replace(
    name="chunks",
    files={**ours.SYSTEM.files, "app/tasks.py": ours.SYSTEM.files["app/tasks.py"] + TASKS},
    tasks=frozenset({"insert", "insert_chunk"}),
    settings="@task(chunk=100); bulk_create()",
    drain_jobs=10_000,
    sweep=(),
    ways=frozenset({"bulk"}),
)
