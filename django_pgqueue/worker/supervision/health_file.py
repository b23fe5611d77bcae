"""Write the health file, in which a worker reports its state to a container platform or monitoring system.

`django_pgqueue.health` reads the file. The supervisor creates one `HealthFile`, and its `HealthThread` writes it.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress

from django_pgqueue.log_events import event
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")


class HealthFile:
    """The health file of one worker. Each write replaces the whole file. Without a path, the object does nothing."""

    def __init__(self, path: str | None, report: HealthReport) -> None:
        self.path = path
        self.report = report

    def write(self) -> None:
        """Replace the file. The rename is atomic, so a reader never sees a partial file."""
        if self.path is None:
            return
        unfinished = f"{self.path}.{os.getpid()}"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(self.report.as_dict(), file, indent=1)
        os.replace(unfinished, self.path)

    def write_if_alive(self) -> None:
        """Replace the file if the worker is alive. Otherwise the file becomes stale, and the platform restarts it."""
        if self.path is None or not self.report.judge().is_alive:
            return
        try:
            self.write()
        except OSError as error:
            if outage_log.may_log():
                logger.warning("could not write the health file: %s", error, extra=event("health_file_failed"))

    def remove(self) -> None:
        """Remove the file, so that it does not report a worker that has ended."""
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)
