"""A view with which a browser polls for one job.

Projects include it in their URLs. It makes one query by primary key. It returns neither the id, the arguments, the
headers nor an error of the job, and the result only if the token was made for it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from django.core.signing import BadSignature
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from .durations import Duration
from .ground.envelope import EncodedValue
from .states import FINISHED, State
from .tasks import registry
from .tasks.redaction import hides_result
from .tokens import MAX_AGE_SECONDS, Token, belongs_to, read_token

if TYPE_CHECKING:
    from .models import Job

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
    # A token without a user is valid for anybody, so the session is not read for it.
    if content.user_id is not None and not belongs_to(content, getattr(request, "user", None)):
        return _not_found()
    job = _read(content)
    return _not_found() if job is None else JsonResponse(_status(job, content))


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
