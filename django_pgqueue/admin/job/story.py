"""The opening of the page of a job: the word for its state, the reason with links, the error, and a timeline.

Called by `job_page`. The reason is that of `stats.why()`. A reason that quotes an error is shown only to a user who may
see errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

from django.db import DataError
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.acts.acknowledgements import Acknowledgement, acknowledgement_of
from django_pgqueue.acts.job_retries import SHOWN, JobRetry
from django_pgqueue.admin import private
from django_pgqueue.admin.formatting import (
    duration,
    full_date,
    moment,
    seen_at,
    shortened,
    visible,
    word_badge,
    word_text,
)
from django_pgqueue.admin.navigation import allowed_url, key_jobs_url, limit_url, page_url
from django_pgqueue.declared.limits import has_value, without_value
from django_pgqueue.declared.steps import is_endless
from django_pgqueue.models import Job
from django_pgqueue.states import FINISHED, Outcome, Pausable, State
from django_pgqueue.stats import Reason, Why
from django_pgqueue.tasks.registry import in_words

from . import past_acts
from .attempts import retry_event
from .columns import FAILURES, is_suspended, word
from .links import alike
from .tracebacks import pieces

QUOTES_ERROR: Final = frozenset({Reason.FINISHED, Reason.RETRYING, Reason.UNKNOWN_TASK, Reason.SUSPENDED})
"""Reasons whose sentence can contain the text of an error."""
ATTEMPTS_IN_TIMELINE: Final = 10


class ReasonLink(NamedTuple):
    """A link to what the reason names."""

    label: Promise | str
    url: str


def story(
    request: HttpRequest, job: Job, attempts: Sequence[dict[str, Any]], retries: Sequence[JobRetry]
) -> dict[str, Any]:
    """Return the variables of the templates in pgqueue/admin/job/. `attempts` are the latest, latest first."""
    vars(job)["latest_execution"] = attempts[0]["execution"] if attempts else None
    is_visible = private.is_visible(job)
    acknowledgement = acknowledgement_of(str(job._state.db), job)
    if not is_visible:  # a person may repeat the value of a limit key, or an error message, in the reason
        retries = [each._replace(reason="") if each.has_values else each for each in retries]
        if acknowledgement is not None and acknowledgement.has_values:
            acknowledgement = acknowledgement._replace(reason="")
    why = _why(job)
    quotes = why is not None and why.reason in QUOTES_ERROR
    around = past_acts.acts_around(request, job, attempts)
    sentence = "" if why is None else why.sentence if is_visible else _without_key(why)
    return {
        "badge": word_badge(word(job)),
        "reason": visible(sentence) if is_visible or not quotes else "",
        "reason_links": [] if why is None else list(reason_links(request, why)),
        "acknowledgement": "" if acknowledgement is None else acknowledgement_text(acknowledgement),
        "failure": (failed := failure(job, attempts)),
        "alike": alike(request, job, failed),
        "timeline": list(timeline(job, attempts, retries, around[-past_acts.SHOWN :], acknowledgement)),
        "timeline_is_cut": len(attempts) > ATTEMPTS_IN_TIMELINE,
        "acts_are_cut": len(around) > past_acts.SHOWN,
        "is_live": job.state not in FINISHED,
    }


def _without_key(why: Why) -> str:
    """Return the sentence of a reason without the value of the limit key, which is made of arguments."""
    key = why.limit_key or ""
    return why.sentence.replace(in_words(key), in_words(without_value(key))) if has_value(key) else why.sentence


def _why(job: Job) -> Why | None:
    """Return why an unfinished job is where it is, or why a job of a workflow was cancelled.

    Return None if a row contains a value that nobody can explain or read.
    """
    is_of_graph = bool(job.in_graph) and job.state == State.CANCELLED
    if job.state not in set(State) - FINISHED and not is_of_graph:
        return None
    try:
        return stats.why(job.pk, job._state.db, time_text=full_date)
    except DataError:  # a time outside Python's range
        return None


def failure(job: Job, attempts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the error of the latest attempt, if that failed and the job has not succeeded.

    While an attempt is open, return the error of the last one that failed, unless the job has succeeded after it.
    `before` has the number of the open attempt and the retry that it follows.
    """
    if not attempts or job.state == State.SUCCEEDED:
        return None
    latest = attempts[0]["execution"]
    is_open = job.state == State.RUNNING and latest.outcome is None
    since = takewhile(lambda each: each["execution"].outcome != Outcome.SUCCEEDED, attempts)
    failed = next((each for each in islice(since, None if is_open else 1) if each["is_failure"]), None)
    if failed is None:
        return None
    before = {"number": latest.attempt, "after": attempts[0]["after"]} if is_open else None
    return {**failed, "pieces": pieces(failed["traceback"]), "before": before}


