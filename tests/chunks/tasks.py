"""Tasks that run in chunks."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from django.contrib.auth.models import Group

from django_pgqueue import Cancel, Chunk, Dead, Retry, Snooze, task

seen: list[list[object]] = []
"""The items of each call."""


@dataclass
class Reading:
    """The argument of a job."""

    sensor: int
    value: Decimal
    at: datetime


@task(chunk=3)
def double(chunk: Chunk[int]) -> list[int]:
    """Return a result for each job."""
    seen.append(list(chunk.items))
    return [2 * item for item in chunk.items]


@task(chunk=100, chunk_wait=60)
def patient(chunk: Chunk[int]) -> None:
    """Wait for more jobs."""
    seen.append(list(chunk.items))


@task(chunk=10)
def store(chunk: Chunk[Reading]) -> None:
    """Take converted arguments."""
    seen.append(list(chunk.items))


@task(chunk=10, on_missing="cancel")
def rename(chunk: Chunk[Group]) -> None:
    """Take rows."""
    for job in chunk:
        Group.objects.filter(pk=job.item.pk).update(name=f"renamed {job.item.pk}")


ENDINGS = {
    "fail": ValueError("no"),
    "retry": Retry(60, "busy"),
    "dead": Dead("never"),
    "snooze": Snooze(60),
    "cancel": Cancel("not now"),
}


@task(chunk=10)
def mark(chunk: Chunk[str]) -> list[str]:
    """End each job as its item says. Raise an exception if the item is "raise"."""
    for job in chunk:
        if job.item in ENDINGS:
            chunk.fail(job, ENDINGS[job.item])
    if "raise" in chunk.items:
        raise LookupError("the call")
    return [item.upper() for item in chunk.items]


@task(chunk=10, atomic=True)
def in_transaction(chunk: Chunk[str]) -> None:
    """Write a row for each job, and mark or raise as `mark`."""
    for job in chunk:
        Group.objects.create(name=f"row {job.id}")
        if job.item in ENDINGS:
            chunk.fail(job, ENDINGS[job.item])
    if "raise" in chunk.items:
        raise LookupError("the call")


@task(chunk=10, atomic=True)
def return_in_transaction(chunk: Chunk[str]) -> list[object]:
    """Write a row for each job. The result of the items "set" and "nan" cannot be stored."""
    seen.append(list(chunk.items))
    for job in chunk:
        Group.objects.create(name=job.item)
        if job.item in ENDINGS:
            chunk.fail(job, ENDINGS[job.item])
    unstorable: dict[str, object] = {"set": {1}, "nan": float("nan")}
    return [unstorable.get(item, item.upper()) for item in chunk.items]


@task(chunk=10, keep_logs="INFO")
def talk(chunk: Chunk[int]) -> None:
    """Log a line."""
    logging.getLogger("shop").warning("%d jobs", len(chunk))


NO: ValueError = ValueError("no")


@task(chunk=10, max_attempts=1)
def fail_some(chunk: Chunk[str]) -> None:
    """End single jobs with exceptions, some with the same one. Raise one for the call if the item is "raise"."""
    for job in chunk:
        if job.item in ("same", "other"):
            chunk.fail(job, NO if job.item == "same" else LookupError(job.item))
        elif job.item in ("retry", "cancel"):
            chunk.fail(job, ENDINGS[job.item])
    if "raise" in chunk.items:
        raise OSError("the call")


@task(chunk=10)
async def on_loop(chunk: Chunk[int]) -> list[int]:
    """A coroutine."""
    await asyncio.sleep(0)
    seen.append(list(chunk.items))
    return [-item for item in chunk.items]


@task(chunk=10)
async def rows_on_loop(chunk: Chunk[Group]) -> list[str]:
    """A coroutine that takes rows."""
    return [group.name for group in chunk.items]


@task(chunk=10)  # type: ignore[arg-type]  # what the tests are about
def wrong(chunk: Chunk[object]) -> object:
    """Return the item of the first job as the results."""
    return chunk[0].item


@task(chunk=10, name="chunks.renamed", aliases=["chunks.former"])
def renamed(chunk: Chunk[int]) -> None:
    """Have an earlier name."""


@task(chunk=10, unique_key=lambda item: str(item % 2), search=["chunk"], expires=3600)
def with_options(chunk: Chunk[int]) -> None:
    """Have options that each job has."""
    seen.append([job.headers.get("tenant") for job in chunk])


@task(chunk=10, isolation="process", atomic=False)
def isolated(chunk: Chunk[str]) -> list[int]:
    """Run in another process."""
    if "exit" in chunk.items:
        os._exit(3)
    for job in chunk:
        if job.item == "fail":
            chunk.fail(job, ValueError("no"))
    return [os.getpid() for _ in chunk]


@task(chunk=4, chunk_wait=0.05)
def wait_for_file(chunk: Chunk[str]) -> list[int]:
    """Wait until a file exists. A test makes it."""
    path = Path(chunk[0].item)
    path.with_suffix(".started").touch()
    while not path.exists() and not any(job.cancel_requested() for job in chunk):
        time.sleep(0.005)
    return [len(chunk) for _ in chunk]
