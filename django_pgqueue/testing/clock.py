"""Time travel: the queue's statements see a later time; no row is touched, and nobody sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django_pgqueue.db import clock


@contextmanager
def time_travel(
    *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
) -> Iterator[None]:
    """Let the queue's time be that much later: delayed jobs and retries come due, retention ends, leases run out.

    A context manager or a decorator; journeys within one another add up. It moves the time of this process's queue
    statements, which is PostgreSQL's. What the tasks themselves take for the time is `freezegun`'s or `time-machine`'s
    business, and neither moves the queue. Raises `ValueError` for a journey into the past.
    """
    shift = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if shift < timedelta():
        raise ValueError(f"time travel leads into the future only, not {shift.total_seconds():g} s")
    clock.shift_seconds += shift.total_seconds()
    try:
        yield
    finally:
        clock.shift_seconds -= shift.total_seconds()
