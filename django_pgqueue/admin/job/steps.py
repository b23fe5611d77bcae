"""The durable steps on the page of a job: what each one is, what became of it and the value that it stored; a timeline.

`job_page` calls it. The values follow the rules for the result of the job (see `private`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db.models import Exists, OuterRef, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from django_pgqueue.admin import private
from django_pgqueue.admin.formatting import (
    badge,
    duration,
    full_date,
    moment,
    seen_at,
    shortened,
    visible,
    word_badge,
    word_text,
)
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.models import Job, JobStep
from django_pgqueue.states import FINISHED, State, StepKind, StepState

from .columns import FAILURES

HAS_STEPS: Final = Exists(JobStep.objects.filter(job_id=OuterRef("pk")))
STEPS_SHOWN: Final = 200
"""Steps shown at most, the latest ones. A task that sleeps in a loop has one for each round."""
VALUE_LIMIT: Final = 2_000
"""Characters shown of each value and of each error. PostgreSQL cuts them."""
COLOURS: Final[dict[str, str]] = {
    StepState.FINISHED: "succeeded",
    StepState.TIMED_OUT: "dead",
    StepState.RETRYING: "dead",
}
"""The state of a job whose colour the state of a step has. Others are grey."""


def read_steps(job: Job) -> list[JobStep]:
    """Return the steps of a job in their order, with their texts cut by PostgreSQL.

    Runs one query, and another one for the states of the compensations if there are any.
    """
    texts = {"value_text": Left(Cast("result", TextField()), VALUE_LIMIT), "error_text": Left("error", VALUE_LIMIT)}
    steps = JobStep.objects.using(job._state.db).filter(job_id=job.pk)
    steps = steps.defer("result", "error", "compensation_arguments").annotate(**texts)
    found = list(reversed(steps.order_by("-position", "-name")[:STEPS_SHOWN]))
    ids = [step.compensation_id for step in found if step.compensation_id is not None]
    states = dict(Job.objects.using(job._state.db).filter(pk__in=ids).values_list("pk", "state")) if ids else {}
    for step in found:
        vars(step)["compensation_state"] = states.get(step.compensation_id or 0, "")
    return found


def compensation_note(request: HttpRequest, job: Job, steps: Sequence[JobStep]) -> dict[str, Any] | None:
    """Return what stops the compensations of a dead or cancelled job, or that they run. None: nothing is left to undo.

    `steps` are those of `read_steps()`. The note has links to the compensations that the operator has to look at.
    """
    if job.state not in (State.DEAD, State.CANCELLED):
        return None
    stopped = [step for step in steps if vars(step)["compensation_state"] in (State.DEAD, State.CANCELLED)]
    if stopped:
        text = _(
            "A compensation has failed or was cancelled. Retry it: earlier steps are undone after it has succeeded."
        )
        return {"text": text, "jobs": [_link_to(request, step) for step in stopped]}
    is_unfinished = any(vars(step)["compensation_state"] not in ("", State.SUCCEEDED) for step in steps)
    if is_unfinished or any(step.compensation is not None for step in steps):
        return {"text": _("Its steps are being undone, the last one first.")}
    return None


def _link_to(request: HttpRequest, step: JobStep) -> tuple[str, str]:
    """Return the number of the job that undoes a step, and its URL; "" if the site has no page for it."""
    return f"#{step.compensation_id}", page_url(request, "job_change", step.compensation_id or 0)


def shown_step(request: HttpRequest, job: Job, step: JobStep) -> dict[str, Any]:
    """Return a step, formatted for the template."""
    ran = step.finished_at and step.finished_at - step.started_at
    return {
        "name": visible(step.name),
        "kind": _kind(job, step),
        "state": badge(COLOURS.get(step.state, "cancelled"), word_text(step.state)),
        "note": _("The code did not call it any more.") if is_left_out(job, step) else "",
        "compensation": _compensation(request, job, step),
        "tries": step.tries if step.kind == StepKind.STEP else "",
        "started": moment(step.started_at),
        "ran": duration(ran) if ran else "",
        "until": "" if step.finished_at or step.wake_at is None else moment(step.wake_at),
        "value": private.shown_result(job, vars(step)["value_text"]),
        "error": visible(vars(step)["error_text"]) if private.is_visible(job) else "",
    }


def is_left_out(job: Job, step: JobStep) -> bool:
    """Return whether the job has succeeded without a step that had not ended: its code does not call it any more.

    Of a step that had ended, the rows do not show whether the last attempt called it. The worker logs those.
    """
    return job.state == State.SUCCEEDED and step.finished_at is None and step.kind != StepKind.SLEEP


def _compensation(request: HttpRequest, job: Job, step: JobStep) -> dict[str, str]:
    """Return the text about the compensation of a step, with the number, the URL and the state of its job, if any."""
    if step.compensation_id is not None:
        number, url = _link_to(request, step)
        state = vars(step)["compensation_state"]
        url = url if state else ""
        shown = word_badge(state) if state else badge("unknown", _("removed"))
        return {"text": _("Compensation:"), "number": number, "url": url, "state": shown}
    if step.compensation is None:
        return {}
    task = {"task": visible(str(step.compensation.get("task_name", "")))}
    if job.state in (State.DEAD, State.CANCELLED):
        return {"text": _("Not yet undone. The task for it: %(task)s.") % task}
    return {"text": _("If the job fails, %(task)s undoes it.") % task}


def _kind(job: Job, step: JobStep) -> str:
    """Return the kind of a step. The key of an event can contain arguments."""
    if step.kind != StepKind.EVENT:
        return word_text(step.kind)
    key = visible(step.event_key or "") if private.is_visible(job) else "…"
    name = visible(step.event_name or "")
    if not key:
        return _("event %(name)s") % {"name": name}
    return _("event %(name)s, key %(key)s") % {"name": name, "key": key}


# ---------------------------------------------------------------------------- the timeline


ROWS: Final = 50
"""Steps in the timeline, the latest ones. The table shows more."""
ATTEMPTS: Final = 50
WIDTH: Final = 1000.0
SMALLEST: Final = 4.0
"""Width of the bar of a moment, so that a step of a millisecond is visible beside a sleep of a day."""
NAME_LENGTH: Final = 60
ATTEMPT, RAN, RETRIED, SLEPT, WAITED, RUNNING, FAILED = (
    *("attempt", "ran", "retried", "slept", "waited", "running", "failed"),
)
LEGEND: Final[dict[str, Promise | str]] = {
    ATTEMPT: gettext_lazy("attempt"),
    RAN: gettext_lazy("ran"),
    RETRIED: gettext_lazy("retried"),
    SLEPT: gettext_lazy("asleep"),
    WAITED: gettext_lazy("waited for an event"),
    RUNNING: gettext_lazy("running now"),
    FAILED: pgettext_lazy("step", "failed"),
}
"""The kinds of bars. The CSS class of each is `pgqueue-step-<kind>`."""


class _StepSpan(NamedTuple):
    """A bar from one moment to another."""

    kind: str
    start: datetime
    end: datetime


class _StepLine(NamedTuple):
    """A row before its bars have positions."""

    name: str
    spans: list[_StepSpan]
    text: str


def step_timeline(job: Job, steps: Sequence[JobStep], attempts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the timeline of a job; None without steps. `attempts` are those of the page, latest first.

    The steps are bars over time, one row for each step, which a template draws as inline SVG. As for charts, the SVG
    has shapes only and is stretched to the width of the page. All text is HTML beside it, and the table of the steps
    below has the same times. The kinds of bars differ without colour.
    """
    if not steps:
        return None
    until = (job.finished_at if job.state in FINISHED else None) or seen_at(job)
    lines = [
        _attempts(attempts[:ATTEMPTS][::-1], until),
        *(_step(step, until) for step in steps[-ROWS:]),
        *_now(job, steps, attempts),
    ]
    spans = [span for line in lines for span in line.spans]
    since = min(span.start for span in spans)
    until = max(until, since + timedelta(milliseconds=1), *(span.end for span in spans))
    kinds = {span.kind for span in spans}
    return {
        "rows": [
            {"name": line.name, "bars": list(_bars(line.spans, since, until)), "text": line.text}
            for line in lines
            if line.spans
        ],
        "since": full_date(since),
        "until": full_date(until),
        "is_now": job.state not in FINISHED,
        "legend": [(kind, label) for kind, label in LEGEND.items() if kind in kinds],
        "is_cut": len(steps) > ROWS,
    }


