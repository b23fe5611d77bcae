"""Hidden form fields with the state that a page showed, so that an operation applies to that state only.

The lists and pages of jobs, schedules and pauses write the fields into their forms; `job_actions`, `schedule_actions`
and `pauses` read them back. Invariant: a click changes a job only if the job is still as the page showed it, however
often the button is pressed and by however many operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_pgqueue.models import Job, Pause, Schedule
from django_pgqueue.states import Seen, State

from .formatting import seen_at

FIELD: Final = "shown"
TIME_FIELD: Final = "shown_at"
SCHEDULE_FIELD: Final = "shown_schedule"
RUNS_FIELD: Final = "shown_runs"
PAUSE_FIELD: Final = "shown_pauses"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
MOMENT: Final = re.compile(r"(?:-?[0-9]{1,18})?")
JOB: Final = re.compile(rf"([0-9]{{1,19}}):({MOMENT.pattern}):({MOMENT.pattern}):(\w+)")
STATES: Final = {**{state.value: state.value for state in State}, "acknowledged": State.DEAD.value}
"""The words for what a page showed of a job, and the state in the row for each."""
SCHEDULE: Final = re.compile(rf"([0-9]{{1,19}}):([0-9]{{1,18}}):({MOMENT.pattern})")


def hidden_input(name: str, value: object) -> SafeString:
    """Return one hidden input of a form."""
    return format_html('<input type="hidden" name="{}" value="{}">', name, value)


def fields(job: Job) -> SafeString:
    """Return the hidden inputs for a form with an operation on this job."""
    return hidden_input(FIELD, token(job.pk, as_seen(job))) + hidden_input(TIME_FIELD, number(seen_at(job)))


def hidden(seen: Mapping[int, Seen]) -> SafeString:
    """Return the hidden input of a page that asks about jobs, with what the page before it showed."""
    return hidden_input(FIELD, " ".join(token(job_id, each) for job_id, each in seen.items()))


def as_seen(job: Job) -> Seen:
    """Return the values that an operation on this job compares."""
    return Seen(job.state, job.finished_at, job.run_after, job.acknowledged_at is not None)


def token(job_id: int, seen: Seen) -> str:
    """Return a job's id and what was seen of it as text without spaces."""
    state = "acknowledged" if seen.is_acknowledged else seen.state if seen.state in set(State) else "?"
    return f"{job_id}:{number(seen.finished_at)}:{number(seen.run_after)}:{state}"


def read(request: HttpRequest) -> dict[int, Seen]:
    """Return what the page that posted this form showed, by job id. Unreadable values are left out."""
    items = " ".join(request.POST.getlist(FIELD)).split()
    found = (match for item in items if (match := JOB.fullmatch(item)) and match[4] in STATES)
    return {
        int(match[1]): Seen(STATES[match[4]], _moment(match[2]), _moment(match[3]), match[4] == "acknowledged")
        for match in found
    }


def page_at(request: HttpRequest) -> datetime:
    """Return when the page was read, by the database's clock; 1970 if the form does not contain it.

    With 1970, no job counts as unchanged since then.
    """
    match = MOMENT.fullmatch(next(iter(request.POST.getlist(TIME_FIELD)), ""))
    return (match and _moment(match[0])) or EPOCH


def schedule_field(schedule: Schedule) -> SafeString:
    """Return the hidden input for a form with an operation on this schedule."""
    return _schedule_input(schedule.pk, schedule.revision, schedule.last_run_at)


def same_schedule_field(request: HttpRequest, schedule: Schedule) -> SafeString:
    """Return the hidden input of the form that was posted, or a new one if it had none.

    A form that is shown again, with errors, stays bound to what it showed first. Otherwise, saving it would overwrite
    what another user has saved in the meantime.
    """
    posted = read_schedule(request, schedule.pk)
    return schedule_field(schedule) if posted is None else _schedule_input(schedule.pk, *posted)


def _schedule_input(schedule_id: int, revision: int, last_run_at: datetime | None) -> SafeString:
    return hidden_input(SCHEDULE_FIELD, f"{schedule_id}:{revision}:{number(last_run_at)}")


def read_schedule(request: HttpRequest, schedule_id: int) -> tuple[int, datetime | None] | None:
    """Return the revision and the last run that the page showed; None if the form does not contain them."""
    for item in request.POST.getlist(SCHEDULE_FIELD):
        match = SCHEDULE.fullmatch(item)
        if match is not None and match[1] == str(schedule_id):
            return int(match[2]), _moment(match[3])
    return None


def runs_field(schedules: Iterable[Schedule]) -> SafeString:
    """Return the hidden input of a page that names the next run of each schedule."""
    return hidden_input(
        RUNS_FIELD, " ".join(f"{each.pk}:{each.revision}:{number(each.next_run_at)}" for each in schedules)
    )


def read_runs(request: HttpRequest) -> dict[int, tuple[int, datetime]]:
    """Return the revision and the next run that the page named, by the id of the schedule."""
    matches = (SCHEDULE.fullmatch(item) for item in request.POST.get(RUNS_FIELD, "").split())
    found = ((int(match[1]), int(match[2]), _moment(match[3])) for match in matches if match)
    return {schedule_id: (revision, at) for schedule_id, revision, at in found if at is not None}


def pause_field(pause: Pause) -> SafeString:
    """Return the hidden input for a form with an operation on this pause."""
    return hidden_input(PAUSE_FIELD, f"{pause.pk}:{number(pause.paused_at)}")


def is_as_shown(request: HttpRequest, pause: Pause) -> bool:
    """Return whether a pause began when the page that posted this form says so."""
    return f"{pause.pk}:{number(pause.paused_at)}" in request.POST.getlist(PAUSE_FIELD)


def number(instant: datetime | None) -> Any:
    """Return an instant as whole microseconds since 1970; "" for None."""
    return "" if instant is None else (instant - EPOCH) // MICROSECOND


def _moment(text: str) -> datetime | None:
    with suppress(OverflowError, ValueError):  # after the year 9999, or empty
        return EPOCH + int(text) * MICROSECOND
    return None
