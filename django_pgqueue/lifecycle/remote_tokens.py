"""Write the tokens of remote workers: create, use and revoke them.

`django_pgqueue.contrib.remote` calls these functions. It protects one rule: a token that was revoked, or that has
expired, is never returned, because each request reads its row again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute


class RemoteTokenRow(NamedTuple):
    """A valid token. Without queues or tasks, it is valid for all of them."""

    token_id: int
    name: str
    queue_names: tuple[str, ...]
    task_names: tuple[str, ...]
    requests_per_minute: int


def create_remote_token(
    connection: Connection,
    *,
    name: str,
    digest: bytes,
    queue_names: Sequence[str],
    task_names: Sequence[str],
    requests_per_minute: int,
    created_by: str,
    expires_in_seconds: float | None,
) -> int:
    """Add a token by the digest of its secret, and return its id."""
    params = {
        "name": name,
        "digest": digest,
        "queue_names": json.dumps(list(queue_names)),
        "task_names": json.dumps(list(task_names)),
        "requests_per_minute": requests_per_minute,
        "created_by": created_by,
        "expires_in_seconds": expires_in_seconds,
    }
    return int(execute(connection, sql.remote_tokens.ADD_REMOTE_ACCESS, params)[0][0])


def use_remote_token(connection: Connection, digest: bytes) -> RemoteTokenRow | None:
    """Return the valid token with this digest, and record that it was used. None: there is no such token."""
    rows = execute(connection, sql.remote_tokens.CHECK_REMOTE_ACCESS, {"digest": digest})
    if not rows:
        return None
    token_id, name, queue_names, task_names, requests_per_minute = rows[0]
    return RemoteTokenRow(
        token_id, name, tuple(json.loads(queue_names)), tuple(json.loads(task_names)), requests_per_minute
    )


def revoke_remote_token(connection: Connection, token_id: int, *, revoked_by: str) -> str | None:
    """Revoke a token and return its name. None: it does not exist, or was revoked before."""
    params = {"token_id": token_id, "revoked_by": revoked_by}
    rows = execute(connection, sql.remote_tokens.REVOKE_REMOTE_ACCESS, params)
    return rows[0][0] if rows else None
