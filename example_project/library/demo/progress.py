"""Show in one line how many of the demo's jobs have finished. Called by the command `demo`."""

from __future__ import annotations

import shutil
import time
from typing import Final, NamedTuple

from django.core.management.base import OutputWrapper
from django.db.models import Count, Q
from django.db.models.functions import Now

from django_pgqueue.states import FINISHED, State

from .feeding import own_jobs

REDRAW_SECONDS: Final = 0.2
PLAIN_SECONDS: Final = 3.0
BAR_WIDTH: Final = 24


class Counts(NamedTuple):
    """The demo's jobs by state. `later` are delayed, snoozed, or wait for a retry."""

    total: int
    finished: int
    dead: int
    running: int
    later: int


def read_counts() -> Counts:
    """Count the demo's jobs by state."""
    return Counts(
        **own_jobs().aggregate(
            total=Count("pk"),
            finished=Count("pk", filter=Q(state__in=FINISHED)),
            dead=Count("pk", filter=Q(state=State.DEAD)),
            running=Count("pk", filter=Q(state=State.RUNNING)),
            later=Count("pk", filter=Q(state=State.READY, run_after__gt=Now())),
        )
    )


class Progress:
    """The progress line: redrawn in place on a terminal, otherwise printed every few seconds."""

    def __init__(self, stdout: OutputWrapper) -> None:
        self.stdout = stdout
        self.is_terminal = stdout.isatty()
        self.began_at = time.monotonic()
        self._printed_at = self.began_at
        self._width = 0

    def show(self, now: Counts) -> None:
        """Print the line if the last time was long enough ago."""
        if time.monotonic() - self._printed_at >= (REDRAW_SECONDS if self.is_terminal else PLAIN_SECONDS):
            self._print(now)

    def end(self, now: Counts) -> None:
        """Print the line for the last time."""
        self._print(now)
        if self.is_terminal:
            self.stdout.write("")

    def _print(self, now: Counts) -> None:
        self._printed_at = time.monotonic()
        line = self._line(now)
        if self.is_terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            self.stdout.write("\r" + line.ljust(self._width), ending="")
            self._width = len(line)
        else:
            self.stdout.write(line)
        self.stdout.flush()

    def _line(self, now: Counts) -> str:
        seconds = self._printed_at - self.began_at
        done = now.finished / now.total if now.total else 0.0
        bar = ("#" * int(done * BAR_WIDTH)).ljust(BAR_WIDTH, ".")
        return (
            f"  [{bar}] {now.finished:,} of {now.total:,} jobs, {now.dead} dead | "
            f"{now.running} running, {now.later} later | {now.finished / max(seconds, 0.1):,.0f}/s | {seconds:.1f} s"
        )
