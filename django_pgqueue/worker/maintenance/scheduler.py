"""Store the schedules that this worker's code defines, and fire the schedules that are due (see `firing`).

Called by the service `Schedules` of every worker; there is no leader. The row of a schedule is
complete, so a worker also fires the schedules of other code.

Old and new code can run side by side. A row holds the digest of its definition, the digests of its former definitions,
and the time when a worker last confirmed it, that is: its own code has this definition. A definition that the row has
never had is newer, and replaces the row's at once. A definition that the row had before is older: its worker leaves
the row alone. If it sees no worker confirm it for three minutes, by its own monotonic clock, the newer code is gone:
this is a roll-back, and the older definition returns. A worker does not remove a schedule because its own code lacks
it. Such a schedule stops three minutes after a worker last confirmed it.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from typing import Final

from psycopg import errors

from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.errors import TRANSIENT, concerns_all_statements, message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import refused_rows, schedules
from django_pgqueue.lifecycle.schedules import Definition, Scheduled
from django_pgqueue.lifecycle.ticks import CONFIRMED_SECONDS
from django_pgqueue.schedules import declarations, job_options, next_ticks
from django_pgqueue.settings.conf import DAY_SECONDS, get_settings
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.maintenance import firing
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.refusals import Refusals
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import health_memory

from .firing import fire_all

logger = logging.getLogger("django_pgqueue.worker")

TEMPORARY: Final = (*TRANSIENT, errors.QueryCanceled)
"""A locked row and a slow server are no problem of the schedule that meets them. The next turn tries it again."""
CONFIRM_SECONDS: Final = 60.0
FORMER_LIMIT: Final = 20
"""The number of former definitions that a row remembers."""
UPKEEP_SECONDS: Final = 3600.0
RUN_RETENTION_SECONDS: Final = 7 * DAY_SECONDS
RUNS_KEPT: Final = 100
CODE_RETENTION_SECONDS: Final = 7 * DAY_SECONDS
"""A schedule that no code has defined for this long is removed."""
NONE_INTERVAL_SECONDS: Final = 60.0
"""Interval of the polls while there are no schedules, or while the role may not fire them."""


class Scheduler:
    """The state that one process keeps about the schedules from one round to the next."""

    def __init__(self, application: job_options.Application = job_options.IN_THIS_THREAD) -> None:
        self.application = application
        self._silence: dict[str, tuple[datetime | None, float]] = {}
        """For each schedule of any code: its last `confirmed_at`, and since when this process has seen no later one."""
        self._logged_problems: set[tuple[str, object]] = set()
        self._unconfirmed = Refusals("the confirmation of schedule")
        self._unremoved = Refusals("the removal of schedule")
        self._upkeep_at = time.monotonic() + UPKEEP_SECONDS * random.random()  # noqa: S311 -- spreads load

    def forget(self) -> None:
        """Forget the observed confirmations. After an error this process cannot know whether it has missed one."""
        self._silence.clear()

    def turn(self, connection: Connection) -> float | None:
        """Store definitions and fire due ticks. Return the seconds until the next tick, None without any schedule."""
        definitions = declarations.definitions(connection.alias)
        seen_at, found = schedules.read_schedules(connection)
        read_at = time.monotonic()
        self._track_confirmations(found)
        if self._store_definitions(connection, definitions, seen_at, found):
            seen_at, found = schedules.read_schedules(connection)
            read_at = time.monotonic()
        self._clean_up(connection, found)
        confirmed = [schedule for schedule in found if schedule.enabled and is_confirmed(schedule)]
        ready = [schedule for schedule in confirmed if schedule.is_on]
        wait_seconds = fire_all(connection, ready, self.application, partial(self._contain_errors_of, connection))
        pauses = (schedule.pause_seconds for schedule in confirmed if not schedule.is_on)
        return min(wait_seconds, *pauses, math.inf) - (time.monotonic() - read_at) if found else None

    # ---------------------------------------------------------------- definitions in the code

    def _store_definitions(
        self, connection: Connection, own: Mapping[str, Definition], seen_at: datetime, found: Sequence[Scheduled]
    ) -> bool:
        """Update the rows of this code's own schedules, and confirm them. Return whether any row has changed."""
        rows = {schedule.name: schedule for schedule in found if schedule.is_of_code}
        changed = False
        for name, definition in own.items():
            with self._contain_errors(connection, name, definition.digest):
                changed |= self._store_definition(connection, definition, seen_at, rows.get(name))
        stale = [
            row.schedule_id
            for name, row in rows.items()
            if name in own and row.digest == own[name].digest and not 0 <= row.unconfirmed_seconds < CONFIRM_SECONDS
        ]
        for refused in refused_rows.divided(
            connection, stale, partial(schedules.confirm_schedules, connection)
        ).refused:
            self._unconfirmed.note(refused.row, refused.error)
        return changed or bool(stale)

    def _store_definition(
        self, connection: Connection, definition: Definition, seen_at: datetime, row: Scheduled | None
    ) -> bool:
        if row is None:
            first_at = _first_tick(definition, seen_at)
            return schedules.add_schedule(connection, definition, origin="code", next_run_at=first_at) is not None
        if row.digest == definition.digest:
            return False
        is_older = definition.digest in row.former_digests.split()
        if is_older and self._silent_seconds(row) <= CONFIRMED_SECONDS:
            return False
        return _take_over(connection, row, definition)

    def _track_confirmations(self, found: Sequence[Scheduled]) -> None:
        """Note which schedules a worker has confirmed since the last round."""
        now, before = time.monotonic(), self._silence
        self._silence = {}
        for schedule in found:
            if schedule.is_of_code:
                confirmed_at, since = before.get(schedule.name, (None, now))
                since = since if confirmed_at == schedule.confirmed_at else now
                self._silence[schedule.name] = schedule.confirmed_at, since

    def _silent_seconds(self, schedule: Scheduled) -> float:
        """Return for how long this process has seen no worker confirm a schedule, by its own monotonic clock."""
        return time.monotonic() - self._silence[schedule.name][1]

    def _contain_errors_of(
        self, connection: Connection, schedule: Scheduled, *, is_over: bool = True
    ) -> AbstractContextManager[None]:
        """Keep an error of a stored schedule from stopping the others. Without `is_over`, it is not over yet."""
        return self._contain_errors(connection, schedule.name, schedule.revision, schedule, is_over=is_over)

    @contextmanager
    def _contain_errors(
        self,
        connection: Connection,
        name: str,
        definition: object,
        schedule: Scheduled | None = None,
        *,
        is_over: bool = True,
    ) -> Iterator[None]:
        """Keep an error of one schedule from stopping the others. Log it once until it is over, and store it."""
        failed: Exception
        try:
            yield
        except (ValueError, ArithmeticError) as error:
            failed, reason = error, str(error)
        except Exception as error:
            if (
                not isinstance(connection, EngineConnection)
                or is_lost(connection)
                or _concerns_all_schedules(error, schedule)
            ):
                raise
            failed, reason = error, message_without_detail(error)
        else:
            if is_over:
                self._logged_problems.discard((name, definition))
            return
        reason = " ".join(reason.split())
        if schedule is not None and not isinstance(failed, TEMPORARY):
            problem = error_text.storable(reason, error_text.MAX_ERROR_CHARACTERS)
            schedules.note_problem(connection, schedule, problem)
        # This happens at each tick, which another worker then fires: log it only once.
        is_left = isinstance(failed, job_options.LeftToOthers)
        if (problem_key := (name, (definition, "left") if is_left else definition)) not in self._logged_problems:
            self._logged_problems.add(problem_key)
            firing.log_failed(name, reason, failed.__cause__, is_left=is_left)

    # ---------------------------------------------------------------- schedules and ticks to remove

    def _clean_up(self, connection: Connection, found: Sequence[Scheduled]) -> None:
        if time.monotonic() < self._upkeep_at:
            return
        self._upkeep_at = time.monotonic() + UPKEEP_SECONDS
        abandoned = [
            schedule.schedule_id
            for schedule in found
            if schedule.is_of_code
            and schedule.unconfirmed_seconds > CODE_RETENTION_SECONDS
            and self._silent_seconds(schedule) > UPKEEP_SECONDS
        ]
        for refused in refused_rows.divided(connection, abandoned, partial(_remove, connection)).refused:
            self._unremoved.note(refused.row, refused.error)
        if found:
            schedules.prune_schedule_runs(connection, RUN_RETENTION_SECONDS, kept=RUNS_KEPT)


