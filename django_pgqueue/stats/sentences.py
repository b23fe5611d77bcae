"""The sentences that `stats.why()` and `stats.causes()` share, and the times, durations and numbers in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.states import Pausable
from django_pgqueue.tasks.registry import in_words

from .answers import BusyTask, Count, PauseStats

SHOWN_TASKS: Final = 3


def paused_text(what: str, pause: PauseStats, time_text: Callable[[datetime], str]) -> str:
    """Return who has paused something, why, and until when."""
    until = f", until {time_text(pause.until)}" if pause.until else ""
    is_breaker = pause.kind is Pausable.LIMIT and pause.by == PAUSED_BY
    who, by = ("A circuit breaker", "") if is_breaker else ("An operator", f"by {pause.by}, " if pause.by else "")
    cause = f": {pause.reason.rstrip('.')}" if pause.reason else ""
    return f"{who} has paused {what}{cause} ({by}since {time_text(pause.paused_at)}{until})."


def unserved_text(live_workers: int, queue_name: str) -> str:
    """Return that workers run, but none of them serves a queue."""
    verb = "runs" if live_workers == 1 else "run"
    processes = number_text(live_workers, "worker process")
    return f"{processes} {verb}, and none of them serves the queue {in_words(queue_name)}."


def busy_text(tasks: Sequence[BusyTask]) -> str:
    """Return what occupies slots: the first tasks, each with its slots and its longest attempt."""
    return ", ".join(
        f"{task.slots} × {in_words(task.task_name)} for up to {span_text(task.longest_seconds)}"
        for task in tasks[:SHOWN_TASKS]
    )


def utc_text(moment: datetime) -> str:
    """Return a moment to the second, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span_text(seconds: float) -> str:
    """Return a duration with its largest unit: 0 s, 59 s, 10 min, 3 h, 2 days."""
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"


def number_text(count: int, noun: str) -> str:
    """Return a number with its noun, which ends with "s"."""
    return f"{count} {noun}" + ("" if count == 1 else "es")


def jobs_ahead(ahead: Count, *, of_key: bool) -> str:
    """Return how many due jobs come before a job, without a full stop."""
    where = " of its limit key" if of_key else ""
    if ahead == Count(1):
        return f"1 due job{where} is claimed before it"
    if not ahead.value:
        return f"an unknown number of due jobs{where} is claimed before it"
    return f"{ahead} due jobs{where} are claimed before it"


def sentence_of(text: str) -> str:
    """Return a text from a row on one line, with a full stop."""
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."
