"""The service of a worker that has schedules fired: when it looks, and what it does about errors."""

from __future__ import annotations

import logging
from typing import Final

from psycopg import errors

from django_pgqueue import firing
from django_pgqueue.conf import get_settings

from . import hygiene
from .link import Link
from .pulse import pulse
from .scheduler import Scheduler
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

NONE_INTERVAL_SECONDS: Final = 60.0
"""Between two looks while there is no schedule at all."""


class Schedules(Service):
    """Looks at the schedules every few seconds, and wakes for each tick; where there is none, once a minute."""

    def __init__(self, link: Link, application: firing.Application = firing.IN_THIS_THREAD) -> None:
        super().__init__("schedules")
        self.link = link
        self.scheduler = Scheduler(application)
        self._is_refused = False

    def tick(self) -> float:
        """Do one turn; sleep until the next tick."""
        try:
            with self.link.use() as connection:
                wait_seconds = self.scheduler.turn(connection)
                pulse.answered("schedules")
        except errors.InsufficientPrivilege as error:
            self._say_refused(error)
            return NONE_INTERVAL_SECONDS
        except Exception:
            self.scheduler.forget()
            raise
        finally:
            hygiene.close_all()  # what middleware, keys and receivers have asked: it is closed, and never left open
        self._is_refused = False
        if wait_seconds is None:
            self.link.close()  # a connection for one statement a minute is too dear
            return NONE_INTERVAL_SECONDS
        return max(0.0, min(wait_seconds, get_settings().SCHEDULE_INTERVAL))

    def at_end(self) -> None:
        """Close the connection."""
        self.link.close()

    def _say_refused(self, error: Exception) -> None:
        if not self._is_refused:
            logger.warning("this worker fires no schedules: its database role lacks the rights for it, see the docs")
            logger.debug("what the role lacks", exc_info=error)
        self._is_refused = True
