"""Keep a worker away from a database of another installation, such as a restored dump of production.

The supervisor calls `start()` before it waits for the database. From then on, it and the processes that it forks check
each connection that a `Link` opens, and the supervisor repeats the check at each heartbeat. It protects one invariant:
a worker of another installation sends no statement that claims, fires, rescues or removes anything.

Processes without a supervisor are not guarded: applications, `manage.py pgqueue run`, and the tools for tests. They run
only the jobs that somebody has asked for.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import closing
from typing import Final

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection, connect
from django_pgqueue.ground.identity import Identity
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import installations
from django_pgqueue.lifecycle.installations import Adopted
from django_pgqueue.settings.conf import get_settings

logger = logging.getLogger("django_pgqueue.worker")

LOG_INTERVAL_SECONDS: Final = 60.0


class ForeignDatabase(psycopg.OperationalError):
    """The database belongs to another installation. A psycopg error, so that callers close the connection."""


class CloneGuard:
    """The check of one process."""

    def __init__(self) -> None:
        self.is_foreign = False
        """Whether the last check found a database of another installation, and refused it."""
        self._alias: str | None = None
        self._reported = ""
        self._report_at = 0.0

    def start(self, alias: str) -> None:
        """Check the connections to a database from now on, unless `PGQUEUE["CLONE_GUARD"]` is "off"."""
        self._alias = alias if get_settings().CLONE_GUARD != "off" else None

    def check(self, connection: EngineConnection) -> None:
        """Raise `ForeignDatabase` if the database belongs to another installation. Log a warning instead with "warn".

        If no installation is recorded, record this one.
        """
        if connection.alias != self._alias:
            return
        reason = difference(connection)
        self.is_foreign = bool(reason) and get_settings().CLONE_GUARD == "refuse"
        if self.is_foreign:
            raise ForeignDatabase(reason)
        if reason:
            self._report(logging.WARNING, f"{reason}. The worker works because PGQUEUE['CLONE_GUARD'] is 'warn'")
        else:
            self._reported = ""  # the next foreign database is another incident, so it is logged at once

    def reason_to_wait(self, alias: str) -> str:
        """Return why the worker must not start yet, or an empty string. Log the reason once a minute.

        Errors of the database pass through.
        """
        if alias != self._alias:
            return ""
        try:
            with closing(connect(alias, "supervisor")) as connection:
                self.check(connection)
        except ForeignDatabase as error:
            self._report(logging.ERROR, f"this worker waits and runs no job: {error}")
            return str(error)
        return ""

    def _report(self, level: int, text: str) -> None:
        now = time.monotonic()
        if text != self._reported or now >= self._report_at:
            self._reported, self._report_at = text, now + LOG_INTERVAL_SECONDS
            logger.log(level, "%s", text, extra=event("foreign_database", reason=text))


def difference(connection: EngineConnection) -> str:
    """Return how the database belongs to another installation, or an empty string if it belongs to this one."""
    own, recorded = _read(connection)
    if not recorded:
        # Read again, because a worker of another installation may have recorded itself at the same time.
        installations.record_installation(connection, own, f"the first worker, on {socket.gethostname()}"[:150])
        own, recorded = _read(connection)
    foreign = [adopted for adopted in recorded if adopted.identity != own]
    if not foreign:
        return ""
    return (
        f"database {connection.alias!r} belongs to another installation ({description(foreign[0], own)}): "
        f"to take it over, run `manage.py pgqueue adopt`"
    )


def description(foreign: Adopted, own: Identity) -> str:
    """Return what distinguishes another installation from this one, and who recorded it, for people to read."""
    return f"{foreign.identity.differences(own)}; adopted by {foreign.adopted_by or 'unknown'}"


def _read(connection: EngineConnection) -> tuple[Identity, list[Adopted]]:
    return installations.read_installations(connection, get_settings().ENVIRONMENT)


clone_guard: Final = CloneGuard()
"""The instance of this process."""
