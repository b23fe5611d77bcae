"""Format rows for an operator: durations, times, states, progress, and the reason why a job waits.

Used by all lists and pages of the admin. All instants have the form of `full_date()`, in the current time zone, which
the navigation names. All ages are computed from `seen_at`, the database's clock at the time the row was read, so a
wrong clock of the web server does no harm. Text from a row passes through `display.visible()`, so that control and
direction characters in it cannot change what the operator reads.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.declared.steps import is_endless
from django_pgqueue.display import duration as duration
from django_pgqueue.display import full_date as full_date
from django_pgqueue.display import number, percent
from django_pgqueue.display import pretty_json as pretty_json
from django_pgqueue.display import shortened as shortened
from django_pgqueue.display import visible as visible
from django_pgqueue.ground.progress import Progress
from django_pgqueue.models import Execution, Job
from django_pgqueue.states import NEED_TEXTS, Need, Outcome, Pausable, State, StepKind, StepState

LABELS: Final = {
    "ready": gettext_lazy("ready"),
    "due": gettext_lazy("due"),
    "scheduled": gettext_lazy("scheduled"),
    "retrying": gettext_lazy("retrying"),
    "unknown": gettext_lazy("unknown"),
    "paused": gettext_lazy("paused"),
    "limited": gettext_lazy("limited"),
    "waiting": gettext_lazy("waiting"),
    "running": gettext_lazy("running"),
    "cancelling": gettext_lazy("cancelling"),
    "lost": gettext_lazy("lost"),
    "succeeded": gettext_lazy("succeeded"),
    "dead": gettext_lazy("dead"),
    "acknowledged": gettext_lazy("acknowledged"),
    "cancelled": gettext_lazy("cancelled"),
}
"""The words for states, translated. Each has a CSS class with a colour and a sign of its own."""
WORDS: Final = {
    **LABELS,
    Outcome.FAILED: pgettext_lazy("attempt", "failed"),
    Outcome.CRASHED: gettext_lazy("crashed"),
    Outcome.RELEASED: gettext_lazy("released"),
    Outcome.SNOOZED: gettext_lazy("snoozed"),
    Outcome.SUSPENDED: gettext_lazy("suspended"),
    StepState.FINISHED: gettext_lazy("finished"),
    StepState.SLEEPING: gettext_lazy("sleeping"),
    StepState.TIMED_OUT: gettext_lazy("timed out"),
    StepKind.STEP: gettext_lazy("step"),
    StepKind.SLEEP: gettext_lazy("sleep"),
    Pausable.QUEUE: gettext_lazy("queue"),
    Pausable.TASK: gettext_lazy("task"),
    Pausable.LIMIT: gettext_lazy("limit"),
    PAUSED_BY: gettext_lazy("circuit breaker"),
    NEED_TEXTS[Need.WORKFLOW]: gettext_lazy("another job of its workflow can need it"),
    NEED_TEXTS[Need.COMPENSATION]: gettext_lazy("its compensations are not all enqueued yet"),
}
"""All words of rows, and the reasons why a job is kept, translated."""
MORE: Final = gettext_lazy("Counting stopped here: there can be more.")
NOT_KNOWN: Final = gettext_lazy("Not known: counting stopped before it found one, or the figure cannot be read.")
REASON_SHOWN: Final = 200
"""Characters shown of the reason of a pause or of a change."""


def breakable(name: str) -> SafeString:
    """Return a dotted name as HTML that lets a narrow column break it after dots and underscores."""
    return format_html_join("", "{}<wbr>", ((part,) for part in re.split(r"(?<=[._])", visible(name))))


def count_note(count: Any) -> Promise | str:
    """Return why a count is no exact number, for its tooltip; "" if it is exact, or no count."""
    if getattr(count, "is_exact", True):
        return ""
    return MORE if count.value else NOT_KNOWN


def ago(moment: datetime, seen_at: datetime, *, brief: bool = False) -> str:
    """Return how long ago a moment was, or in how long it will be."""
    span = duration(seen_at - moment, brief=brief)
    return _("%(span)s ago") % {"span": span} if moment <= seen_at else _("in %(span)s") % {"span": span}


def moment(at: datetime | None, text: Any = None) -> SafeString | str:
    """Return a moment as `<time>` with the full date as tooltip. It is shown as `text` if given."""
    if at is None:
        return ""
    full = full_date(at)
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), full, text or full)


def moment_ago(at: datetime | None, row: Any, *, brief: bool = True) -> SafeString | str:
    """Return how long before or after the reading of a row a moment is, with the full date as tooltip."""
    return moment(at, ago(at, seen_at(row), brief=brief)) if at else ""


def dated(at: datetime | None, row: Any, *, with_zone: bool = False) -> SafeString | str:
    """Return a moment's full date and its distance from the reading of a row; "" for None.

    Pass `with_zone` to add the name of the current time zone, where the page also shows another one.
    """
    if at is None:
        return ""
    zone = f" {timezone.get_current_timezone_name()}" if with_zone else ""
    return moment(at, f"{full_date(at)}{zone} ({ago(at, seen_at(row))})")


def by_until(by: str, until: datetime | None) -> str:
    """Return who has done something, and when it ends, as the end of a sentence."""
    who = _(" by %(who)s") % {"who": shortened(word_text(by))} if by else ""
    return who + (_(" until %(at)s") % {"at": full_date(until)} if until else "")


def pause_text(paused_at: datetime, by: str, until: datetime | None, reason: str) -> str:
    """Return a sentence about a pause: since when, by whom and until when; and the start of the reason."""
    if by == PAUSED_BY:
        endless, ending = (
            _("A circuit breaker paused it at %(at)s."),
            _("A circuit breaker paused it at %(at)s, until %(until)s."),
        )
    elif by:
        endless, ending = _("%(who)s paused it at %(at)s."), _("%(who)s paused it at %(at)s, until %(until)s.")
    else:
        endless, ending = _("It was paused at %(at)s."), _("It was paused at %(at)s, until %(until)s.")
    words = {"at": full_date(paused_at), "who": shortened(by), "until": "" if until is None else full_date(until)}
    return f"{(ending if until else endless) % words} {shortened(reason, REASON_SHOWN)}".rstrip()


def word_text(word: object) -> str:
    """Return a state, an outcome or a kind as a row stores it, in the language of the reader."""
    return str(WORDS.get(str(word), visible(str(word))))


def badge(state: str, text: Any) -> SafeString:
    """Return a text in the colour of a state. An unknown state, which a row can contain, is grey."""
    known = state if state in LABELS else "unknown"
    return format_html('<span class="pgqueue-state pgqueue-{}">{}</span>', known, visible(str(text)))


def word_badge(word: str) -> SafeString:
    """Return a word for the state of a job in its colour and with its sign. An unknown word is grey."""
    return badge(word, LABELS.get(word, word))


def seen_at(row: Any) -> datetime:
    """Return the database's clock when the row was read. The admin's querysets annotate it."""
    at = vars(row).get("seen_at")
    return at if isinstance(at, datetime) else datetime.now(UTC)


def progress_bar(progress: Progress | None) -> SafeString | str:
    """Return the progress of a job as a bar; "" if it has reported no total, because the fraction is unknown then."""
    if progress is None or (fraction := progress.fraction) is None:
        return ""
    return format_html(
        '<progress class="pgqueue-progress" value="{}" max="1" title="{percent}" aria-label="{}">{percent}</progress>',
        f"{fraction:.4f}",
        _("progress"),
        percent=percent(fraction),
    )


def progress_line(progress: Progress | None, seen_at: datetime, *, with_message: bool) -> SafeString | None:
    """Return the bar, the figures, the message and the age of a job's last report; None if it has reported nothing."""
    if progress is None:
        return None
    of_total = "" if progress.total is None else " " + _("of %(total)s") % {"total": _number(progress.total)}
    age = "" if progress.at is None else ago(progress.at, seen_at)
    message = visible(progress.message) if with_message else ""
    text = " · ".join(filter(None, [f"{_number(progress.done)}{of_total}", message, age]))
    return format_html("{} {}", progress_bar(progress), text)


