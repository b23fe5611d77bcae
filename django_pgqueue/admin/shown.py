"""What a page showed of jobs: carried by its forms, so that an act applies to nothing else.

The lists and the job's page write it into their forms, `acts` reads it back. It protects one invariant: a click changes
a job only if the job is still as the page showed it, however often and by how many people the button is pressed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_pgqueue.models import Job, Schedule
from django_pgqueue.states import Seen, State

from .words import seen_at

FIELD: Final = "shown"
TIME_FIELD: Final = "shown_at"
SCHEDULE_FIELD: Final = "shown_schedule"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def fields(job: Job) -> SafeString:
    """Return the hidden inputs of a form that acts on this job."""
    return format_html(
        '<input type="hidden" name="{}" value="{}"><input type="hidden" name="{}" value="{}">',
        FIELD,
        token(job.pk, as_seen(job)),
        TIME_FIELD,
        number(seen_at(job)),
    )


def as_seen(job: Job) -> Seen:
    """Return what an act on this job compares."""
    return Seen(job.state, job.finished_at, job.run_after)


def token(job_id: int, seen: Seen) -> str:
    """Return a job and what was seen of it as a word without spaces."""
    state = seen.state if seen.state in set(State) else "?"
    return f"{job_id}:{number(seen.finished_at)}:{number(seen.run_after)}:{state}"


def read(request: HttpRequest) -> dict[int, Seen]:
    """Return what the page that posted this form showed, by job; what cannot be read is left out."""
    found = {}
    for text in request.POST.getlist(FIELD):
        for word in text.split():
            job_id, _, rest = word.partition(":")
            if (seen := _seen(rest)) is not None and job_id.isascii() and job_id.isdigit() and len(job_id) < 20:
                found[int(job_id)] = seen
    return found


def page_at(request: HttpRequest) -> datetime:
    """Return when the page was read, by the database's clock; without that the beginning of time."""
    moments = [_moment(text) for text in request.POST.getlist(TIME_FIELD)[:1]]
    return (moments and moments[0]) or EPOCH


def schedule_field(one: Schedule) -> SafeString:
    """Return the hidden input of a form that acts on this schedule."""
    word = f"{one.pk}:{one.revision}:{number(one.last_run_at)}"
    return format_html('<input type="hidden" name="{}" value="{}">', SCHEDULE_FIELD, word)


def read_schedule(request: HttpRequest, schedule_id: int) -> tuple[int, datetime | None] | None:
    """Return the revision and the last run that the page showed of a schedule; None if it did not say."""
    for word in request.POST.getlist(SCHEDULE_FIELD):
        shown_id, _, rest = word.partition(":")
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
    """Return an instant as whole microseconds, "" for none."""
    return "" if instant is None else (instant - EPOCH) // MICROSECOND


def _moment(text: str) -> datetime | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        return None
    try:
        return EPOCH + int(text) * MICROSECOND
    except OverflowError:
        return None
