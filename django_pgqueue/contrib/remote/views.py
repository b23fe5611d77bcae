"""The HTTP interface of remote workers. Each function here is one address; `urls` lists them.

The handlers read the request through `Fields`, and call `transitions` in the threads of the engine. The answer of an
operation on executions has one result for each, in the order of the request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from django_pgqueue.ground.endings import ENDINGS
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle.types import Claimed, TransitionStatus
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.report import Report

from . import reports, transitions
from .bodies import max_body_bytes
from .claim_group import WaitingClaim
from .endpoint import Answer, RemoteCall, endpoint
from .handles import (
    MAX_HANDLE_CHARACTERS,
    ExecutionHandle,
    WorkerHandle,
    read_execution,
    read_worker,
    sign_execution,
    sign_worker,
)
from .machine_tokens import check_registration
from .problems import unavailable
from .request_fields import Fields
from .transitions import Prepared

MAX_BATCH: Final = 100
"""Maximum number of jobs in one claim, and of executions in one request."""
MAX_WAIT_SECONDS: Final = 25.0
"""Proxies often end a request that is silent for 30 s."""
LONGEST_LEASE_SECONDS: Final = 3600.0
"""The longest lease that a claim may ask for. The job of a lost machine is stuck for so long. A machine that works
longer extends its leases."""
LATE_SECONDS: Final = 5.0
"""How long a claim waits beyond its time for a database that is slow."""
OPENAPI: Final = Path(__file__).parent / "openapi.json"
STATUSES: Final = {
    "done": HTTPStatus.OK,
    "already": HTTPStatus.OK,
    "lost": HTTPStatus.CONFLICT,
    "locked": HTTPStatus.SERVICE_UNAVAILABLE,
    "refused": HTTPStatus.UNPROCESSABLE_ENTITY,
    "unknown": HTTPStatus.NOT_FOUND,
}
"""The status of each word for what became of an execution."""


# ---------------------------------------------------------------------------- workers


@endpoint
async def workers(call: RemoteCall) -> Answer:
    """Register a worker."""
    check_registration(call.caller.digest)
    fields = Fields(call.body, ("name", "pid", "concurrency", "queues"))
    queue_names = call.caller.scope.narrowed(fields.texts("queues", most=MAX_BATCH, longest=100), ()).queue_names
    worker = WorkerHandle(
        worker_id=0,
        name=f"{call.caller.name}/{fields.text('name', most=100)}",
        pid=fields.integer("pid", 0, 2**31 - 1, 0),
        concurrency=fields.integer("concurrency", 1, 10_000, 1),
        queue_names=",".join(queue_names),
    )
    worker = await call.engine.run(transitions.register, worker)
    settings = get_settings()
    document = {
        "worker": sign_worker(worker, call.caller.token_id, call.alias),
        "worker_id": worker.worker_id,
        "lease_seconds": settings.LEASE,
        "max_lease_seconds": _longest_lease_seconds(),
        "extend_seconds": settings.heartbeat_seconds,
        "max_batch": MAX_BATCH,
        "max_body_bytes": max_body_bytes(),
        "max_wait_seconds": _longest_wait_seconds(),
    }
    return Answer(document, HTTPStatus.CREATED)


@endpoint
async def stop(call: RemoteCall) -> Answer:
    """Record that a worker has stopped, and release what it left open."""
    worker = _worker(call, Fields(call.body, ("worker",)))
    await call.engine.run(transitions.stop, worker, call.engine.reactions)
    return Answer({})


def _worker(call: RemoteCall, fields: Fields) -> WorkerHandle:
    return read_worker(fields.text("worker", most=MAX_HANDLE_CHARACTERS), call.caller.token_id, call.alias)


# ---------------------------------------------------------------------------- claims


@partial(endpoint, waits=True)
async def claim(call: RemoteCall) -> Answer:
    """Claim jobs. If no job is due, wait for one."""
    fields = Fields(call.body, ("worker", "limit", "wait_seconds", "lease_seconds", "queues", "tasks"))
    worker = _worker(call, fields)
    limit = fields.integer("limit", 1, MAX_BATCH, 1)
    lease_seconds = fields.seconds("lease_seconds", _longest_lease_seconds(), least=get_settings().LEASE)
    wait_seconds = min(fields.seconds("wait_seconds", MAX_WAIT_SECONDS) or 0.0, _longest_wait_seconds())
    scope = call.caller.scope.narrowed(
        fields.texts("queues", most=MAX_BATCH, longest=100), fields.texts("tasks", most=1000, longest=200)
    )
    await call.engine.run(transitions.record_heartbeat, worker)
    loop = asyncio.get_running_loop()
    waiting = WaitingClaim(
        scope=scope,
        worker_id=worker.worker_id,
        digest=call.caller.digest,
        limit=limit,
        lease_seconds=lease_seconds,
        # Machines that began to wait together must not ask again together.
        deadline=time.monotonic() + wait_seconds * random.uniform(0.8, 1),  # noqa: S311 -- spreads load
        loop=loop,
        future=loop.create_future(),
    )
    jobs = await _claimed(call, waiting, wait_seconds)
    if not jobs:
        return Answer({"executions": []})
    try:
        prepared = await asyncio.shield(call.engine.run(transitions.prepare, jobs, call.engine.reactions))
    except BaseException:  # the machine has gone, or a statement has failed
        call.engine.release_soon(jobs)
        raise
    return Answer({"executions": [_execution(call, worker, each, lease_seconds) for each in prepared]})


def _longest_wait_seconds() -> float:
    """Return how long a claim may wait: a worker that is silent for a lease would look lost."""
    return min(MAX_WAIT_SECONDS, get_settings().LEASE / 2)


def _longest_lease_seconds() -> float:
    return max(LONGEST_LEASE_SECONDS, get_settings().LEASE)


async def _claimed(call: RemoteCall, waiting: WaitingClaim, wait_seconds: float) -> list[Claimed]:
    """Return the jobs of a claim. If the machine goes away meanwhile, release them."""
    call.engine.claim(waiting)
    try:
        done, _ = await asyncio.wait({waiting.future}, timeout=wait_seconds + LATE_SECONDS)
    except asyncio.CancelledError:
        if not waiting.future.cancel() and waiting.future.exception() is None:
            call.engine.release_soon(waiting.future.result())
        raise
    if not done and waiting.future.cancel():
        raise unavailable()
    return waiting.future.result()


def _execution(
    call: RemoteCall, worker: WorkerHandle, prepared: Prepared, lease_seconds: float | None
) -> dict[str, Any]:
    job = prepared.claimed
    task = registry.get(job.task_name)
    handle = sign_execution(job, worker.worker_id, call.caller.token_id, call.alias, lease_seconds=lease_seconds)
    return {
        "execution": handle,
        "job_id": job.job_id,
        "execution_id": job.execution_id,
        "task": job.task_name,
        "queue": job.queue_name,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "crashes": job.crashes,
        "isolated": job.isolated,
        "args": prepared.args,
        "kwargs": prepared.kwargs,
        "headers": prepared.headers,
        "run_after": job.run_after.isoformat(),
        "lease_seconds": lease_seconds or get_settings().LEASE,
        "timeout_seconds": None if task is None else task.timeout_seconds,
        "start_within_seconds": None if job.start_by is None else max(0.0, job.start_by - time.monotonic()),
    }


# ---------------------------------------------------------------------------- executions


@endpoint
async def extend(call: RemoteCall) -> Answer:
    """Extend the leases of executions, write their progress, and say which are to be cancelled."""
    fields = Fields(call.body, ("worker", "executions"))
    worker = _worker(call, fields)
    if not fields.has("executions"):  # a worker without jobs says that it lives
        await call.engine.run(transitions.record_heartbeat, worker)
        return Answer({"executions": []})
    items = fields.objects("executions", ("execution", "progress"), most=MAX_BATCH)
    handles = _handles(call, items)
    known = [handle for handle in handles if handle is not None]
    progress = {
        handle.claimed.execution_id: noted
        for handle, item in zip(handles, items, strict=True)
        if (noted := _progress(item)) is not None and handle is not None
    }
    extended = await call.engine.run(transitions.extend, worker, known, progress)
    words = {execution_id: _extension(result.status) for execution_id, result in extended.results.items()}
    return _answer(
        items,
        handles,
        words,
        lambda handle: {"cancel_requested": handle.claimed.execution_id in extended.cancelled_ids},
    )


def _extension(status: TransitionStatus) -> str:
    return {TransitionStatus.DONE: "done", TransitionStatus.LOCKED: "locked"}.get(status, "lost")


def _progress(item: Fields) -> Progress | None:
    fields = item.object("progress", ("done", "total", "message"))
    if fields is None:
        return None
    return Progress(fields.number("done") or 0.0, fields.number("total"), fields.text("message", most=200, default=""))


@endpoint
async def complete(call: RemoteCall) -> Answer:
    """Write that executions have succeeded."""
    return await _end(call, ("execution", "result"), reports.succeeded)


@endpoint
async def fail(call: RemoteCall) -> Answer:
    """Write that executions have failed. The task's retry policy decides what follows, unless the request says it."""
    names = ("execution", "exception_class", "error", "traceback", "then", "retry_in_seconds", "crashed")
    return await _end(call, names, reports.failed)


