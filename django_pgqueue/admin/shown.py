"""Hidden form fields with the state that a page showed, so that an operation applies to that state only.

The lists and pages of jobs and schedules write the fields into their forms; `job_actions` and `schedule_actions` read
them back. Invariant: a click changes a job only if the job is still as the page showed it, however often the button is
pressed and by however many operators.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_pgqueue.models import Job, Schedule
from django_pgqueue.states import Seen, State

from .formatting import seen_at

FIELD: Final = "shown"
TIME_FIELD: Final = "shown_at"
SCHEDULE_FIELD: Final = "shown_schedule"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def fields(job: Job) -> SafeString:
    """Return the hidden inputs for a form with an operation on this job."""
    return format_html(
        '<input type="hidden" name="{}" value="{}"><input type="hidden" name="{}" value="{}">',
        FIELD,
        token(job.pk, as_seen(job)),
        TIME_FIELD,
        number(seen_at(job)),
    )


def as_seen(job: Job) -> Seen:
    """Return the values that an operation on this job compares."""
    return Seen(job.state, job.finished_at, job.run_after)


def token(job_id: int, seen: Seen) -> str:
    """Return a job's id and what was seen of it as text without spaces."""
    state = seen.state if seen.state in set(State) else "?"
    return f"{job_id}:{number(seen.finished_at)}:{number(seen.run_after)}:{state}"


def read(request: HttpRequest) -> dict[int, Seen]:
    """Return what the page that posted this form showed, by job id. Unreadable values are left out."""
    found = {}
    for text in request.POST.getlist(FIELD):
        for item in text.split():
            job_id, _, rest = item.partition(":")
            if (seen := _seen(rest)) is not None and job_id.isascii() and job_id.isdigit() and len(job_id) < 20:
                found[int(job_id)] = seen
    return found


def page_at(request: HttpRequest) -> datetime:
    """Return when the page was read, by the database's clock; 1970 if the form does not contain it.

    With 1970, no job counts as unchanged since then.
    """
    moments = [_moment(text) for text in request.POST.getlist(TIME_FIELD)[:1]]
    return (moments and moments[0]) or EPOCH


def schedule_field(schedule: Schedule) -> SafeString:
    """Return the hidden input for a form with an operation on this schedule."""
    value = f"{schedule.pk}:{schedule.revision}:{number(schedule.last_run_at)}"
    return format_html('<input type="hidden" name="{}" value="{}">', SCHEDULE_FIELD, value)


def read_schedule(request: HttpRequest, schedule_id: int) -> tuple[int, datetime | None] | None:
    """Return the revision and the last run that the page showed; None if the form does not contain them."""
    for item in request.POST.getlist(SCHEDULE_FIELD):
        shown_id, _, rest = item.partition(":")
        revision, _, last_run_at = rest.partition(":")
        if shown_id == str(schedule_id) and revision.isascii() and revision.isdigit() and len(revision) < 19:
            return int(revision), _moment(last_run_at)
    return None


def _seen(text: str) -> Seen | None:
    finished_at, _, rest = text.partition(":")
    run_after, _, state = rest.partition(":")
    if state not in set(State):
        return None
    return Seen(state, _moment(finished_at), _moment(run_after))


def number(instant: datetime | None) -> Any:
    """Return an instant as whole microseconds since 1970; "" for None."""
    return "" if instant is None else (instant - EPOCH) // MICROSECOND


def _moment(text: str) -> datetime | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        return None
    try:
        return EPOCH + int(text) * MICROSECOND
    except OverflowError:
        return None
