"""Keep the reports that the database refuses: try them in other forms, and again later.

The completer calls this in its own thread; other threads call `ids()`. It protects these invariants: a refused report
does not delay other reports, is not forgotten while the process lives, and does not make its job run again without
counting the attempt. A failure of all reports of one kind is blamed on no job: a report gets another outcome only if
the statement that has refused it writes another report, and refuses it again (see `Evidence`).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.declared.retry import DEFAULT_BACKOFF
from django_pgqueue.ground.endings import NOT_COUNTED, SUCCESSES, Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import counted
from django_pgqueue.lifecycle import refused_rows
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.execution.error_text import MAX_ERROR_CHARACTERS, class_path, storable
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.refusals import Evidence

from .writer import WRITERS, Finished, finish

logger = logging.getLogger("django_pgqueue.worker")

LONGEST_PAUSE_SECONDS: Final = 60.0
LOG_SECONDS: Final = 60.0
Refused = refused_rows.Refused[Report]
Form = Callable[[Report, Exception], Report | None]


def in_ascii(report: Report, error: Exception) -> Report | None:
    """Return the report with ASCII texts, because a LATIN1 database cannot store every character.

    Attempts and delays stay the same.
    """
    plain = replace(
        report,
        exception_class=_ascii(report.exception_class),
        error=_ascii(report.error),
        traceback=_ascii(report.traceback),
    )
    return None if plain == report else plain


def as_kept(report: Report, error: Exception) -> Report | None:
    """Return a success that keeps the job's row, because a foreign key or a trigger may prevent its removal."""
    return replace(report, ending=Ending.SUCCEEDED, result=None) if report.ending is Ending.DISCARDED else None


def as_retry(report: Report, error: Exception) -> Report | None:
    """Return a failure without the texts, if the job was to run again. The attempt counts, so repeats are bounded."""
    again = report.ending in NOT_COUNTED or report.delay_seconds is not None
    if not again or report.claimed.attempt >= report.claimed.max_attempts:
        return None
    delay_seconds = None if report.ending is Ending.SUSPENDED else report.delay_seconds
    if delay_seconds is None:
        delay_seconds = DEFAULT_BACKOFF(report.claimed.attempt, None)
    return replace(_as_dead(report, error), delay_seconds=delay_seconds)


def _as_dead(report: Report, error: Exception) -> Report:
    """Return a failure that says that the report could not be stored. The job becomes dead."""
    cause = f"{type(error).__name__}: {message_without_detail(error)}"
    reason = f"the attempt's result ({report.ending.value}) could not be stored: {cause}"
    return replace(
        report,
        ending=Ending.CRASHED if report.ending is Ending.CRASHED else Ending.FAILED,
        result=None,
        delay_seconds=None,
        is_exhausted=False,
        exception_class=_ascii(class_path(error)),
        error=storable(_ascii(reason), MAX_ERROR_CHARACTERS),
        traceback="",
    )


FORMS: Final[tuple[Form, ...]] = (in_ascii, as_kept, as_retry, _as_dead)
"""The forms in which a refused report is tried, in this order."""


def in_form(form: Form, refused: Refused, to_blame: Container[int]) -> Report | None:
    """Return a refused report in another form, or None. Only the reports in `to_blame` may get another outcome."""
    changed = form(refused.row, refused.error)
    if changed is None or changed.ending in SUCCESSES or refused.row.claimed.execution_id in to_blame:
        return changed
    same = changed.ending is refused.row.ending
    return changed if same and (changed.delay_seconds is None) == (refused.row.delay_seconds is None) else None


class Confirmed(NamedTuple):
    """The refused reports after those were repeated for which that could have changed.

    `to_blame` and `again` are executions: of the reports that may get another outcome, and of those that should be
    tried again now, because another report was written since they were refused.
    """

    refused: list[Refused]
    locked: list[Report]
    to_blame: set[int]
    again: set[int]


class ReportEvidence:
    """Which refused reports are to blame, by the reports that the same statements have written meanwhile."""

    def __init__(self) -> None:
        self._evidence = Evidence()

    def confirm(
        self, reports: Sequence[Report], done: Finished, write: Callable[[Sequence[Report]], Finished]
    ) -> Confirmed:
        """Note which of these reports were written. Repeat those that were refused before another one was written."""
        to_blame, again = self._add(reports, done)
        retried = [entry.row for entry in done.refused if entry.row.claimed.execution_id in again]
        if not retried:
            return Confirmed(done.refused, [], to_blame, again)
        repeated = write(retried)
        refused = [entry for entry in done.refused if entry.row.claimed.execution_id not in again]
        return Confirmed(refused + repeated.refused, repeated.locked, to_blame | self._add(retried, repeated)[0], again)

    def _add(self, reports: Sequence[Report], done: Finished) -> tuple[set[int], set[int]]:
        """Note which reports were written and refused. Return those to blame, and those to try again now."""
        to_blame, written = set[int](), defaultdict[str, list[int]](list)
        unwritten = {report.claimed.execution_id for report in (*done.locked, *done.lost, *done.repeated)}
        for entry in done.refused:
            execution_id = entry.row.claimed.execution_id
            unwritten.add(execution_id)
            if self._evidence.failed(execution_id, _statement_of(entry.row)):
                to_blame.add(execution_id)
        for report in reports:
            if report.claimed.execution_id not in unwritten:
                written[_statement_of(report)].append(report.claimed.execution_id)
        again = set[int]()
        for statement, execution_ids in written.items():
            again |= self._evidence.wrote(execution_ids, statement)
        return to_blame, again