# ---------------------------------------------------------------------------- the reason


def reason_links(request: HttpRequest, why: Why) -> Iterator[ReasonLink]:
    """Yield links to the pause, the workers, or the jobs that the reason names, as far as the user may see them."""
    if why.pause is not None:
        name = why.pause.name
        is_hidden = why.pause.kind is Pausable.LIMIT and not private.may_view_key(request, name)
        shown = without_value(name) if is_hidden else name
        label = _("Pause of the %(what)s") % {"what": f"{word_text(why.pause.kind)} {visible(shown)}"}
        target = {"kind": why.pause.kind.value, "name": None if is_hidden else name}
        yield from _link(request, label, "pause_changelist", **target)
    if why.reason in (Reason.NO_WORKER, Reason.QUEUE_NOT_SERVED) or why.worker_id is not None:
        yield from _link(request, gettext_lazy("Workers"), "worker_changelist")
    for busy in why.busy_tasks:
        label = _("Running jobs of %(task)s") % {"task": visible(busy.task_name)}
        yield from _link(request, label, "job_changelist", state="running", task=busy.task_name)
    yield from job_links(request, why.dependency_ids)
    if why.limit_key is not None:
        yield from limit_links(request, why, why.limit_key)
    elif why.ahead is not None and why.ahead.value:
        label = _("Due jobs of %(queue)s in claim order") % {"queue": visible(why.queue_name or "")}
        yield from _link(request, label, "job_changelist", state="due", queue=why.queue_name)
    if why.reason is Reason.UNKNOWN_TASK:
        yield from _link(request, gettext_lazy("Workers"), "worker_changelist")


def limit_links(request: HttpRequest, why: Why, limit_key: str) -> Iterator[ReasonLink]:
    """Yield links to the limit key of a job, to the jobs of the key that come first, and to those that run."""
    if url := limit_url(request, limit_key):
        yield ReasonLink(_("Limit key %(key)s") % {"key": visible(private.shown_key(request, limit_key))}, url)
    yield from job_links(request, filter(None, (why.blocking_job_id, *why.running_job_ids)))
    if why.ahead is not None and why.ahead.value and (url := key_jobs_url(request, limit_key, "due")):
        yield ReasonLink(gettext_lazy("Due jobs of the key"), url)


def job_links(request: HttpRequest, job_ids: Iterable[int]) -> Iterator[ReasonLink]:
    """Yield links to the pages of these jobs."""
    for job_id in job_ids:
        if url := page_url(request, "job_change", job_id):
            yield ReasonLink(f"#{job_id}", url)


def _link(request: HttpRequest, label: Promise | str, page: str, /, **parameters: str | None) -> Iterator[ReasonLink]:
    if url := allowed_url(request, page, **parameters):
        yield ReasonLink(label, url)


# ---------------------------------------------------------------------------- the timeline


