"""Signed texts by which a machine names its worker and its executions.

A handle contains everything that the server needs to write how an execution ended, so any process of the server can do
that. The signature binds it to the project's SECRET_KEY, to the database and to the token: a machine cannot make one,
and a handle that was stolen is useless without the token. A handle is not encrypted.

A claim can ask for a longer lease. The handle keeps its length too, so each extension is as long as the claim asked.

The id of an execution and the time of its claim are the fence. Ids recur after a restored dump, the time does not.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from django.core import signing

from django_pgqueue.lifecycle.types import Claimed

from .problems import Problem

EXECUTION_SALT: Final = "django_pgqueue.contrib.remote.execution"
WORKER_SALT: Final = "django_pgqueue.contrib.remote.worker"
MAX_HANDLE_CHARACTERS: Final = 4000
OF_CLAIMED: Final = (
    *("job_id", "execution_id", "claimed_ms", "task_name", "queue_name", "priority", "run_after", "attempt"),
    *("max_attempts", "crashes", "unknown_seconds", "limit_key", "is_probe"),
)
"""The values of a claimed job in a handle, in this order."""


class WorkerHandle(NamedTuple):
    """A registered remote worker, with what its record says, in case that has to be written again."""

    worker_id: int
    name: str
    pid: int
    concurrency: int
    queue_names: str


def sign_worker(worker: WorkerHandle, token_id: int, alias: str) -> str:
    """Return the handle of a worker."""
    return signing.dumps([alias, token_id, *worker], salt=WORKER_SALT)


def read_worker(text: str, token_id: int, alias: str) -> WorkerHandle:
    """Return the worker of a handle. Raise `Problem` (404) if it is not one of this token."""
    return WorkerHandle(*_read(text, WORKER_SALT, token_id, alias, "worker"))


def sign_execution(
    job: Claimed, worker_id: int, token_id: int, alias: str, *, lease_seconds: float | None = None
) -> str:
    """Return the handle of a claimed job. `lease_seconds` is None unless its claim asked for a longer lease."""
    values = {name: getattr(job, name) for name in OF_CLAIMED}
    values |= {"claimed_ms": int(job.claimed_ms), "run_after": job.run_after.timestamp()}
    group = [bool(job.in_graph), job.batch_id] if job.in_graph or job.batch_id is not None else []
    more = group if lease_seconds is None else [bool(job.in_graph), job.batch_id, lease_seconds]
    return signing.dumps([alias, token_id, worker_id, *values.values(), *more], salt=EXECUTION_SALT)


class ExecutionHandle(NamedTuple):
    """An execution of a remote worker."""

    claimed: Claimed
    """The job without its arguments and headers."""
    worker_id: int
    lease_seconds: float | None
    """How long each extension of its lease lasts. None: as long as the leases of local workers."""


def read_execution(text: str, token_id: int, alias: str) -> ExecutionHandle | None:
    """Return the execution of a handle. None: it is not a handle of this token."""
    try:
        worker_id, *values = _read(text, EXECUTION_SALT, token_id, alias, "execution")
        known = dict(zip(OF_CLAIMED, values[: len(OF_CLAIMED)], strict=True))
    except (Problem, ValueError):  # ValueError: a handle of another release
        return None
    # A handle of a job without a batch, whose claim asked for no lease, has none of these.
    in_graph, batch_id, lease_seconds = (*values[len(OF_CLAIMED) :], None, None, None)[:3]
    seconds_ago = max(0.0, time.time() - known["claimed_ms"] / 1000)
    known |= {"claimed_ms": float(known["claimed_ms"]), "run_after": datetime.fromtimestamp(known["run_after"], UTC)}
    claimed = Claimed(
        **known,
        arguments="",
        isolated=False,
        claimed_at=time.monotonic() - seconds_ago,
        batch_id=batch_id,
        in_graph=in_graph or None,
    )
    return ExecutionHandle(claimed, worker_id, lease_seconds)


def _read(text: str, salt: str, token_id: int, alias: str, kind: str) -> list[Any]:
    try:
        found_alias, found_token_id, *content = signing.loads(text, salt=salt)
    except (signing.BadSignature, ValueError, TypeError):
        found_alias, found_token_id, content = "", 0, []
    if (found_alias, found_token_id) != (alias, token_id):
        raise Problem(HTTPStatus.NOT_FOUND, "unknown", f"the token has no such {kind}")
    return list(content)
