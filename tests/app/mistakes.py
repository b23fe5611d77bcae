"""Tasks with the mistakes of a beginner."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_pgqueue import Cancel, Chunk, Retry, task


@task
def write_without_commit(name: str, statement: str = "") -> None:
    """Switch autocommit off, or run a statement such as BEGIN; write a row, and return."""
    if statement:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    else:
        transaction.set_autocommit(False)
    Group.objects.create(name=name)


@task
def write_and_commit(name: str) -> None:
    """Do so, and commit."""
    transaction.set_autocommit(False)
    Group.objects.create(name=name)
    transaction.commit()


@task(isolation="process")
def write_isolated(name: str) -> None:
    """Do so in a process of its own."""
    write_without_commit(name)


@task
async def write_async(name: str) -> None:
    """Do so in the thread of the asynchronous ORM."""
    await sync_to_async(write_without_commit.func)(name)


@task(chunk=2)
def write_chunk(names: Chunk[str]) -> None:
    """Do so for several jobs."""
    transaction.set_autocommit(False)
    for job in names:
        Group.objects.create(name=job.item)


@task(max_attempts=2, backoff=0)
def write_and_fail(name: str) -> None:
    """Do so, and fail: its writes are to be rolled back."""
    write_without_commit(name)
    raise ValueError("no")


@task
def return_instead_of_raise(kind: str) -> object:
    """Return what a task has to raise."""
    return {"retry": Retry(5), "class": Retry, "cancel": Cancel("why")}[kind]


@task
async def areturn_instead_of_raise(kind: str) -> object:
    """Do so in a coroutine."""
    return return_instead_of_raise(kind)


@task
def return_group() -> object:
    """Return an instance of a model."""
    return Group.objects.create(name="result")


@task
def cancel_itself() -> None:
    """Cancel the job without a reason."""
    raise Cancel