def _number(value: float) -> str:
    """Return a number with the decimals that it has, at most four."""
    return number(value, len(f"{value:.4f}".rstrip("0").partition(".")[2]))


def situation(
    job: Job,
    execution: Execution | None = None,
    *,
    lost: str = "",
    is_paused: bool = False,
    is_suspended: bool = False,
) -> str:
    """Return how long a job has been in its state, or what it waits for. The page shows it after the state.

    `execution` is its latest one. `lost` says what is known of it if it was lost.
    """
    now = seen_at(job)
    if job.state == State.RUNNING:
        return _running(job, now, execution, lost)
    if job.state == State.READY:
        return _suspended(job, now) if is_suspended else _ready(job, now, is_paused=is_paused)
    if job.state == State.WAITING:
        return _("for other jobs of its workflow")
    if job.finished_at is not None:
        ended = ago(job.finished_at, now)
        return ended if job.acknowledged_at is None else _("died %(ago)s") % {"ago": ended}
    return ""


def _running(job: Job, now: datetime, execution: Execution | None, lost: str) -> str:
    parts = []
    if execution is not None:
        parts.append(_("attempt %(attempt)s of %(most)s") % {"attempt": execution.attempt, "most": job.max_attempts})
    if lost:
        parts.append(lost)
    elif execution is not None and execution.started_at is not None:
        words = {"span": duration(now - execution.started_at), "at": full_date(execution.started_at)}
        parts.append(_("for %(span)s, since %(at)s") % words)
    elif execution is not None:
        parts.append(_("claimed %(ago)s, and no start is recorded yet") % {"ago": ago(execution.claimed_at, now)})
    if job.cancel_requested_at is not None:
        parts.append(_("cancel requested %(ago)s") % {"ago": ago(job.cancel_requested_at, now)})
    return ", ".join(parts)


def _suspended(job: Job, now: datetime) -> str:
    """Return until when a step suspends a job. Everybody may read it, so it names neither the event nor an error."""
    if is_endless(job.run_after, now):
        return _("suspended until its event comes")
    return _("suspended, due in %(span)s") % {"span": duration(now - job.run_after)}


def _ready(job: Job, now: datetime, *, is_paused: bool) -> str:
    due = job.run_after <= now
    when = _("due for %(span)s") if due else _("due in %(span)s")
    when %= {"span": duration(now - job.run_after)}
    if job.unknown_since is not None:
        why = _("no worker has known its task for %(span)s (deploy its code or add an alias)")
        return f"{why % {'span': duration(now - job.unknown_since)}}; {when}"
    parts = [when]
    if is_paused and not due:  # of a due job, the word for its state says so
        parts.insert(0, _("paused"))
    if job.attempt:
        attempt = {"attempt": job.attempt + 1, "most": job.max_attempts}
        parts.insert(0, _("waiting for attempt %(attempt)s of %(most)s") % attempt)
    elif due and not is_paused and job.limit_key is None:  # the reason says whether its limit admits it
        parts.insert(0, _("waiting for a worker"))
    return ", ".join(parts)
