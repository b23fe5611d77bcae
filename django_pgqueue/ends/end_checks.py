"""Run the checks that follow the ends of jobs, in their order. This is the only code that knows all of them.

The completer, the foreground run and the views of remote workers note the reports that they have written (`EndChecks`).
For most other ends, `Reactions` or `settlement` calls `follow()` after the transition. The maintenance and the testing
kit call `sweep()`, which finds the rest.

A check must not keep the jobs of others from their completion: if the database refuses it, it is left to the sweep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import is_outage, message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.endings import REPORTED, SUCCESSES, Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import counted
from django_pgqueue.lifecycle.ends import EndedJob, find_ended
from django_pgqueue.lifecycle.refused_rows import Refused
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.reactions import JobTransition, React
from django_pgqueue.states import FINISHED

from .batches import Batches
from .compensations import HEADER, Compensations, compensated_id
from .end_check import APPLICATION, Checked, EndCheck, Later, Publish, Reactor, Sweep, send_now
from .graphs import Graphs

logger = logging.getLogger("django_pgqueue.worker")

CHECKS: Final[tuple[EndCheck, ...]] = (Compensations(), Graphs(), Batches())
"""In this order: a dependent that is cancelled can end its batch, and a compensation comes before both."""
LOCKED_SECONDS: Final = 10.0
"""How long a process retries a job or a batch that another session has locked. Afterwards the sweep finds it."""
LOCKED_INTERVAL_SECONDS: Final = 0.05
NEVER: Final = float("inf")


class ReportedEnd(Protocol):
    """The report of an attempt."""

    @property
    def claimed(self) -> Claimed: ...
    @property
    def ending(self) -> Ending: ...
    @property
    def delay_seconds(self) -> float | None: ...
    @property
    def has_compensations(self) -> bool: ...


def ended_jobs(reports: Iterable[ReportedEnd]) -> list[EndedJob]:
    """Return those jobs of these reports that may have ended and that something follows, and postponed nodes.

    A plain job costs no more than these comparisons.
    """
    return [
        _ended_job(each)
        for each in reports
        if (
            each.claimed.batch_id is not None
            or each.claimed.in_graph
            or each.has_compensations
            or (each.claimed.headers is not None and HEADER in each.claimed.headers)
        )
        and ((each.ending in REPORTED and each.delay_seconds is None) or each.ending is Ending.POSTPONED)
    ]


def _ended_job(report: ReportedEnd) -> EndedJob:
    claimed, ending = report.claimed, report.ending
    if ending is Ending.POSTPONED:
        return EndedJob(claimed.job_id, is_postponed=True)
    return EndedJob(
        claimed.job_id,
        claimed.batch_id,
        bool(claimed.in_graph),
        report.has_compensations and ending is not Ending.DISCARDED,
        compensated_id(claimed.headers) if ending in SUCCESSES else None,
    )


class EndChecks:
    """The ended jobs that one thread has noted, for all checks. It needs no lock.

    A process that dies before a check leaves it to the sweep.
    """

    def __init__(self, reactor: Reactor = APPLICATION, checks: Sequence[EndCheck] = CHECKS) -> None:
        self._reactor = reactor
        self._pending = [_Pending(check) for check in checks]
        self._is_idle = True

    @property
    def due_in_seconds(self) -> float:
        """Seconds until `check()` should be called, or infinity."""
        return NEVER if self._is_idle else min(each.due_in_seconds for each in self._pending)

    def note_reports(self, reports: Iterable[ReportedEnd]) -> None:
        """Note the jobs of reports that were written."""
        if ended := ended_jobs(reports):
            self.note(ended)

    def note(self, ended: Iterable[EndedJob]) -> None:
        """Note jobs that have ended."""
        self._is_idle = False
        for job in ended:
            for each in self._pending:
                each.noted.update(each.end_check.note(job))

    def note_left(self, name: str, left: Iterable[Any]) -> None:
        """Note what a check has left for its next page."""
        self._is_idle = False
        for each in self._pending:
            if each.end_check.name == name:
                each.noted.update(left)

    def check(self, connection: Connection, *, at_once: bool = False) -> None:
        """Run one page of each check that is due, or `at_once` all pages of all for which something is noted.

        After a lost connection, what was noted is kept for the next call. On a Django connection, errors are raised:
        the caller's transaction may have failed. A refused row is raised too, after all others were checked.
        """
        if self._is_idle:
            return
        refused: list[Refused[int]] = []
        for each in self._pending:
            is_due = not each.due_in_seconds or (at_once and each.due_in_seconds < NEVER)
            while is_due:
                checked = each.check(connection, self._reactor)
                refused += checked.refused
                self.note(checked.ended)
                is_due = at_once and bool(each.noted)
        self._is_idle = all(each.due_in_seconds == NEVER for each in self._pending)
        if refused and not isinstance(connection, EngineConnection):
            raise refused[0].error


class _Pending:
    """The part of one check, and when it is due."""

    def __init__(self, end_check: EndCheck) -> None:
        self.end_check = end_check
        self.noted: set[Any] = set()
        self._locked_since: dict[Any, float] = {}
        self._checked_at = 0.0

    @property
    def due_in_seconds(self) -> float:
        if not self.noted and not self._locked_since:
            return NEVER
        interval_seconds = self.end_check.interval_seconds if self.noted else LOCKED_INTERVAL_SECONDS
        return max(0.0, self._checked_at + interval_seconds - time.monotonic())

    def check(self, connection: Connection, reactor: Reactor) -> Checked:
        self._checked_at = now = time.monotonic()
        noted, checked = self.noted | self._locked_since.keys(), Checked()
        with _left_to_the_sweep(connection, self.end_check.name, len(noted)):
            checked = self.end_check.check(connection, noted, reactor)
        _log_refused(self.end_check, checked)
        since = {each: self._locked_since.get(each, now) for each in checked.locked}
        self._locked_since = {each: at for each, at in since.items() if now - at < LOCKED_SECONDS}
        self.noted = set()
        if checked.left and reactor.later is not None:
            reactor.later(self.end_check.name, checked.left)
        else:
            self.noted.update(checked.left)
        return checked


def follow(
    connection: Connection,
    transitions: Iterable[JobTransition],
    react: React,
    publish: Publish = send_now,
    later: Later | None = None,
) -> None:
    """Run the checks for the jobs that these transitions have ended. Locked rows are left to the sweep.

    Those that the reports of attempts describe are left out: the writers of reports note them.
    """
    job_ids = [each.job_id for each in transitions if each.result.state in FINISHED and not _is_reported(each)]
    if not job_ids:
        return
    checks = EndChecks(Reactor(react, publish, later))
    with _left_to_the_sweep(connection, "all", len(job_ids)):
        checks.note(find_ended(connection, job_ids))
    checks.check(connection, at_once=True)


def _is_reported(transition: JobTransition) -> bool:
    """Return whether the report of an attempt says that its job has ended.

    It says otherwise if another attempt was to follow, but the job was asked to stop.
    """
    return transition.attempt is not None and transition.ending in REPORTED and transition.delay_seconds is None


class Swept(NamedTuple):
    """The result of one page of a sweep. `last_id` is the end of the page, or None after the last."""

    changed: int
    last_id: int | None
    is_empty: bool


def sweep(connection: Connection, end_check: EndCheck, one: Sweep, after_id: int, reactor: Reactor) -> Swept:
    """Check what one page of a sweep finds, behind the id `after_id`."""
    page = one.find(connection, after_id)
    checked = end_check.check(connection, page.noted, reactor) if page.noted else Checked()
    _log_refused(end_check, checked)
    if checked.ended or checked.left:
        checks = EndChecks(reactor)
        checks.note(checked.ended)
        checks.note_left(end_check.name, checked.left)
        checks.check(connection, at_once=True)
    return Swept(checked.changed, page.last_id, page.is_empty)


@contextmanager
def _left_to_the_sweep(connection: Connection, name: str, count: int) -> Iterator[None]:
    """Log an error of the database, and continue: completions must not wait. Raise it if the connection is lost."""
    try:
        yield
    except (psycopg.Error, OSError) as error:
        if is_outage(error) or not isinstance(connection, EngineConnection):
            raise
        logger.warning(
            "what follows the ends of %s could not be checked (%s: %s)",
            counted(count),
            name,
            message_without_detail(error),
            extra=event("end_checks_refused", check=name, count=count),
        )


def _log_refused(end_check: EndCheck, checked: Checked) -> None:
    """Log the jobs or batches for which the database refuses the write. The sweep tries them again."""
    for refused_id, error in checked.refused:
        logger.warning(
            "what follows an end could not be written (%s, id %s: %s)",
            end_check.name,
            refused_id,
            message_without_detail(error),
            extra=event("end_check_refused", check=end_check.name, id=refused_id),
        )
