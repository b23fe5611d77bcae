"""Signed tokens with which a browser can ask for one job, although the ids of jobs are sequential.

Applications call `job_token()` when they enqueue a job, and `views.job_status` or `job_from_token()` when the browser
asks. The module protects one rule: a token gives access to the job that it was made for and to no other, until it
expires, and only to its user if it has one. A job that gets the same id later, after a restored dump or a failover, is
another one.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.core import signing
from django.core.signing import BadSignature
from django.db import connections, router

from .durations import Duration, seconds
from .tasks import registry
from .tasks.redaction import hides_result

if TYPE_CHECKING:
    from .models import Job

SALT: Final = "django_pgqueue.tokens"
"""Separates these tokens from everything else that the project signs with its SECRET_KEY."""
MAX_AGE_SECONDS: Final = 24 * 3600.0
"""How long a token is accepted if the reader names no other duration."""
LAST_ID: Final = 2**63 - 1
CLOCKS_SECONDS: Final = 60.0
"""How far the clocks of the application and the database may differ, for a token that is made of an id alone. The job
was enqueued before the token was made."""


class Token(NamedTuple):
    """The content of a token."""

    job_id: int
    database: str
    """Alias of the job's database."""
    with_result: bool
    """Whether the token gives access to the result too."""
    user_id: str | None
    """Primary key of the only user that can use the token; None for a token that anybody can use who has it."""
    earliest_ms: int
    latest_ms: int
    """When the job was enqueued, in milliseconds since 1970: the fence. Ids recur after a restored dump."""

    def names(self, job: Job) -> bool:
        """Return whether a job with the id of this token is the job that the token was made for."""
        return self.earliest_ms <= _milliseconds(job.enqueued_at.timestamp()) <= self.latest_ms


def job_token(job: Job | int | str, *, user: Any = None, with_result: bool = False, database: str | None = None) -> str:
    """Return a signed token for a job, which is safe in a URL.

    The token is not encrypted. Its holder can read the job's id, the database's alias and the user's primary key. No
    query is made.

    Args:
        job: The job, or its id.
        user: The user that can use the token, with a primary key. None: anybody who has the token can use it.
        with_result: Whether `views.job_status` returns the job's result too.
        database: Alias of the job's database, if `job` is an id. By default the database routers choose it.

    Raises:
        ValueError: The job has no id, the user has no primary key, or the result is sensitive.

    Example::

        job = build_report.enqueue(request.user.pk)
        return JsonResponse({"token": job_token(job, user=request.user, with_result=True)})
    """
    from .models import Job  # not at the top: models can be imported only after the apps are loaded

    job_id: int | str | None
    earliest_ms, latest_ms = 0, _milliseconds(time.time() + CLOCKS_SECONDS)
    if isinstance(job, Job):
        enqueued_at = job.__dict__.get("enqueued_at")
        if isinstance(enqueued_at, datetime):  # otherwise the job was not enqueued, or this column is not loaded
            earliest_ms = latest_ms = _milliseconds(enqueued_at.timestamp())
        job_id, alias = job.pk, database or job.write_alias
        task = registry.get(job.task_name)
        if with_result and task is not None and hides_result(task):
            raise ValueError(f"{task.name} marks its result as sensitive: make the token without it")
    else:
        job_id, alias = job, database or router.db_for_write(Job)
    number = int(job_id) if str(job_id).isdecimal() else 0
    if not 0 < number <= LAST_ID:
        raise ValueError(f"job_token() needs a job that was enqueued, or its id, not {job_id!r}")
    if alias not in connections:
        raise ValueError(f"DATABASES has no alias {alias!r}")
    user_id = None if user is None else _id_of(user)
    if user is not None and user_id is None:
        raise ValueError("job_token() needs a user with a primary key: this one is not logged in or not saved")
    return signing.dumps([number, alias, with_result, user_id, earliest_ms, latest_ms], salt=SALT)


def read_token(token: str, *, max_age: Duration = MAX_AGE_SECONDS) -> Token:
    """Return the content of a token, without a query. The caller compares the user.

    Args:
        token: What `job_token()` returned.
        max_age: How old the token can be, in seconds or as a timedelta.

    Raises:
        BadSignature: The token was changed, was signed for something else, has expired, or names an unknown database.
    """
    age = timedelta(seconds=seconds(max_age))
    try:
        content = Token(*signing.loads(token, salt=SALT, max_age=age))
    except (TypeError, ValueError):  # it contains a lone surrogate, or is signed but has another form
        raise BadSignature("this is not a token") from None
    if content.database not in connections:
        raise BadSignature("the token names a database that this project does not have")
    return content


def job_from_token(token: str, *, user: Any = None, max_age: Duration = MAX_AGE_SECONDS) -> Job:
    """Return the job of a token, in one query.

    Args:
        token: What `job_token()` returned.
        user: The user that presents the token. A token that was made for a user is valid for this user only.
        max_age: How old the token can be, in seconds or as a timedelta.

    Raises:
        BadSignature: The token was changed, was signed for something else, has expired, or belongs to another user.
            `SignatureExpired`, a subclass, if it has expired.
        Job.DoesNotExist: The job was pruned or deleted, or another job has its id since.

    Example::

        job = job_from_token(token, user=request.user, max_age=timedelta(hours=1))
    """
    from .models import Job  # as above

    content = read_token(token, max_age=max_age)
    if not belongs_to(content, user):
        raise BadSignature("the token belongs to another user")
    job = Job.objects.using(content.database).get(pk=content.job_id)
    if not content.names(job):
        raise Job.DoesNotExist(f"job {content.job_id} is another one than when the token was made")
    return job


def belongs_to(token: Token, user: Any) -> bool:
    """Return whether a user can use a token."""
    return token.user_id is None or (user is not None and token.user_id == _id_of(user))


def _milliseconds(timestamp: float) -> int:
    return int(1000 * timestamp)


def _id_of(user: Any) -> str | None:
    """Return the primary key of a user as text; None for an anonymous or unsaved user."""
    pk = getattr(user, "pk", None)
    return None if pk is None else str(pk)