def timeline(
    job: Job,
    attempts: Sequence[dict[str, Any]],
    retries: Sequence[JobRetry] = (),
    around: Sequence[past_acts.TimelineEvent] = (),
    acknowledgement: Acknowledgement | None = None,
) -> Iterator[dict[str, str]]:
    """Yield what happened to a job and around it, oldest first. `state` gives the colour of an entry.

    An entry about the job itself has the time since the last such entry before it.
    """
    before: datetime | None = None
    events = [*(past_acts.TimelineEvent(*each) for each in _events(job, attempts, retries)), *around]
    if acknowledgement is not None:
        text = acknowledgement_event(acknowledgement)
        events.append(past_acts.TimelineEvent(acknowledgement.at, text, "acknowledged"))
    for at, label, state, is_own in sorted(events, key=lambda event: event.at):
        span = "" if before is None or not is_own else duration(max(at - before, timedelta()))
        yield {"at": moment(at), "label": label, "after": span, "state": state}
        before = at if is_own else before


def _events(
    job: Job, attempts: Sequence[dict[str, Any]], retries: Sequence[JobRetry]
) -> Iterator[tuple[datetime, str, str]]:
    yield job.enqueued_at, _("enqueued"), "ready"
    waits_for_event = is_suspended(job) and is_endless(job.run_after, seen_at(job))
    if job.run_after > job.enqueued_at and job.state != State.WAITING and not waits_for_event:
        is_ahead = job.state == State.READY and job.run_after > seen_at(job)
        is_retry = bool(attempts) and job.run_after >= attempts[0]["execution"].claimed_at
        label = (_("next attempt due") if is_retry else _("due")) if is_ahead else _("due")
        yield job.run_after, label, "scheduled" if is_ahead else "due"
    for retry in retries[-SHOWN:]:
        if retry.at is not None:
            yield retry.at, retry_event(retry), "ready"
    for attempt in attempts[:ATTEMPTS_IN_TIMELINE]:
        yield from _events_of(attempt)
    if job.cancel_requested_at is not None:
        yield job.cancel_requested_at, _("cancel requested"), "cancelling"
    latest = attempts[0]["execution"].finished_at if attempts else None
    if job.finished_at is not None and job.finished_at != latest:
        yield job.finished_at, word_text(job.state), str(job.state)


def acknowledgement_text(acknowledgement: Acknowledgement) -> str:
    """Return who has acknowledged a job, when and why, as a sentence."""
    words = {"who": _operator(acknowledgement.by), "at": full_date(acknowledgement.at)}
    text = _("Acknowledged by %(who)s at %(at)s") % words
    return f"{text}: {visible(acknowledgement.reason)}" if acknowledgement.reason else f"{text}."


def acknowledgement_event(acknowledgement: Acknowledgement) -> str:
    """Return the acknowledgement of a job as an entry of the timeline."""
    text = _("acknowledged by %(who)s") % {"who": _operator(acknowledgement.by)}
    return f"{text}: {shortened(acknowledgement.reason)}" if acknowledgement.reason else text


def _operator(name: str) -> str:
    return shortened(name) if name else _("a program that wrote no audit")


def _events_of(attempt: dict[str, Any]) -> Iterator[tuple[datetime, str, str]]:
    execution, loss = attempt["execution"], attempt["loss"]
    started_at = execution.started_at if loss is None else loss.started_at
    number = {"number": execution.attempt, "worker": attempt["worker"], "after": attempt["after"]}
    text = _("attempt %(number)s claimed by %(worker)s")
    if attempt["is_first_after"]:
        text = _("attempt %(number)s %(after)s claimed by %(worker)s")
    yield execution.claimed_at, text % number, ""
    if started_at is not None:
        yield started_at, _("attempt %(number)s started") % number, "running"
    if loss is not None and loss.last_seen_at is not None:
        yield loss.last_seen_at, _("attempt %(number)s last seen by the heartbeat of its worker") % number, ""
    if loss is not None and loss.found_at is not None:
        yield loss.found_at, _("attempt %(number)s found lost") % number, "dead"
    elif execution.finished_at is not None:
        ended = {**number, "outcome": word_text(execution.outcome), "error": attempt["exception_class"]}
        text = _("attempt %(number)s %(outcome)s: %(error)s") if ended["error"] else _("attempt %(number)s %(outcome)s")
        yield execution.finished_at, text % ended, "dead" if execution.outcome in FAILURES else str(execution.outcome)
