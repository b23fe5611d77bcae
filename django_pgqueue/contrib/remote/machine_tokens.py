"""The tokens of remote workers: create, check and revoke them, and limit the rate of their requests.

A token is a secret of 256 random bits. The table has its SHA-256 digest only, so neither a dump nor a reader of the
table can use a token. No slow hash is needed, because nobody can try 2^256 secrets. The digest is also the key of the
lookup. The time of a lookup depends on digests, but nobody can choose a secret by its digest.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from django.db import router

from django_pgqueue.db.fields import aware
from django_pgqueue.lifecycle import remote_tokens
from django_pgqueue.tasks import registry

from .problems import too_many, unauthorized
from .scope import Scope, why_unsupported

if TYPE_CHECKING:
    from datetime import datetime

    from django_pgqueue.db.statements import Connection

    from .models import RemoteToken

PREFIX: Final = "pgq_"
"""Programs that search for leaked secrets recognise a token by it."""
MAX_TOKEN_CHARACTERS: Final = 100
DEFAULT_REQUESTS_PER_MINUTE: Final = 6000
BUCKETS: Final = 10_000
"""How many tokens' rates a process remembers."""


class Caller(NamedTuple):
    """A valid token, which has made a request."""

    token_id: int
    name: str
    digest: bytes
    scope: Scope


def token_alias(database: str | None) -> str:
    """Return the alias of a database of jobs, which has their tokens too. None: the database routers choose it."""
    from django_pgqueue.models import Job  # not at the top: models can be imported only after the apps are loaded

    return database or router.db_for_write(Job)


def digest_of(secret: str) -> bytes:
    """Return the digest under which a token is stored."""
    return hashlib.sha256(secret.encode()).digest()


def create_token(
    connection: Connection,
    name: str,
    *,
    queue_names: Sequence[str] = (),
    task_names: Sequence[str] = (),
    requests_per_minute: int = DEFAULT_REQUESTS_PER_MINUTE,
    expires_in_seconds: float | None = None,
    created_by: str = "",
) -> str:
    """Create a token and return its secret, which cannot be read again.

    Args:
        connection: A connection to the database of the jobs.
        name: Names the token for people. No two valid tokens of a database have one name.
        queue_names: The queues that it gives access to. Empty: all.
        task_names: The tasks that it gives access to. Empty: all.
        requests_per_minute: How many requests a process of the server accepts per minute.
        expires_in_seconds: How long the token is valid. None: until it is revoked.
        created_by: Who creates it.

    Raises:
        ValueError: A task is unknown, or cannot run on a remote worker.
        django.db.IntegrityError: A valid token has the same name.
    """
    for task_name in task_names:
        task = registry.get(task_name)
        reason = "no such task is registered" if task is None else why_unsupported(task)
        if reason:
            raise ValueError(f"{task_name!r} cannot run on a remote worker: {reason}")
    secret = PREFIX + secrets.token_urlsafe(32)
    remote_tokens.create_remote_token(
        connection,
        name=name,
        digest=digest_of(secret),
        queue_names=queue_names,
        task_names=task_names,
        requests_per_minute=requests_per_minute,
        created_by=created_by,
        expires_in_seconds=expires_in_seconds,
    )
    return secret


def state_of(token: RemoteToken, now: datetime) -> str:
    """Return whether a token is `valid`, `expired` or `revoked`."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and aware(token.expires_at) <= aware(now) else "valid"


class RateLimiter:
    """How many requests each token may still make, in this process.

    Each token has a bucket that holds the requests of some seconds, and fills at the token's rate.
    """

    def __init__(
        self, what: str = "requests", *, holds_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._holds_seconds = holds_seconds
        self._clock = clock
        self._buckets: dict[bytes, tuple[float, float, float]] = {}
        """For each digest the requests left, when that was so, and the requests per second."""

    def check(self, digest: bytes) -> None:
        """Take a request from the bucket of a token that is known here. Raise `Problem` (429) if it is empty."""
        bucket = self._buckets.get(digest)
        if bucket is None:
            return
        left, at, per_second = bucket
        now = self._clock()
        left = min(left + (now - at) * per_second, self._most(per_second))
        if left < 1:
            wait_seconds = max(1, round((1 - left) / per_second))
            raise too_many(f"the token has made too many {self._what}", wait_seconds)
        self._buckets[digest] = left - 1, now, per_second

    def _most(self, per_second: float) -> float:
        return max(1.0, self._holds_seconds * per_second)

    def remember(self, digest: bytes, requests_per_minute: float) -> None:
        """Limit a token from now on, by the rate that its row has now."""
        per_second = max(requests_per_minute, 1) / 60
        known = self._buckets.get(digest)
        left, at = (self._most(per_second), self._clock()) if known is None else known[:2]
        self._buckets[digest] = left, at, per_second
        if len(self._buckets) > BUCKETS:
            self._buckets.pop(next(iter(self._buckets)), None)


rates: Final = RateLimiter()
registrations: Final = RateLimiter("registrations of workers", holds_seconds=3600.0)
"""Each registration adds a row, which stays for a while after its worker has stopped."""
REGISTRATIONS_PER_MINUTE: Final = 20
"""So a token may register 1,200 workers at once."""


def check_registration(digest: bytes) -> None:
    """Take a registration from the bucket of a token. Raise `Problem` (429) if it is empty."""
    registrations.remember(digest, REGISTRATIONS_PER_MINUTE)
    registrations.check(digest)


def caller_of(connection: Connection, digest: bytes) -> Caller:
    """Return whom a token belongs to. Raise `Problem` (401) if it is not valid."""
    row = remote_tokens.use_remote_token(connection, digest)
    if row is None:
        raise unauthorized()
    rates.remember(digest, row.requests_per_minute)
    return Caller(row.token_id, row.name, digest, Scope(row.queue_names, row.task_names))
