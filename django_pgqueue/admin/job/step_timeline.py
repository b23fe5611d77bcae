"""The durable steps of a job over time, as bars that a template draws as inline SVG, one row for each step.

`job_page` calls it. As for charts, the SVG has shapes only and is stretched to the width of the page. All text is HTML
beside it, and the table of the steps below has the same times. The kinds of bars differ without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.admin.formatting import duration, full_date, seen_at, shortened
from django_pgqueue.models import Job, JobStep
from django_pgqueue.states import FINISHED, State, StepKind

from .columns import FAILURES

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
    FAILED: gettext_lazy("failed"),
}
"""The kinds of bars. The CSS class of each is `pgqueue-step-<kind>`."""


class StepBar(NamedTuple):
    """A bar from one moment to another."""

    kind: str
    x: str
    width: str


class StepRow(NamedTuple):
    """A row of the timeline: its name, its bars, and their text."""

    name: str
    bars: list[StepBar]
    text: str


class StepTimeline(NamedTuple):
    """The rows, the ends of the time axis, and the legend, as the template draws them."""

    rows: list[StepRow]
    since: str
    until: str
    is_now: bool
    """Whether the timeline ends now, because the job has not ended."""
    legend: list[tuple[str, Promise | str]]
    is_cut: bool


class _StepSpan(NamedTuple):
    kind: str
    start: datetime
    end: datetime


class _StepLine(NamedTuple):
    """A row before its bars have positions."""

    name: str
    spans: list[_StepSpan]
    text: str


def step_timeline(job: Job, steps: Sequence[JobStep], attempts: Sequence[dict[str, Any]]) -> StepTimeline | None:
    """Return the timeline of a job; None without steps. `attempts` are those of the page, latest first."""
    if not steps:
        return None
    until = (job.finished_at if job.state in FINISHED else None) or seen_at(job)
    executions = [attempt["execution"] for attempt in reversed(attempts[:ATTEMPTS])]
    lines = [
        _attempts(executions, until),
        *(_step(step, until) for step in steps[-ROWS:]),
        *_now(job, steps, executions),
    ]
    spans = [span for line in lines for span in line.spans]
    since = min(span.start for span in spans)
    until = max(until, since + timedelta(milliseconds=1), *(span.end for span in spans))
    kinds = {span.kind for span in spans}
    return StepTimeline(
        rows=[StepRow(line.name, list(_bars(line.spans, since, until)), line.text) for line in lines if line.spans],
        since=full_date(since),
        until=full_date(until),
        is_now=job.state not in FINISHED,
        legend=[(kind, label) for kind, label in LEGEND.items() if kind in kinds],
        is_cut=len(steps) > ROWS,
    )


def _attempts(executions: Iterable[Any], until: datetime) -> _StepLine:
    """Return the attempts of the job. Between them it was suspended, or waited for a worker."""
    spans = []
    for execution in executions:
        kind = FAILED if execution.outcome in FAILURES else RUNNING if execution.outcome is None else ATTEMPT
        spans.append(_span(kind, execution.started_at or execution.claimed_at, execution.finished_at, until))
    total = sum((span.end - span.start for span in spans), timedelta())
    words = {"count": len(spans), "span": duration(total)}
    text = ngettext("%(count)s time, %(span)s in all", "%(count)s times, %(span)s in all", len(spans))
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


def _now(job: Job, steps: Sequence[JobStep], executions: Sequence[Any]) -> Iterator[_StepLine]:
    """Yield what a running job does now. It began after its last step or, in a new attempt, with the attempt."""
    execution = executions[-1] if executions else None
    if job.state != State.RUNNING or execution is None or execution.started_at is None:
        return
    now = seen_at(job)
    start = max([execution.started_at, *(step.finished_at for step in steps if step.finished_at)])
    span = _span(RUNNING, start, None, now)
    yield _StepLine(_("not stored yet"), [span], _("running for %(span)s") % {"span": duration(span.end - span.start)})


def _span(kind: str, start: datetime, end: datetime | None, until: datetime) -> _StepSpan:
    last = until if end is None else min(end, max(until, start))
    return _StepSpan(kind, start, max(start, last))


def _bars(spans: Iterable[_StepSpan], since: datetime, until: datetime) -> Iterator[StepBar]:
    for span in spans:
        x, end = (WIDTH * ((at - since) / (until - since)) for at in (span.start, span.end))
        width = max(end - x, SMALLEST)
        yield StepBar(span.kind, f"{min(x, WIDTH - width):.2f}", f"{width:.2f}")
