"""Tasks whose function gets many jobs in one call. Each job's argument is a dictionary with what `work()` reads."""

from __future__ import annotations

import threading
import uuid
from typing import Any

from django.db import connection

from django_pgqueue import Chunk, signals, task
from tests.tools.faults import journal, limits
from tests.tools.faults.app.tasks import linger
from tests.tools.faults.failpoints import hit

Jobs = Chunk[dict[str, Any]]
_started = threading.local()
"""The executions of the jobs that this thread is about to run. A chunk itself does not know them."""


def _note_start(sender: str, job_id: int, execution_id: int, **named: Any) -> None:
    _executions()[job_id] = execution_id


def _executions() -> dict[int, int]:
    found: dict[int, int] = _started.__dict__.setdefault("executions", {})
    return found


def work(chunk: Jobs, kind: str, effect: str) -> None:
    """Have an effect for each job, take a while, and fail the jobs that ask for it: before the given attempt."""
    failing = [job for job in chunk if job.attempt < job.item.get("before", 1)]
    call = uuid.uuid4().hex
    about = {
        job: {"call": call, "job": job.id, "execution": _executions().pop(job.id or 0), "kind": kind} for job in chunk
    }
    journal.write_each(
        "start", [{**each, "attempt": job.attempt, "fails": job in failing} for job, each in about.items()]
    )
    hit("body.begin")
    try:
        _write(effect, [each for job, each in about.items() if job not in failing])
        hit("body.mid")
        linger(None, max(job.item.get("seconds", 0.0) for job in chunk), chunk[0].item.get("until"))
    except BaseException as error:
        journal.write_each("end", [{**each, "ok": False, "error": type(error).__name__} for each in about.values()])
        raise
    for job in failing:
        chunk.fail(job, RuntimeError(f"attempt {job.attempt}"))
    hit("body.done")
    journal.write_each("end", [{**each, "ok": job not in failing} for job, each in about.items()])


def _write(effect: str, about: list[dict[str, Any]]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO public.fault_effect (job_id, execution_id, kind) VALUES (%s, %s, %s)",
            [[each["job"], each["execution"], effect] for each in about],
        )


@task(chunk=limits.CHUNK, chunk_wait=0.2, backoff=0)
def separate(chunk: Jobs) -> list[int]:
    """Have effects in transactions of their own."""
    work(chunk, "chunk", "plain")
    return [job.attempt for job in chunk]


@task(chunk=limits.CHUNK, chunk_wait=0.2, backoff=0, atomic=True)
def together(chunk: Jobs) -> list[int]:
    """Have effects in the transaction of the chunk."""
    work(chunk, "atomic chunk", "atomic")
    return [job.attempt for job in chunk]


for _task in (separate, together):
    signals.job_started.connect(_note_start, sender=_task.name, weak=False)