@endpoint
async def release(call: RemoteCall) -> Answer:
    """Release executions without counting the attempt, at once or until later."""
    names = ("execution", "delay_seconds", "reason", "unknown", "holds_key")
    return await _end(call, names, reports.released)


async def _end(call: RemoteCall, names: Sequence[str], report_of: Callable[[str, Claimed, Fields], Report]) -> Answer:
    """Write how executions ended, by the report that `report_of` makes of each."""
    items = Fields(call.body, ("executions",)).objects("executions", names, most=MAX_BATCH)
    handles = _handles(call, items)
    made: dict[int, Report] = {}

    def write(connection: Any) -> dict[int, str]:
        # In a thread of the engine: the reports encode results, and call the backoff functions of tasks.
        for handle, item in zip(handles, items, strict=True):
            if handle is not None:
                made[handle.claimed.execution_id] = report_of(call.alias, handle.claimed, item)
        return transitions.write(connection, list(made.values()), call.engine.reactions)

    words = await call.engine.run(write)
    call.engine.note_ended(report.claimed.limit_key for report in made.values() if report.claimed.limit_key)
    return _answer(
        items,
        handles,
        words,
        lambda handle: {"outcome": ENDINGS[made[handle.claimed.execution_id].ending].outcome.value},
    )


def _handles(call: RemoteCall, items: Sequence[Fields]) -> list[ExecutionHandle | None]:
    texts = [item.text("execution", most=MAX_HANDLE_CHARACTERS) for item in items]
    return [read_execution(text, call.caller.token_id, call.alias) for text in texts]


def _answer(
    items: Sequence[Fields],
    handles: Sequence[ExecutionHandle | None],
    words: dict[int, str],
    more: Callable[[ExecutionHandle], dict[str, Any]],
) -> Answer:
    """Return the results of all executions. The status is 200, or that of all if they have failed alike, or 207."""
    results: list[dict[str, Any]] = []
    for item, handle in zip(items, handles, strict=True):
        word = "unknown" if handle is None else words[handle.claimed.execution_id]
        status = STATUSES[word]
        result = {"execution": item.text("execution", most=MAX_HANDLE_CHARACTERS), "status": status, "result": word}
        results.append(result | (more(handle) if handle is not None and status is HTTPStatus.OK else {}))
    statuses = {result["status"] for result in results}
    status = statuses.pop() if len(statuses) == 1 else HTTPStatus.MULTI_STATUS
    return Answer({"executions": results}, status)


# ---------------------------------------------------------------------------- the description


@require_safe
def openapi(request: HttpRequest, database: str | None = None) -> HttpResponse:
    """Return the OpenAPI description of this interface. It needs no token: it contains nothing of the project."""
    return HttpResponse(OPENAPI.read_bytes(), content_type="application/json")
