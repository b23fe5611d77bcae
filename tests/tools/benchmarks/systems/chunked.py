"""This project with tasks that insert a row for each job: one job in a call, and chunks of 10, 100 and 500 jobs."""

from tests.tools.benchmarks.systems import ours

SIZES = (10, 100, 500)
TASKS = """

from django_pgqueue import Chunk


@task
def insert(number):
    Visit.objects.create(customer_id=number % 1000 + 1, number=number)
    record.ran(number)


@task(chunk=10)
def insert_10(chunk: Chunk[int]):
    insert_all(chunk)


@task(chunk=100)
def insert_100(chunk: Chunk[int]):
    insert_all(chunk)


@task(chunk=500)
def insert_500(chunk: Chunk[int]):
    insert_all(chunk)


def insert_all(chunk):
    Visit.objects.bulk_create(Visit(customer_id=number % 1000 + 1, number=number) for number in chunk.items)
    for number in chunk.items:
        record.ran(number)
"""

SYSTEM = ours.SYSTEM._replace(
    name="chunks",
    files={**ours.SYSTEM.files, "app/tasks.py": ours.SYSTEM.files["app/tasks.py"] + TASKS},
    tasks=frozenset({"insert", *(f"insert_{size}" for size in SIZES)}),
    settings="bulk_create()",
    drain_jobs=10_000,
    sweep=(),
    ways=frozenset({"bulk"}),
)