def _remove(connection: Connection, schedule_ids: Sequence[int]) -> dict[int, bool]:
    return dict.fromkeys(schedules.remove_schedules(connection, schedule_ids, CODE_RETENTION_SECONDS), True)


def is_confirmed(schedule: Scheduled) -> bool:
    """Return whether a worker has recently confirmed a schedule. A schedule made in the admin needs no confirmation."""
    return not schedule.is_of_code or schedule.unconfirmed_seconds < CONFIRMED_SECONDS


def _first_tick(definition: Definition, seen_at: datetime) -> datetime:
    return next_ticks.next_after(definition.expression, definition.time_zone, seen_at)


def _take_over(connection: Connection, row: Scheduled, definition: Definition) -> bool:
    former = [digest for digest in row.former_digests.split() if digest != definition.digest]
    changed = schedules.change_schedule(
        connection,
        row.schedule_id,
        definition,
        revision=row.revision,
        next_run_at=_first_tick(definition, row.seen_at),
        digest=definition.digest,
        former_digests=" ".join([*former, row.digest][-FORMER_LIMIT:]),
    )
    if changed:
        firing.log_changed(row.name)
    return changed


def _concerns_all_schedules(error: Exception, schedule: Scheduled | None) -> bool:
    """Return whether an error concerns more than one schedule: a database that is going down, or missing privileges.

    A user's trigger may raise any error for one schedule. If the role lacks the privileges, storing the problem, which
    follows, raises the same error.
    """
    missing = errors.InsufficientPrivilege | errors.UndefinedTable
    return concerns_all_statements(error) or (schedule is None and isinstance(error, missing))


