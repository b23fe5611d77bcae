"""The sentences that `stats.why()` and `stats.causes()` share, and the times, durations and numbers in them.

They are in the language that is active when they are made: for the console that of the reader, and English for commands
and documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.display import number
from django_pgqueue.states import Pausable
from django_pgqueue.tasks.registry import in_words

from .answers import BusyTask, Count, PauseStats

SHOWN_TASKS: Final = 3


def paused_text(what: str, pause: PauseStats, time_text: Callable[[datetime], str]) -> str:
    """Return who has paused something, why, and until when."""
    is_breaker = pause.kind is Pausable.LIMIT and pause.by == PAUSED_BY
    text = _("A circuit breaker has paused %(what)s") if is_breaker else _("An operator has paused %(what)s")
    details = [
        *([_("by %(name)s") % {"name": pause.by}] if pause.by and not is_breaker else []),
        _("since %(time)s") % {"time": time_text(pause.paused_at)},
        *([_("until %(time)s") % {"time": time_text(pause.until)}] if pause.until else []),
    ]
    cause = f": {pause.reason.rstrip('.')}" if pause.reason else ""
    return f"{text % {'what': what}}{cause} ({', '.join(details)})."


class OpenedAt(NamedTuple):
    """When an open circuit breaker opened first, and how many of its probes have failed since."""

    at: datetime
    probes_failed: int

    def text(self, time_text: Callable[[datetime], str]) -> str:
        """Return both as a sentence."""
        sentence = (
            ngettext(
                "The breaker has been open since %(time)s, and %(number)s probe has failed since then.",
                "The breaker has been open since %(time)s, and %(number)s probes have failed since then.",
                self.probes_failed,
            )
            if self.probes_failed
            else _("The breaker has been open since %(time)s.")
        )
        return sentence % {"time": time_text(self.at), "number": number(self.probes_failed)}


def unserved_text(live_workers: int, queue_name: str) -> str:
    """Return that workers run, but none of them serves a queue."""
    text = ngettext(
        "%(number)d worker process runs, and none of them serves the queue %(queue)s.",
        "%(number)d worker processes run, and none of them serves the queue %(queue)s.",
        live_workers,
    )
    return text % {"number": live_workers, "queue": in_words(queue_name)}


def busy_text(tasks: Sequence[BusyTask]) -> str:
    """Return what occupies slots: the first tasks, each with its slots and its longest attempt."""
    text = _("%(slots)d × %(task)s for up to %(span)s")
    return ", ".join(
        text % {"slots": task.slots, "task": in_words(task.task_name), "span": span_text(task.longest_seconds)}
        for task in tasks[:SHOWN_TASKS]
    )


def utc_text(moment: datetime) -> str:
    """Return a moment to the second, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span_text(seconds: float) -> str:
    """Return a duration with its largest unit: 0 s, 59 s, 10 min, 3 h, 2 days."""
    for unit, text in ((86_400, _("%(number)d days")), (3600, _("%(number)d h")), (60, _("%(number)d min"))):
        if seconds >= 2 * unit:
            return text % {"number": round(seconds / unit)}
    return _("%(number)d s") % {"number": round(max(seconds, 0))}


def jobs_ahead(ahead: Count, *, of_key: bool) -> str:
    """Return how many due jobs come before a job, without a full stop."""
    if not ahead.value:
        return (
            _("an unknown number of due jobs of its limit key is claimed before it")
            if of_key
            else _("an unknown number of due jobs is claimed before it")
        )
    text = (
        ngettext(
            "%(jobs)s due job of its limit key is claimed before it",
            "%(jobs)s due jobs of its limit key are claimed before it",
            ahead.plural,
        )
        if of_key
        else ngettext("%(jobs)s due job is claimed before it", "%(jobs)s due jobs are claimed before it", ahead.plural)
    )
    return text % {"jobs": ahead}


def sentence_of(text: str) -> str:
    """Return a text from a row on one line, with a full stop."""
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."
