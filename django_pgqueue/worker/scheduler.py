"""Schedules: writes down what this worker's code defines, and fires what is due.

Every worker does it, and there is no leader. A schedule is all in its row, so a worker fires those of any code; FIRE
compares and sets, so a tick is fired by one. Python works out ticks, and the database's clock says which have come.

Old and new code side by side. A row holds the digest of its definition, the digests of those it had before, and when a
worker last *vouched* for it: said that its own code defines it so. A definition never seen before is newer, and takes
over at once. One that the row had before is older: its worker leaves the row alone, unless for three minutes, by its
own clock and with its own eyes, nobody has vouched; then the newer code is gone, and this is a roll-back. A schedule
that the code does not have is nobody's to remove: it stops three minutes after the last worker that vouches for it.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg import errors

from django_pgqueue import expressions, firing, lifecycle, registry, timetable
from django_pgqueue.conf import DAY_SECONDS
from django_pgqueue.db import Connection, EngineConnection, is_lost, is_of_rows, told, wake_workers
from django_pgqueue.lifecycle import VOUCHED_SECONDS, Definition, JobOptions, Scheduled

from . import describe

logger = logging.getLogger("django_pgqueue.worker")

VOUCH_SECONDS: Final = 60.0
LATE_SECONDS: Final = 60.0
"""A tick that is no older is late, and runs; an older one is missed, and the schedule says what becomes of it."""
FIRST_TICK: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""A next tick before this one, such as minus infinity, is a damaged row: it is not owed, and is set anew."""
MISSED_LIMIT: Final = 100
"""Missed ticks that are made up for at the most, the last ones."""
AGAIN_SECONDS: Final = 1.0
"""Before the next look where somebody else had a schedule's row."""
FORMER_LIMIT: Final = 20
"""Former definitions that a row remembers."""
UPKEEP_SECONDS: Final = 3600.0
RUN_RETENTION_SECONDS: Final = 7 * DAY_SECONDS
RUNS_KEPT: Final = 100
CODE_RETENTION_SECONDS: Final = 7 * DAY_SECONDS
"""After which a schedule that no code defines is removed."""


class Scheduler:
    """What one process remembers of the schedules between two turns."""

    def __init__(self, application: firing.Application = firing.IN_THIS_THREAD) -> None:
        self.application = application
        self._silence: dict[str, tuple[datetime | None, float]] = {}
        """Of each schedule of any code when somebody last vouched for it, and since when this process sees no later."""
        self._complaints: set[tuple[str, object]] = set()
        self._upkeep_at = time.monotonic() + UPKEEP_SECONDS * random.random()  # noqa: S311 -- spreads load

    def forget(self) -> None:
        """After an error: whether anybody vouched meanwhile is not known."""
        self._silence.clear()

    def turn(self, connection: Connection) -> float | None:
        """Write down, fire; return the seconds until the next tick, or None if there is no schedule at all."""
        mine = timetable.definitions(connection.alias)
        seen_at, found = lifecycle.schedules(connection)
        self._watch(found)
        if self._write_down(connection, mine, seen_at, found):
            seen_at, found = lifecycle.schedules(connection)
        self._keep_up(connection, found)
        waits = [math.inf]
        for one in found:
            if one.enabled and is_vouched(one):
                with self._alone(connection, one.name, one.revision, one):
                    waits.append(fire_due(connection, one, self.application))
        return min(waits) if found else None

    # ---------------------------------------------------------------- what the code says

    def _write_down(
        self, connection: Connection, mine: Mapping[str, Definition], seen_at: datetime, found: Sequence[Scheduled]
    ) -> bool:
        """Bring the rows of this code's schedules up to date; say whether any was changed."""
        rows = {one.name: one for one in found if one.is_of_code}
        changed = False
        for name, definition in mine.items():
            with self._alone(connection, name, definition.digest):
                changed |= self._write_one(connection, definition, seen_at, rows.get(name))
        stale = [
            row.schedule_id
            for name, row in rows.items()
            if name in mine and row.digest == mine[name].digest and not 0 <= row.unvouched_seconds < VOUCH_SECONDS
        ]
        if stale:
            lifecycle.vouch(connection, stale)
        return changed or bool(stale)

    def _write_one(
        self, connection: Connection, definition: Definition, seen_at: datetime, row: Scheduled | None
    ) -> bool:
        if row is None:
            first_at = _first(definition, seen_at)
            return lifecycle.add_schedule(connection, definition, origin="code", next_run_at=first_at) is not None
        if row.digest == definition.digest:
            return False
        is_older = definition.digest in row.former_digests.split()
        if is_older and self._silent_seconds(row) <= VOUCHED_SECONDS:
            return False
        return _take_over(connection, row, definition)

    def _watch(self, found: Sequence[Scheduled]) -> None:
        """Note who was vouched for since the last turn."""
        now, before = time.monotonic(), self._silence
        self._silence = {}
        for one in found:
            if one.is_of_code:
                word, since = before.get(one.name, (None, now))
                self._silence[one.name] = one.vouched_at, since if word == one.vouched_at else now

    def _silent_seconds(self, one: Scheduled) -> float:
        """Return for how long this process has seen nobody vouch for a schedule, whatever the database's clock did."""
        return time.monotonic() - self._silence[one.name][1]

    @contextmanager
    def _alone(
        self, connection: Connection, name: str, definition: object, one: Scheduled | None = None
    ) -> Iterator[None]:
        """Keep an error of one schedule from the others: it is logged, once until it is over, and noted."""
        failed: Exception
        try:
            yield
        except (ValueError, ArithmeticError) as error:
            failed, reason = error, str(error)
        except psycopg.Error as error:
            if not isinstance(connection, EngineConnection) or is_lost(connection) or _is_everybodys(error, one):
                raise
            failed, reason = error, told(error)
        else:
            self._complaints.discard((name, definition))
            return
        reason = " ".join(reason.split())
        if one is not None:
            lifecycle.note_problem(connection, one, describe.storable(reason, describe.MAX_ERROR_CHARACTERS))
        left = isinstance(failed, firing.LeftToOthers)  # at each tick, which another worker fires: said but once
        if (complaint := (name, (definition, "left") if left else definition)) not in self._complaints:
            self._complaints.add(complaint)
            level, words = (logging.WARNING, "is left to others") if left else (logging.ERROR, "does not run")
            logger.log(level, "schedule %s %s: %s", registry.in_words(name), words, reason, exc_info=failed.__cause__)

    # ---------------------------------------------------------------- what is over

    def _keep_up(self, connection: Connection, found: Sequence[Scheduled]) -> None:
        if time.monotonic() < self._upkeep_at:
            return
        self._upkeep_at = time.monotonic() + UPKEEP_SECONDS
        left = [
            one.schedule_id
            for one in found
            if one.is_of_code
            and one.unvouched_seconds > CODE_RETENTION_SECONDS
            and self._silent_seconds(one) > UPKEEP_SECONDS
        ]
        if left:
            lifecycle.remove_schedules(connection, left, CODE_RETENTION_SECONDS)
        if found:
            lifecycle.prune_schedule_runs(connection, RUN_RETENTION_SECONDS, kept=RUNS_KEPT)


