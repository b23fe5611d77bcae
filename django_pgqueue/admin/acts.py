"""What an operator does to jobs, one or many: who may, what is told, what is written down.

The acts themselves are the models' `retry()`, `cancel()` and `run_now()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from django_pgqueue.exceptions import JobLocked
from django_pgqueue.models import BATCH_SIZE, Job, JobQuerySet
from django_pgqueue.states import TRANSITIONS, Act, State

from .words import seen_at

SELECTION_LIMIT: Final = 10_000
"""Jobs that one request acts on at most: 10 batches, done before a proxy gives the request up."""

LOGGED_ONE_BY_ONE: Final = 100
"""A batch up to this size gets a log entry per job; a larger one a single entry that names them."""


@dataclass(frozen=True)
class Operation:
    """One act as the admin offers it: `name` is in the URL, in the permission and in the action's name."""

    act: Act
    name: str
    label: Promise | str
    done: Any
    on_many: Callable[[JobQuerySet], int]
    on_one: Callable[[Job], bool]

    @property
    def permission(self) -> str:
        """The permission it needs, always on `Job`, also for dead letters."""
        return f"pgqueue.{self.name}_job"

    def is_allowed(self, request: HttpRequest) -> bool:
        """Say whether the user may do it, and see jobs at all."""
        return request.user.has_perm(self.permission) and request.user.has_perm("pgqueue.view_job")

    def fits(self, state: str, run_after: datetime, cancel_requested_at: datetime | None, now: datetime) -> bool:
        """Say whether it would change a job like this."""
        if state not in set(State) or self.act not in TRANSITIONS.get(State(state), {}):
            return False
        if self.act is Act.RUN_NOW:
            return run_after > now
        return not (self.act is Act.CANCEL and state == State.RUNNING and cancel_requested_at)


RETRY: Final = Operation(
    Act.RETRY,
    "retry",
    gettext_lazy("Retry"),
    ngettext_lazy("%(count)d job is ready again.", "%(count)d jobs are ready again.", "count"),
    JobQuerySet.retry,
    Job.retry,
)
CANCEL: Final = Operation(
    Act.CANCEL,
    "cancel",
    gettext_lazy("Cancel"),
    ngettext_lazy("%(count)d job cancelled or asked to stop.", "%(count)d jobs cancelled or asked to stop.", "count"),
    JobQuerySet.cancel,
    Job.cancel,
)
RUN_NOW: Final = Operation(
    Act.RUN_NOW,
    "run",
    gettext_lazy("Run now"),
    ngettext_lazy("%(count)d job is due now.", "%(count)d jobs are due now.", "count"),
    JobQuerySet.run_now,
    Job.run_now,
)
OPERATIONS: Final = (RETRY, CANCEL, RUN_NOW)


def offered(request: HttpRequest, job: Job) -> list[Operation]:
    """Return the operations that this user may do to this job as it stands."""
    now = seen_at(job)
    return [
        operation
        for operation in OPERATIONS
        if operation.is_allowed(request) and operation.fits(job.state, job.run_after, job.cancel_requested_at, now)
    ]


def act_on_one(request: HttpRequest, operation: Operation, job: Job) -> None:
    """Do it to one job, write it down, and tell the user; raises `PermissionDenied`."""
    if not operation.is_allowed(request):
        raise PermissionDenied
    try:
        changed = operation.on_one(job)
    except JobLocked:
        messages.error(request, _("Another session holds this job locked. Nothing was changed; try again."))
        return
    if changed:
        _write_down(request, operation, [job.pk], 1)
        messages.success(request, operation.done % {"count": 1})
    else:
        messages.warning(request, _("Nothing was changed: the job's state does not allow it any more."))


def act_on_many(request: HttpRequest, operation: Operation, queryset: QuerySet[Any]) -> None:
    """Do it to the first jobs of a queryset, in batches, and tell how many changed; raises `PermissionDenied`."""
    if not operation.is_allowed(request):
        raise PermissionDenied
    rows = _selected(queryset)
    asked = rows[:SELECTION_LIMIT]
    fitting = [job_id for job_id, *facts in asked if operation.fits(*facts)]
    changed = 0
    for start in range(0, len(fitting), BATCH_SIZE):
        changed += _act_on_batch(request, operation, fitting[start : start + BATCH_SIZE])
    _tell(request, operation, changed, len(asked) - changed)
    if len(rows) > SELECTION_LIMIT:
        limit = f"{SELECTION_LIMIT:,}"
        messages.warning(
            request, _("Only the first %(limit)s were looked at: do it again for more.") % {"limit": limit}
        )


def _selected(queryset: QuerySet[Any]) -> list[tuple[Any, ...]]:
    facts = ("pk", "state", "run_after", "cancel_requested_at", "seen_at")
    plain = queryset.prefetch_related(None).annotate(seen_at=Now())
    return list(plain.values_list(*facts)[: SELECTION_LIMIT + 1])


def _act_on_batch(request: HttpRequest, operation: Operation, job_ids: Sequence[int]) -> int:
    try:
        changed = operation.on_many(Job.objects.filter(pk__in=job_ids))
    except JobLocked:  # raised for a single job only; of several the locked ones are left out
        return 0
    _write_down(request, operation, job_ids, changed)
    return changed


def _tell(request: HttpRequest, operation: Operation, changed: int, unchanged: int) -> None:
    if changed:
        messages.success(request, operation.done % {"count": changed})
    if unchanged:
        text = ngettext(
            "%(count)d job was left as it is: its state does not allow this, or it is locked.",
            "%(count)d jobs were left as they are: their state does not allow this, or they are locked.",
            unchanged,
        )
        messages.warning(request, text % {"count": unchanged})


def _write_down(request: HttpRequest, operation: Operation, job_ids: Sequence[int], changed: int) -> None:
    """Log per job where each is known to have changed, else once, with what is known."""
    if not changed:
        return
    if changed == len(job_ids) <= LOGGED_ONE_BY_ONE:
        jobs = Job.objects.filter(pk__in=job_ids).only("task_name").order_by("pk")
        LogEntry.objects.log_actions(_user_id(request), jobs, CHANGE, f"{operation.label}.")
        return
    LogEntry.objects.create(
        user_id=_user_id(request),
        content_type=ContentType.objects.get_for_model(Job),
        object_repr=f"{changed} of {len(job_ids)} jobs",
        action_flag=CHANGE,
        change_message=f"{operation.label}: {changed} changed of {', '.join(map(str, job_ids))}.",
    )


def _user_id(request: HttpRequest) -> int:
    return cast(int, request.user.pk)  # anonymous users have no permission
