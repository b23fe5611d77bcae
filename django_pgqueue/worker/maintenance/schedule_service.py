"""Run the scheduler in a worker process: when it runs, and how it handles errors.

Started by the worker process as a service.
"""

from __future__ import annotations

import logging
from typing import Final

from psycopg import errors

from django_pgqueue.conf import get_settings
from django_pgqueue.log_events import event
from django_pgqueue.schedules import job_options
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.health_memory import health_memory
from django_pgqueue.worker.runtime.service import Service

from .scheduler import Scheduler

logger = logging.getLogger("django_pgqueue.worker")

NONE_INTERVAL_SECONDS: Final = 60.0
"""Interval of the polls while there are no schedules, or while the role may not fire them."""


class Schedules(Service):
    """Read the schedules every few seconds and wake for each tick. Without any schedule, read once a minute."""

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
