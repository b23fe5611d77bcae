"""Show the state of each schedule, also that its latest jobs died, and the table of its latest runs.

The list and the page of schedules call it. One statement reads the runs of all schedules that a page shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from django.db import connections
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import private
from django_pgqueue.admin.formatting import (
    badge,
    breakable,
    dated,
    duration,
    full_date,
    seen_at,
    shortened,
    word_badge,
)
from django_pgqueue.admin.navigation import allowed_url
from django_pgqueue.models import Schedule
from django_pgqueue.models.schedules import IfRunning
from django_pgqueue.schedules.words import NextRun, ScheduleWord, is_paused, next_run_of, problem_of, word_of
from django_pgqueue.states import FINISHED
from django_pgqueue.stats.schedule_runs import RUNS_SHOWN, PastRun, failed_in_a_row, past_runs

BADGES: Final = {
    ScheduleWord.CANNOT_RUN: ("dead", gettext_lazy("cannot run")),
    ScheduleWord.PAUSED: ("paused", gettext_lazy("paused")),
    ScheduleWord.UNDECLARED: ("cancelled", gettext_lazy("in no worker's code")),
    ScheduleWord.FAILING: ("dead", gettext_lazy("failing, %(count)s in a row")),
    ScheduleWord.ON: ("succeeded", gettext_lazy("on")),
}
"""For the state of a schedule, the state of jobs whose colour the badge has, and the text of the badge."""
REMOVED: Final = gettext_lazy(
    "Some of these jobs were removed after their retention or by an operator. How they ended is not known any more."
)
ERROR_SHOWN: Final = 200
"""Characters shown of an error message."""
OLDER: Final = gettext_lazy("Older runs are not shown.")


def may_view_attempts(request: HttpRequest) -> bool:
    """Return whether the user may see how the jobs of a schedule ran. The permission for schedules is not enough."""
    return request.user.has_perm("pgqueue.view_job")


def attach_runs(schedules: Collection[Schedule], alias: str, *, with_attempts: bool = False) -> None:
    """Read the latest runs of schedules for `state_badge()` and `shown_runs()`."""
    found = past_runs(connections[alias], [each.pk for each in schedules], with_attempts=with_attempts)
    for schedule in schedules:
        vars(schedule)["past_runs"] = found[schedule.pk]


def state_badge(schedule: Schedule) -> SafeString:
    """Return the word for the state of a schedule, and the end of its pause. Requires `attach_runs()`."""
    failed = failed_in_a_row(_runs_of(schedule))
    word = word_of(schedule, seen_at(schedule), failed)
    state, label = BADGES[word]
    shown = badge(state, str(label) % {"count": failed})
    if word is not ScheduleWord.PAUSED or not schedule.enabled:
        return shown
    until = _("until %(at)s") % {"at": full_date(cast(datetime, schedule.paused_until))}
    return format_html('{}<div class="pgqueue-quiet">{}</div>', shown, until)


def next_run(schedule: Schedule) -> NextRun | None:
    """Return the next run of a schedule; None if it is paused or cannot run. Requires `attach_runs()`."""
    if is_paused(schedule, seen_at(schedule)) or problem_of(schedule):
        return None
    return next_run_of(schedule, _runs_of(schedule))


def skipped_in_pause(schedule: Schedule) -> NextRun | None:
    """Return the coming run that was skipped before a pause; None if none was. Requires `attach_runs()`."""
    for run in _runs_of(schedule):
        if run.skipped_by is not None and run.tick_at > seen_at(schedule):
            return NextRun(run.tick_at, run.tick_at, run.skipped_by)
    return None


def waits_for(schedule: Schedule) -> int | None:
    """Return the job of the latest run if the next run waits for its end. Requires `attach_runs()`."""
    latest = next((run for run in _runs_of(schedule) if run.skipped_by is None), None)
    is_unfinished = latest is not None and latest.state is not None and latest.state not in FINISHED
    return latest.job_id if latest is not None and is_unfinished and schedule.if_running == IfRunning.QUEUE else None


def skipped_text(by: str) -> str:
    """Return who has skipped a run."""
    return _("skipped by %(who)s") % {"who": shortened(by)} if by else _("skipped by an operator")


def skipped_before(found: NextRun) -> str:
    """Return which run before the next one was skipped, and by whom; "" if none was."""
    if found.skipped_at is None:
        return ""
    about = {"at": full_date(found.skipped_at), "skipped": skipped_text(found.skipped_by)}
    return _("the run at %(at)s was %(skipped)s") % about


def shown_runs(request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
    """Return the latest runs for the template, and notes about those that are missing. Requires `attach_runs()`."""
    runs = [run for run in _runs_of(schedule) if run.tick_at <= seen_at(schedule)]  # one in the future can be skipped
    rows = [_row(request, schedule, run) for run in runs[:RUNS_SHOWN]]
    return {"rows": rows, "notes": list(_notes(runs)), "has_attempts": may_view_attempts(request)}


def _runs_of(schedule: Schedule) -> Sequence[PastRun]:
    found: Sequence[PastRun] = vars(schedule)["past_runs"]
    return found


def _row(request: HttpRequest, schedule: Schedule, run: PastRun) -> dict[str, Any]:
    url = _job_url(request, run)
    message = run.error.strip().partition("\n")[0] if private.may_view(request) else ""
    return {
        "tick": dated(run.tick_at, schedule, with_zone=True),
        "job": "" if run.job_id is None else f"#{run.job_id}",
        "url": url,
        "state": _state(run),
        "ran": _run_time(run),
        "exception_class": breakable(run.exception_class),
        "error": shortened(message, ERROR_SHOWN),
    }


def _job_url(request: HttpRequest, run: PastRun) -> str:
    """Return the URL of the job, "" if it does not exist or the user may not see it."""
    return allowed_url(request, "job_change", run.job_id) if run.state is not None else ""


def _run_time(run: PastRun) -> str:
    if run.is_lost:
        return _("not known")
    return "" if run.ran_seconds is None else duration(timedelta(seconds=run.ran_seconds), brief=True)


def _state(run: PastRun) -> SafeString:
    if run.state is not None:
        return word_badge(run.state)
    if run.skipped_by is not None:
        return badge("unknown", skipped_text(run.skipped_by))
    return badge("unknown", _("removed") if run.is_removed else _("skipped"))


def _notes(runs: Sequence[PastRun]) -> Iterable[Any]:
    if any(run.is_removed for run in runs[:RUNS_SHOWN]):
        yield REMOVED
    if len(runs) > RUNS_SHOWN:
        yield OLDER