class Schedules(Service):
    """Read the schedules every few seconds and wake for each tick. Without any schedule, read once a minute.

    Started by the worker process as a service.
    """

    def __init__(
        self, link: ConnectionSource, application: job_options.Application = job_options.IN_THIS_THREAD
    ) -> None:
        super().__init__("schedules")
        self.link = link
        self.scheduler = Scheduler(application)
        self._lacks_privileges = False

    def tick(self) -> float:
        """Do one round. Return the seconds until the next tick, or until the next poll if that is sooner."""
        try:
            with self.link.use() as connection:
                wait_seconds = self.scheduler.turn(connection)
                health_memory.answered("schedules")
        except errors.InsufficientPrivilege as error:
            self._log_missing_privileges(error)
            return NONE_INTERVAL_SECONDS
        except Exception:
            self.scheduler.forget()
            raise
        finally:
            django_connections.close_all()  # middleware, unique keys and receivers may have opened connections
        self._lacks_privileges = False
        if wait_seconds is None:
            return NONE_INTERVAL_SECONDS
        return max(0.0, min(wait_seconds, get_settings().SCHEDULE_INTERVAL))

    def _log_missing_privileges(self, error: Exception) -> None:
        """Log once that the role may not fire schedules, until a round succeeds."""
        if not self._lacks_privileges:
            logger.warning(
                "this worker fires no schedules: its database role lacks the required privileges, "
                'see "Roles in the database" in the documentation',
                extra=event("schedules_off"),
            )
            logger.debug("the missing privilege", exc_info=error)
        self._lacks_privileges = True
