"""Signed tokens with which a browser can ask for one job or one batch, although their ids are sequential.

Applications call `job_token()` when they enqueue a job, and `views.job_status` or `job_from_token()` when the browser
asks; for a batch, `batch_token()`, and `views.batch_status` or `batch_from_token()`. The module protects one rule: a
token gives access to the job or the batch that it was made for and to no other, until it expires, and only to its user
if it has one. Jobs and batches have tokens of two kinds, so that the token of a job never opens a batch with its id. A
row that gets the same id later, after a restored dump or a failover, is another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from django.core import signing
from django.core.signing import BadSignature
from django.db import connections, router

from .durations import Duration, seconds
from .ground.batch_reference import BatchReference
from .tasks import registry
from .tasks.redaction import hides_result

if TYPE_CHECKING:
    from .models import Job, JobBatch

SALT: Final = "django_pgqueue.tokens"
"""Separates the tokens of jobs from everything else that the project signs with its SECRET_KEY."""
BATCH_SALT: Final = "django_pgqueue.tokens.batch"
"""Separates the tokens of batches from those of jobs, and from everything else."""
MAX_AGE_SECONDS: Final = 24 * 3600.0
"""How long a token is accepted if the reader names no other duration."""
LAST_ID: Final = 2**63 - 1
CLOCKS_SECONDS: Final = 60.0
"""How far the clocks of the application and the database may differ, for a token that is made of an id alone. The job
was enqueued before the token was made."""


class UserToken(Protocol):
    """The content of a token, with the database that it names and the user that it belongs to."""

    @property
    def database(self) -> str: ...

    @property
    def user_id(self) -> str | None: ...


_Content = TypeVar("_Content", bound=UserToken)


class Token(NamedTuple):
    """The content of the token of a job."""

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


class BatchToken(NamedTuple):
    """The content of the token of a batch. The fields are those of `Token`."""

    batch_id: int
    database: str
    user_id: str | None
    earliest_ms: int
    latest_ms: int

    def names(self, batch: JobBatch) -> bool:
        """Return whether a batch with the id of this token is the batch that the token was made for."""
        return self.earliest_ms <= _milliseconds(batch.created_at.timestamp()) <= self.latest_ms


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
    number = _row_id(job_id, "job_token() needs a job that was enqueued, or its id")
    user_id = _checked_user(alias, user, "job_token()")
    return signing.dumps([number, alias, with_result, user_id, earliest_ms, latest_ms], salt=SALT)


def batch_token(batch: BatchReference | JobBatch | int | str, *, user: Any = None, database: str | None = None) -> str:
    """Return a signed token for a batch, which is safe in a URL.

    The token is not encrypted. Its holder can read the batch's id, the database's alias and the user's primary key. No
    query is made.

    Args:
        batch: The `Batch`, the `batch` of a workflow, the row (`JobBatch`), or its id.
        user: The user that can use the token, with a primary key. None: anybody who has the token can use it.
        database: Alias of the batch's database, if `batch` is an id. By default the database routers choose it.

    Raises:
        ValueError: The batch is not stored, or the user has no primary key.

    Example::

        with Batch() as batch:
            load_row.using(batch=batch).enqueue_many((row.pk,) for row in rows)
        return JsonResponse({"token": batch_token(batch, user=request.user)})
    """
    from .models import JobBatch  # as above

    batch_id: int | str | None
    earliest_ms, latest_ms = 0, _milliseconds(time.time() + CLOCKS_SECONDS)
    if isinstance(batch, JobBatch):
        batch_id, alias = batch.pk, database or batch._state.db or router.db_for_write(JobBatch)
        created_at = batch.__dict__.get("created_at")
        if isinstance(created_at, datetime):
            earliest_ms = latest_ms = _milliseconds(created_at.timestamp())
    elif isinstance(batch, BatchReference):
        batch_id, alias = batch.id, batch.database
    else:
        batch_id, alias = batch, database or router.db_for_write(JobBatch)
    number = _row_id(batch_id, "batch_token() needs a batch that is stored, or its id")
    user_id = _checked_user(alias, user, "batch_token()")
    return signing.dumps([number, alias, user_id, earliest_ms, latest_ms], salt=BATCH_SALT)


def _row_id(row_id: object, needs: str) -> int:
    """Return an id as a number. Raise `ValueError` if no row can have it."""
    number = int(str(row_id)) if str(row_id).isdecimal() else 0
    if not 0 < number <= LAST_ID:
        raise ValueError(f"{needs}, not {row_id!r}")
    return number


def _checked_user(alias: str, user: Any, function: str) -> str | None:
    """Return the primary key of the user of a token. Raise `ValueError` for an unknown database or user."""
    if alias not in connections:
        raise ValueError(f"DATABASES has no alias {alias!r}")
    user_id = None if user is None else _id_of(user)
    if user is not None and user_id is None:
        raise ValueError(f"{function} needs a user with a primary key: this one is not logged in or not saved")
    return user_id


def read_token(token: str, *, max_age: Duration = MAX_AGE_SECONDS) -> Token:
    """Return the content of a token, without a query. The caller compares the user.

    Args:
        token: What `job_token()` returned.
        max_age: How old the token can be, in seconds or as a timedelta.

    Raises:
        BadSignature: The token was changed, was signed for something else, has expired, or names an unknown database.
    """
    return _read(token, SALT, Token, max_age)


def read_batch_token(token: str, *, max_age: Duration = MAX_AGE_SECONDS) -> BatchToken:
    """Return the content of a token that `batch_token()` returned, as `read_token()` does for a job."""
    return _read(token, BATCH_SALT, BatchToken, max_age)


def _read(token: str, salt: str, kind: Callable[..., _Content], max_age: Duration) -> _Content:
    age = timedelta(seconds=seconds(max_age))
    try:
        content = kind(*signing.loads(token, salt=salt, max_age=age))
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


def batch_from_token(token: str, *, user: Any = None, max_age: Duration = MAX_AGE_SECONDS) -> JobBatch:
    """Return the row of the batch of a token, in one query. `Batch.get(row.pk)` returns the batch.

    Args:
        token: What `batch_token()` returned.
        user: The user that presents the token. A token that was made for a user is valid for this user only.
        max_age: How old the token can be, in seconds or as a timedelta.

    Raises:
        BadSignature: The token was changed, was signed for something else, has expired, or belongs to another user.
            `SignatureExpired`, a subclass, if it has expired.
        JobBatch.DoesNotExist: The batch was pruned or deleted, or another batch has its id since.
    """
    from .models import JobBatch  # as above

    content = read_batch_token(token, max_age=max_age)
    if not belongs_to(content, user):
        raise BadSignature("the token belongs to another user")
    batch = JobBatch.objects.using(content.database).get(pk=content.batch_id)
    if not content.names(batch):
        raise JobBatch.DoesNotExist(f"batch {content.batch_id} is another one than when the token was made")
    return batch


def belongs_to(token: UserToken, user: Any) -> bool:
    """Return whether a user can use a token."""
    return token.user_id is None or (user is not None and token.user_id == _id_of(user))


def _milliseconds(timestamp: float) -> int:
    return int(1000 * timestamp)


def _id_of(user: Any) -> str | None:
    """Return the primary key of a user as text; None for an anonymous or unsaved user."""
    pk = getattr(user, "pk", None)
    return None if pk is None else str(pk)