def _attempts(attempts: Iterable[dict[str, Any]], until: datetime) -> _StepLine:
    """Return the attempts of the job. Between them it was suspended, or waited for a worker.

    Of a lost attempt, the bar ends where its worker was last seen, and its time is not added up.
    """
    spans, total, lost = [], timedelta(), 0
    for attempt in attempts:
        execution, loss = attempt["execution"], attempt["loss"]
        kind = FAILED if execution.outcome in FAILURES else RUNNING if execution.outcome is None else ATTEMPT
        start, end = execution.started_at or execution.claimed_at, execution.finished_at
        if loss is not None:
            kind, start = FAILED, loss.started_at or execution.claimed_at
            end, lost = loss.last_seen_at or start, lost + 1
        span = _span(kind, start, end, until)
        spans.append(span)
        total += timedelta() if loss else span.end - span.start
    words = {"count": len(spans), "span": duration(total), "lost": lost}
    text = ngettext("%(count)s time, %(span)s in all", "%(count)s times, %(span)s in all", len(spans))
    if lost == len(spans):
        text = ngettext("%(count)s time, lost", "%(count)s times, all lost", len(spans))
    elif lost:
        text = _("%(count)s times, %(lost)s lost, the others %(span)s in all")
    return _StepLine(_("in a worker"), spans, text % words)


