"""Columns of the lists of jobs and dead letters, computed from the job's row and its latest execution.

Used by `jobs`. No column runs a query: `with_latest_execution()` and `attach_executions()` read everything
that a page shows, in two queries for any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django.contrib import admin
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Concat, Left
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from django_pgqueue.admin.formatting import (
    breakable,
    duration,
    moment,
    moment_ago,
    progress_bar,
    seen_at,
    shortened,
    word_badge,
)
from django_pgqueue.admin.pause_admin import in_force
from django_pgqueue.admin.private import is_visible
from django_pgqueue.admin.readonly import column
from django_pgqueue.admin.row_operations import OperationsAdmin
from django_pgqueue.db.fields import statement_time
from django_pgqueue.declared.steps import is_endless
from django_pgqueue.ground.attempt_ends import STACK_START, AttemptEnd, end_of
from django_pgqueue.job_search import PausedNames, is_limit_paused, latest, word_of
from django_pgqueue.models import Execution, Job, Worker
from django_pgqueue.models.operations_link import lease_end
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import FINISHED, Outcome, Pausable, State

SHORT_ERROR = 200
"""Characters of an error that a list reads. It shows fewer; the rest allows for leading white space."""

WORKER_TIMES: Final = {"heartbeat_at": "last_heartbeat_at", "worker_stopped_at": "stopped_at"}
"""The columns of its worker that are read with an execution."""

FAILURES: Final = frozenset({Outcome.FAILED, Outcome.CRASHED})
"""Outcomes whose text is an error. The text of other outcomes is the reason for a release, snooze or cancel."""


def with_latest_execution(queryset: QuerySet[Any]) -> QuerySet[Any]:
    """Annotate jobs for a list with the database's clock, the id of their latest execution, and active pauses.

    Those of queues and tasks are few. Limit keys can be many, so each job has only whether its own key is paused. Large
    columns are not read. One value of arguments or result that Python cannot decode would otherwise break the
    whole page. `attach_executions()` reads the executions.
    """
    jobs: QuerySet[Any] = queryset.defer("arguments", "headers", "result").annotate(
        seen_at=statement_time(),
        latest_execution_id=Subquery(latest("id")),
        paused=ArraySubquery(in_force().exclude(kind=Pausable.LIMIT).values(of=Concat("kind", Value(" "), "name"))),
        is_limit_paused=is_limit_paused(),
    )
    return jobs


def attach_executions(jobs: Iterable[Job]) -> None:
    """Read the latest executions of the jobs on a page in one query, without large columns.

    `DISTINCT ON` instead would read all executions: 570 ms for 100 jobs with 10,000 executions.
    """
    by_id = {vars(job)["latest_execution_id"]: job for job in jobs}
    by_id.pop(None, None)
    if not by_id:
        return
    alias = next(iter(by_id.values()))._state.db
    executions = Execution.objects.using(alias).filter(pk__in=list(by_id)).defer("error", "traceback")
    worker = Worker.objects.filter(pk=OuterRef("worker_id"))
    times = {name: Subquery(worker.values(column)[:1]) for name, column in WORKER_TIMES.items()}
    cut = {"short_error": Left("error", SHORT_ERROR), "stack_start": Left("traceback", STACK_START)}
    for execution in executions.annotate(lease_end=lease_end(), **times, **cut):
        vars(by_id[execution.pk])["latest_execution"] = execution


def word(job: Job) -> str:
    """Return the word for the state of a job. Requires `with_latest_execution()` and `attach_executions()`."""
    execution = latest_execution(job)
    is_open = execution is not None and execution.outcome is None
    open_until = vars(execution)["lease_end"] if execution is not None and is_open else None
    return word_of({**vars(job), "seen_at": seen_at(job)}, open_until, pauses_seen(job))


def pauses_seen(job: Job) -> PausedNames:
    """Return the pauses that were active when the job was read. Requires `with_latest_execution()`."""
    found = [target.partition(" ") for target in vars(job)["paused"]]
    by_kind = {kind: [name for each, _, name in found if each == kind] for kind in Pausable}
    return PausedNames(by_kind[Pausable.QUEUE], by_kind[Pausable.TASK])


def latest_execution(job: Job) -> Execution | None:
    """Return the latest execution of a job. Requires `attach_executions()`."""
    return vars(job).get("latest_execution")


def is_suspended(job: Job) -> bool:
    """Return whether a step suspends a job until later. Requires `attach_executions()`."""
    execution = latest_execution(job)
    is_later = job.state == State.READY and job.run_after > seen_at(job)
    return is_later and execution is not None and execution.outcome == Outcome.SUSPENDED


def last_error(job: Job) -> str:
    """Return the exception's class and, if the user may see it, the start of the error of the latest execution."""
    execution = latest_execution(job)
    if execution is None:
        return ""
    error = vars(execution).get("short_error", "").strip() if is_visible(job) else ""
    name = execution.exception_class.rpartition(".")[2]
    return shortened(f"{name}: {error}" if name and error else name or error)


