"""Views with which a browser polls for one job, or for one batch.

Projects include them in their URLs. The view of a job makes one query by primary key. It returns neither the id, the
arguments, the headers nor an error of the job, and the result only if the token was made for it. The view of a batch
makes a second query, which counts its jobs, and returns nothing else of them.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from django.core.signing import BadSignature
from django.db import connections
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from .composed.batches import BatchProgress
from .durations import Duration
from .ground.envelope import EncodedValue
from .lifecycle.batches import count_jobs
from .states import FINISHED, State
from .tasks import registry
from .tasks.redaction import hides_result
from .tokens import MAX_AGE_SECONDS, BatchToken, Token, UserToken, belongs_to, read_batch_token, read_token

if TYPE_CHECKING:
    from .models import Job, JobBatch

COLUMNS = (
    "id",
    "enqueued_at",
    "task_name",
    "state",
    "progress_done",
    "progress_total",
    "progress_message",
    "progress_at",
)
BATCH_COLUMNS = ("id", "created_at", "closed_at", "failed_at", "completed_at", "succeeded_at")


@cache_control(no_store=True)
@require_safe
def job_status(request: HttpRequest, token: str, max_age: Duration = MAX_AGE_SECONDS) -> HttpResponseBase:
    """Return the state and the progress of a token's job as JSON, and its result if the token was made for that.

    The answer is a JSON object with `state`, `is_finished` and `progress`. `progress` is null, or an object with
    `done`, `total`, `fraction` and `message`. The key `result` is there only if the job has succeeded, the token was
    made with `with_result`, the task does not mark its result as sensitive, and this process can decode the result.

    The status is 404 if the token was changed, has expired or belongs to another user, or if the job no longer
    exists.

    Args:
        request: A GET or HEAD request.
        token: What `tokens.job_token()` returned.
        max_age: How old the token can be, in seconds or as a timedelta. Set it in the URL configuration.

    Example::

        path("jobs/<str:token>/", job_status, {"max_age": timedelta(hours=1)}, name="job_status")
    """
    try:
        content = read_token(token, max_age=max_age)
    except BadSignature:
        return _not_found()
    if not _is_of_user(content, request):
        return _not_found()
    job = _read(content)
    return _not_found() if job is None else JsonResponse(_status(job, content))


@cache_control(no_store=True)
@require_safe
def batch_status(request: HttpRequest, token: str, max_age: Duration = MAX_AGE_SECONDS) -> HttpResponseBase:
    """Return the state and the progress of a token's batch as JSON.

    The answer is a JSON object with `state`, `is_finished`, `progress` and `jobs`. `progress` has `done`, `failed`,
    `total` and `fraction`, and an empty `message`, so that a script for jobs can read it. `jobs` has the number of jobs
    in each state. The jobs of nested batches and those that were removed are counted too.

    The status is 404 if the token was changed, has expired or belongs to another user, or if the batch no longer
    exists.

    Args:
        request: A GET or HEAD request.
        token: What `tokens.batch_token()` returned.
        max_age: How old the token can be, in seconds or as a timedelta. Set it in the URL configuration.

    Example::

        path("batches/<str:token>/", batch_status, {"max_age": timedelta(hours=1)}, name="batch_status")
    """
    from .models import JobBatch  # not at the top: models can be imported only after the apps are loaded

    try:
        content = read_batch_token(token, max_age=max_age)
    except BadSignature:
        return _not_found()
    if not _is_of_user(content, request):
        return _not_found()
    row = JobBatch.objects.using(content.database).only(*BATCH_COLUMNS).filter(pk=content.batch_id).first()
    return _not_found() if row is None or not content.names(row) else JsonResponse(_batch_status(row, content))


def _batch_status(row: JobBatch, token: BatchToken) -> dict[str, Any]:
    from .models.batch_states import word_of  # as above

    counts = count_jobs(connections[token.database], [token.batch_id])[token.batch_id]
    jobs = BatchProgress(**counts)
    failed = jobs.dead + jobs.cancelled
    numbers = {"done": jobs.finished, "failed": failed, "total": jobs.total, "fraction": jobs.fraction}
    return {
        "state": word_of(row),
        # A retry of a job of a complete batch leaves the time of its completion.
        "is_finished": row.completed_at is not None and jobs.finished == jobs.total,
        "progress": {**numbers, "message": ""},
        "jobs": jobs._asdict(),
    }


def _is_of_user(content: UserToken, request: HttpRequest) -> bool:
    """Return whether the user of a request can use a token. Without a user in it, the session is not read."""
    return content.user_id is None or belongs_to(content, getattr(request, "user", None))


def _not_found() -> JsonResponse:
    return JsonResponse({"error": "not found"}, status=404)


def _read(token: Token) -> Job | None:
    from .models import Job  # not at the top: models can be imported only after the apps are loaded

    columns = (*COLUMNS, "result") if token.with_result else COLUMNS
    job = Job.objects.using(token.database).only(*columns).filter(pk=token.job_id).first()
    return job if job is not None and token.names(job) else None


def _status(job: Job, token: Token) -> dict[str, Any]:
    status = {"state": job.state, "is_finished": job.state in FINISHED, "progress": _progress(job)}
    if token.with_result and job.state == State.SUCCEEDED and _may_show(job):
        status["result"] = job.result
    return status


def _progress(job: Job) -> dict[str, Any] | None:
    if job.progress is None:
        return None
    numbers = {"done": job.progress.done, "total": job.progress.total, "fraction": job.progress.fraction}
    finite = {name: number if number is None or math.isfinite(number) else None for name, number in numbers.items()}
    return {**finite, "message": job.progress.message}


def _may_show(job: Job) -> bool:
    """Return whether the result can be shown. A task that this process does not know can have sensitive results."""
    task = registry.get(job.task_name)
    if task is None or hides_result(task) or isinstance(job.result, EncodedValue):
        return False
    try:
        json.dumps(job.result, allow_nan=False)  # browsers cannot read NaN, which a row written by hand can contain
    except (ValueError, RecursionError):
        return False
    return True