def is_vouched(one: Scheduled) -> bool:
    """Say whether some worker's code has this schedule, or nobody's has to."""
    return not one.is_of_code or one.unvouched_seconds < VOUCHED_SECONDS


def fire_due(connection: Connection, one: Scheduled, application: firing.Application = firing.IN_THIS_THREAD) -> float:
    """Fire the ticks of a schedule that have come; return the seconds until the next, infinity if one has to wait.

    Raises `ValueError` if its expression or its zone cannot be read, `firing.CannotFire` if its job cannot be made.
    """
    following_at = expressions.next_after(one.expression, one.time_zone, one.seen_at)
    wait_seconds = (following_at - one.seen_at).total_seconds()
    if one.next_run_at > one.seen_at or one.next_run_at < FIRST_TICK:
        if one.next_run_at != following_at:  # a clock was put right, or the rules of a time zone have changed
            lifecycle.plan_schedule(connection, one, following_at)
        return wait_seconds
    ticks = due_ticks(one)
    if not ticks:
        return wait_seconds if lifecycle.plan_schedule(connection, one, following_at) else AGAIN_SECONDS
    expected_at = one.next_run_at
    for tick_at, after_it in zip(ticks, [*ticks[1:], following_at], strict=True):
        options = firing.options_of(connection, one, application)
        fired = lifecycle.fire(
            connection,
            one,
            expected_at=expected_at,
            tick_at=tick_at,
            following_at=after_it,
            options=options,
            delay_seconds=random.uniform(0, one.jitter_seconds),  # noqa: S311 -- spreads load, hides nothing
        )
        if fired is None:
            return AGAIN_SECONDS
        if fired.what == "waits":
            return math.inf
        _tell(connection, one, options, tick_at, fired, application)
        expected_at = after_it
    return wait_seconds


def due_ticks(one: Scheduled) -> list[datetime]:
    """Return the ticks of a schedule to fire now: the one that is owed and those since, by its rule for missed ones."""
    rest = expressions.last_between(one.expression, one.time_zone, one.next_run_at, one.seen_at, MISSED_LIMIT)
    ticks = [one.next_run_at, *rest][-MISSED_LIMIT:]
    on_time = one.seen_at - timedelta(seconds=LATE_SECONDS)
    if one.next_run_at >= on_time or one.missed == "all":
        return ticks
    return ticks[-1:] if one.missed == "latest" else [tick for tick in ticks if tick >= on_time]


def _first(definition: Definition, seen_at: datetime) -> datetime:
    return expressions.next_after(definition.expression, definition.time_zone, seen_at)


def _take_over(connection: Connection, row: Scheduled, definition: Definition) -> bool:
    former = [digest for digest in row.former_digests.split() if digest != definition.digest]
    changed = lifecycle.change_schedule(
        connection,
        row.schedule_id,
        definition,
        revision=row.revision,
        next_run_at=_first(definition, row.seen_at),
        digest=definition.digest,
        former_digests=" ".join([*former, row.digest][-FORMER_LIMIT:]),
    )
    if changed:
        logger.info("schedule %s has the definition of this worker's code now", registry.in_words(row.name))
    return changed


def _tell(
    connection: Connection,
    one: Scheduled,
    options: JobOptions,
    tick_at: datetime,
    fired: lifecycle.Fired,
    application: firing.Application,
) -> None:
    name, what = registry.in_words(one.name), fired.what
    if fired.job_id is None:
        what = f"skipped: {firing.holder_of(connection, options)} has its key" if what == "duplicate" else what
        logger.info("schedule %s: tick of %s %s", name, tick_at, what)
        return
    logger.info("schedule %s: job %s for the tick of %s", name, fired.job_id, tick_at)
    wake_workers(connection)
    firing.tell(connection, one, options, fired.job_id, application)


def _is_everybodys(error: psycopg.Error, one: Scheduled | None) -> bool:
    """Return whether an error is not about one row: the database is going down, or the role lacks the rights.

    A user's trigger may raise any error for one schedule. If the role lacks the rights, the note of the problem, which
    follows, raises the same error.
    """
    missing = errors.InsufficientPrivilege | errors.UndefinedTable
    return not is_of_rows(error) or (one is None and isinstance(error, missing))