def _end_of(execution: Execution, job: Job) -> AttemptEnd:
    """Return what is known of the end of the latest attempt at a job. Requires `attach_executions()`."""
    columns = vars(execution)
    return end_of(
        execution,
        columns["short_error"],
        columns["stack_start"],
        lease_end=columns["lease_end"],
        heartbeat_at=columns["heartbeat_at"],
        stopped_at=columns["worker_stopped_at"],
        seen_at=seen_at(job),
        lease_seconds=get_settings().LEASE,
    )


def still_runs(job: Job) -> bool:
    """Return whether the code of the latest attempt may still run although the job does not.

    Requires `attach_executions()`.
    """
    execution = latest_execution(job)
    return execution is not None and job.state != State.RUNNING and _end_of(execution, job).may_still_run


class JobColumns(OperationsAdmin):
    """Columns of the lists of jobs and of dead letters."""

    number = column(gettext_lazy("job"), lambda job: f"#{job.pk}")
    queue = column(gettext_lazy("queue"), lambda job: breakable(job.queue_name))
    attempts = column(gettext_lazy("attempt"), lambda job: f"{job.attempt}/{job.max_attempts}")
    enqueued = column(gettext_lazy("enqueued"), lambda job: moment_ago(job.enqueued_at, job))
    died = column(gettext_lazy("died"), lambda job: moment_ago(job.finished_at, job))

    @admin.display(description=gettext_lazy("state"))
    def state_badge(self, job: Job) -> SafeString:
        """Return the word for the state in its colour, with the progress bar of an unfinished job."""
        is_stopped = vars(job)["is_limit_paused"] or pauses_seen(job).stop(job.queue_name, job.task_name)
        is_paused = job.state == State.READY and is_stopped
        shown = word_badge(name := word(job))
        if is_paused and name != "paused":
            shown = format_html('{}<div class="pgqueue-last-words">{}</div>', shown, gettext("paused"))
        if still_runs(job):
            note = gettext("its code may still run")
            shown = format_html('{}<div class="pgqueue-last-words">{}</div>', shown, note)
        done = "" if job.state in FINISHED else progress_bar(job.progress)
        return format_html("{}<div>{}</div>", shown, done) if done else shown

    @admin.display(description=gettext_lazy("task"))
    def task(self, job: Job) -> SafeString:
        """Return the name of the task, registered in this process or not, with the last error below it."""
        error, execution = last_error(job), latest_execution(job)
        if not error or execution is None:
            return breakable(job.task_name)
        kind = "last-error" if execution.outcome in FAILURES else "last-words"
        return format_html('{}<div class="pgqueue-{}">{}</div>', breakable(job.task_name), kind, error)

    @admin.display(description=gettext_lazy("wait"))
    def wait(self, job: Job) -> Any:
        """Return since when or until when a ready job waits; for others, how long the latest attempt had waited."""
        if job.state == State.READY:
            if is_suspended(job) and is_endless(job.run_after, seen_at(job)):
                return gettext("for an event")
            waited = seen_at(job) - job.run_after
            is_due = waited >= timedelta()
            return moment(job.run_after, duration(waited, brief=True)) if is_due else moment_ago(job.run_after, job)
        execution = latest_execution(job)
        if execution is None or execution.started_at is None:
            return ""
        waited = execution.started_at - job.run_after
        return duration(waited, brief=True) if waited >= timedelta() else ""

    @admin.display(description=gettext_lazy("run time"))
    def run_time(self, job: Job) -> str:
        """Return how long the latest attempt ran, or has been running so far; "" if nobody knows."""
        execution = latest_execution(job)
        if execution is None or execution.started_at is None or job.state == State.READY:
            return ""
        if _end_of(execution, job).loss is not None:
            return gettext("not known")
        return duration((execution.finished_at or seen_at(job)) - execution.started_at, brief=True)