def _statement_of(report: Report) -> str:
    return WRITERS[report.ending].__name__


@dataclass(slots=True)
class KeptReport:
    """A report that could not be written in any form, and when to retry it, by the monotonic clock."""

    report: Report
    due_at: float
    tries: int


class UnwrittenReports:
    """The refused reports of one completer."""

    def __init__(
        self,
        reactions: Reactions,
        on_answer: Callable[[], None],
        on_change: Callable[[Iterable[int]], None],
        on_written: Callable[[Sequence[Report]], None] = lambda reports: None,
    ) -> None:
        """Keep no report yet.

        `on_answer` is called after each group of statements, so that a long round does not look like a stuck completer.
        `on_change` is called with the executions whose reports are kept here, when these change. `on_written` is called
        with the reports of each group, in the form in which they were tried.
        """
        self.reactions = reactions
        self._on_answer = on_answer
        self._on_change = on_change
        self._on_written = on_written
        self._waiting: dict[int, KeptReport] = {}
        self._evidence = ReportEvidence()
        self._logged_at = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def ids(self) -> set[int]:
        """Return the executions whose reports are kept here. Safe from any thread."""
        return set(self._waiting)

    @property
    def due_in_seconds(self) -> float:
        """Seconds until the next retry; infinity if no report is kept."""
        return min((entry.due_at for entry in self._waiting.values()), default=float("inf")) - time.monotonic()

    def take_due(self) -> list[Report]:
        """Return the reports to retry now. They are kept until `settle()` finds them written."""
        now = time.monotonic()
        due = [entry for entry in self._waiting.values() if entry.due_at <= now]
        for entry in due:
            entry.due_at = float("inf")
        return [entry.report for entry in due]

    def settle(self, connection: EngineConnection, reports: Sequence[Report], done: Finished) -> list[Report]:
        """Try the refused ones of these reports in other forms, and forget the written ones. Return the locked ones.

        An error that concerns all rows is raised. Nothing is lost then; call this again with the same reports.
        """
        confirmed = self._evidence.confirm(reports, done, partial(self._finish, connection))
        for execution_id in confirmed.again & self._waiting.keys():
            self._waiting[execution_id].due_at = time.monotonic()
        locked, refused = confirmed.locked, confirmed.refused
        for form in FORMS if refused else ():
            more_locked, refused = self._in_form(form, connection, refused, confirmed.to_blame)
            locked = locked + more_locked
        self._keep(reports, refused)
        return locked

    def _finish(self, connection: EngineConnection, reports: Sequence[Report]) -> Finished:
        done = finish(connection, reports, self.reactions)
        self._on_written(reports)
        self._on_answer()
        return done

    def _keep(self, reports: Sequence[Report], refused: Sequence[Refused]) -> None:
        before = set(self._waiting)
        tries = {entry.row.claimed.execution_id: self._tries(entry.row) + 1 for entry in refused}
        for report in reports:
            if report.claimed.execution_id not in tries:
                self._waiting.pop(report.claimed.execution_id, None)
        for entry in refused:
            execution_id = entry.row.claimed.execution_id
            backoff_seconds = min(2.0 ** (tries[execution_id] - 1), LONGEST_PAUSE_SECONDS)
            due_at = time.monotonic() + backoff_seconds
            self._waiting[execution_id] = KeptReport(entry.row, due_at, tries[execution_id])
        if refused:
            self._log(refused)
        if set(self._waiting) != before:
            self._on_change(list(self._waiting))

    def _in_form(
        self, form: Form, connection: EngineConnection, refused: Sequence[Refused], to_blame: Container[int]
    ) -> tuple[list[Report], list[Refused]]:
        """Write refused reports in one form. Return the reports whose rows are locked, and those still refused."""
        originals = {entry.row.claimed.execution_id: entry for entry in refused}
        changed = {key: in_form(form, entry, to_blame) for key, entry in originals.items()}
        done = self._finish(connection, [report for report in changed.values() if report is not None])
        locked = [originals[report.claimed.execution_id].row for report in done.locked]
        errors = {entry.row.claimed.execution_id: entry.error for entry in done.refused}
        still = [
            entry._replace(error=errors.get(key, entry.error))
            for key, entry in originals.items()
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
        job_ids = ", ".join(str(entry.row.claimed.job_id) for entry in refused[:10])
        logger.error(
            "the database refuses the results of %s, which are retried (jobs %s): %s",
            counted(len(self._waiting)),
            job_ids,
            message_without_detail(refused[0].error),
            extra=event("results_refused", count=len(self._waiting)),
        )


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii").replace("\x00", "\\x00")