def _step(step: JobStep, until: datetime) -> _StepLine:
    """Return one step. The row of a sleep has its end only in `wake_at`; a retried one began with its first failure."""
    if step.kind == StepKind.SLEEP:
        span, text = _span(SLEPT, step.started_at, step.wake_at, until), _("slept %(span)s")
        if step.wake_at is not None and step.wake_at > until:
            text = _("asleep until %(until)s")
    elif step.kind == StepKind.EVENT:
        span = _span(WAITED, step.started_at, step.finished_at, until)
        text = _("waited %(span)s") if step.finished_at else _("has waited %(span)s")
    elif step.tries > 1 or step.finished_at is None:
        span = _span(RETRIED, step.started_at, step.finished_at, until)
        text = ngettext("%(tries)s try in %(span)s", "%(tries)s tries in %(span)s", step.tries)
    else:
        span, text = _span(RAN, step.started_at, step.finished_at, until), _("ran %(span)s")
    words = {"tries": step.tries, "span": duration(span.end - span.start), "until": ""}
    if step.wake_at is not None:
        words["until"] = full_date(step.wake_at)
    return _StepLine(shortened(step.name, NAME_LENGTH), [span], text % words)


def _now(job: Job, steps: Sequence[JobStep], attempts: Sequence[dict[str, Any]]) -> Iterator[_StepLine]:
    """Yield what a running job does now. It began after its last step or, in a new attempt, with the attempt."""
    if job.state != State.RUNNING or not attempts or attempts[0]["loss"]:
        return
    execution = attempts[0]["execution"]
    if execution.started_at is None:
        return
    now = seen_at(job)
    start = max([execution.started_at, *(step.finished_at for step in steps if step.finished_at)])
    span = _span(RUNNING, start, None, now)
    yield _StepLine(_("not stored yet"), [span], _("running for %(span)s") % {"span": duration(span.end - span.start)})


def _span(kind: str, start: datetime, end: datetime | None, until: datetime) -> _StepSpan:
    last = until if end is None else min(end, max(until, start))
    return _StepSpan(kind, start, max(start, last))


def _bars(spans: Iterable[_StepSpan], since: datetime, until: datetime) -> Iterator[dict[str, str]]:
    for span in spans:
        x, end = (WIDTH * ((at - since) / (until - since)) for at in (span.start, span.end))
        width = max(end - x, SMALLEST)
        yield {"kind": span.kind, "x": f"{min(x, WIDTH - width):.2f}", "width": f"{width:.2f}"}
