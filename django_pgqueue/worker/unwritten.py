"""Writes reports, and keeps those that the database refuses: they are tried in other forms, and again later.

Called by the completer, in its own thread; `ids()` also by others. It protects these invariants: a refused report holds
up no other one, is not forgotten while the process lives, and does not make its job run again uncounted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.db import EngineConnection, told
from django_pgqueue.retry import DEFAULT_BACKOFF

from .awaited import Awaited
from .describe import MAX_ERROR_CHARACTERS, class_path, storable
from .events import Events
from .finisher import Finished, finish
from .report import Ending, Report

logger = logging.getLogger("django_pgqueue.worker")

LONGEST_PAUSE_SECONDS: Final = 60.0
LOG_SECONDS: Final = 60.0
Refused = lifecycle.Refused[Report]
Form = Callable[[Report, Exception], Report | None]


def in_ascii(report: Report, error: Exception) -> Report | None:
    """Return the same end with ASCII texts: a LATIN1 database cannot store an arrow. Attempts and delays are kept."""
    plain = replace(
        report,
        exception_class=_ascii(report.exception_class),
        error=_ascii(report.error),
        traceback=_ascii(report.traceback),
    )
    return None if plain == report else plain


def as_kept(report: Report, error: Exception) -> Report | None:
    """Return a success that keeps its job, because a user's foreign key or trigger may refuse to have it removed."""
    return replace(report, ending=Ending.SUCCEEDED, result=None) if report.ending is Ending.DISCARDED else None


def as_retry(report: Report, error: Exception) -> Report | None:
    """Return a failure without the texts, if the job was to run again: the attempt counts, so repeats are bounded."""
    again = report.ending in (Ending.RELEASED, Ending.UNKNOWN, Ending.SNOOZED) or report.delay_seconds is not None
    if not again or report.claimed.attempt >= report.claimed.max_attempts:
        return None
    delay_seconds = report.delay_seconds
    if delay_seconds is None:
        delay_seconds = DEFAULT_BACKOFF(report.claimed.attempt, None)  # type: ignore[assignment]  # ours: a float
    return replace(_as_dead(report, error), delay_seconds=delay_seconds)


def _as_dead(report: Report, error: Exception) -> Report:
    """Return a failure that says that the end could not be stored, after which the job is dead."""
    reason = f"the attempt's end ({report.ending.value}) could not be stored: {type(error).__name__}: {told(error)}"
    return replace(
        report,
        ending=Ending.CRASHED if report.ending is Ending.CRASHED else Ending.FAILED,
        result=None,
        delay_seconds=None,
        exception_class=_ascii(class_path(error)),
        error=storable(_ascii(reason), MAX_ERROR_CHARACTERS),
        traceback="",
    )


FORMS: Final[tuple[Form, ...]] = (in_ascii, as_kept, as_retry, _as_dead)
"""In which a refused end is tried, in this order."""


@dataclass(slots=True)
class Waiting:
    """A report that could be written in no form, and when to try again, by the monotonic clock."""

    report: Report
    due_at: float
    tries: int


class UnwrittenReports:
    """Those of one completer."""

    def __init__(self, events: Events, on_answer: Callable[[], None] = lambda: None) -> None:
        self.events = events
        self.on_answer = on_answer
        """Called after each group of statements: a long round is no sign of a stuck completer."""
        self.on_change: Callable[[Iterable[int]], None] = lambda execution_ids: None
        """Called with the executions whose ends are kept here, when these change."""
        self._waiting: dict[int, Waiting] = {}
        self._logged_at = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def ids(self) -> set[int]:
        """Return the executions whose ends are kept here; from any thread."""
        return set(self._waiting)

    @property
    def due_in_seconds(self) -> float:
        """How long the next try may wait; infinity if nothing is kept."""
        return min((one.due_at for one in self._waiting.values()), default=float("inf")) - time.monotonic()

    def take_due(self) -> list[Report]:
        """Return the reports to try again now. They are kept until `write()` has written them."""
        now = time.monotonic()
        due = [one for one in self._waiting.values() if one.due_at <= now]
        for one in due:
            one.due_at = float("inf")
        return [one.report for one in due]

    def write(self, connection: EngineConnection, reports: Sequence[Report], awaited: Awaited) -> list[Report]:
        """Write reports, those that are refused in another form; return those whose rows are locked.

        Raises the errors that concern all rows; then nothing is lost, and the same reports are to be written again.
        """
        done = self._finish(connection, reports, awaited)
        locked, refused = done.locked, done.refused
        for form in FORMS if refused else ():
            more_locked, refused = self._in_form(form, connection, refused, awaited)
            locked += more_locked
        if refused or self._waiting:
            self._keep(reports, refused)
        return locked

    def _finish(self, connection: EngineConnection, reports: Sequence[Report], awaited: Awaited) -> Finished:
        done = finish(connection, reports, awaited, self.events)
        self.on_answer()
        return done

    def _keep(self, reports: Sequence[Report], refused: Sequence[Refused]) -> None:
        before = set(self._waiting)
        tries = {one.row.claimed.execution_id: self._tries(one.row) + 1 for one in refused}
        for report in reports:
            if report.claimed.execution_id not in tries:
                self._waiting.pop(report.claimed.execution_id, None)
        for one in refused:
            execution_id = one.row.claimed.execution_id
            pause_seconds = min(2.0 ** (tries[execution_id] - 1), LONGEST_PAUSE_SECONDS)
            due_at = time.monotonic() + pause_seconds
            self._waiting[execution_id] = Waiting(one.row, due_at, tries[execution_id])
        if refused:
            self._log(refused)
        if set(self._waiting) != before:
            self.on_change(list(self._waiting))

    def _in_form(
        self, form: Form, connection: EngineConnection, refused: Sequence[Refused], awaited: Awaited
    ) -> tuple[list[Report], list[Refused]]:
        """Write refused reports in one form; return the reports whose rows are locked, and those still refused."""
        originals = {one.row.claimed.execution_id: one for one in refused}
        changed = {key: form(one.row, one.error) for key, one in originals.items()}
        done = self._finish(connection, [report for report in changed.values() if report is not None], awaited)
        locked = [originals[report.claimed.execution_id].row for report in done.locked]
        errors = {one.row.claimed.execution_id: one.error for one in done.refused}
        still = [
            one._replace(error=errors.get(key, one.error))
            for key, one in originals.items()
            if changed[key] is None or key in errors
        ]
        return locked, still

    def _tries(self, report: Report) -> int:
        known = self._waiting.get(report.claimed.execution_id)
        return min(known.tries, 10) if known else 0

    def _log(self, refused: Sequence[Refused]) -> None:
        if time.monotonic() - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = time.monotonic()
        job_ids = ", ".join(str(one.row.claimed.job_id) for one in refused[:10])
        logger.error(
            "the ends of %d jobs can be written in no form, and are tried again (jobs %s): %s",
            len(self._waiting),
            job_ids,
            told(refused[0].error),
        )


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii").replace("\x00", "\\x00")
