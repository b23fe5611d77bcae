"""Count the attempts that end in a process, and write the counts into the rollup every few seconds.

The counter gets the transitions (see `reactions`), and successes in batches, because observing each of them would cost
as much as the rest of their completion. Several threads count;
maintenance and the stop of the process write.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import psycopg

from django_pgqueue.db.statements import Connection
from django_pgqueue.ground import histogram
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import rollups
from django_pgqueue.reactions import JobTransition, TimedAttempt
from django_pgqueue.states import State

INTERVAL_SECONDS: Final = 10.0
"""How often a process writes its counts. If it is killed, the counts since then are lost.

It writes at whole multiples of this time on its clock, and up to `SPREAD_SECONDS` later. So each minute has the counts
of six intervals, and a steady rate has a steady figure. The middle of an interval, which decides about its minute, is
never close to the end of a minute.
"""
SPREAD_SECONDS: Final = 3.0
"""Within this time the processes of a fleet write one after another."""
CLASSES_LIMIT: Final = 1000
"""Maximum number of tallies in one interval. Above it, further exception classes are counted as `OTHER`."""
TIMED_IN_BATCH: Final = 64
"""From this number on, not every success of a task in one batch is timed, but about half as many. To time one costs 0.4
µs, and a process completes up to 30,000 jobs in a second."""
OTHER: Final = "(other)"
LABELS: Final = attrgetter("claimed.queue_name", "claimed.task_name")

Columns = Mapping[State, str]
_SUCCESS: Final[Columns] = {}  # counted in batches
_FAILURE: Final[Columns] = {State.READY: "retried", State.DEAD: "dead", State.CANCELLED: "cancelled"}
_RELEASE: Final[Columns] = {State.READY: "released", State.CANCELLED: "cancelled"}
COLUMNS: Final[dict[Ending, Columns]] = {
    Ending.SUCCEEDED: _SUCCESS,
    Ending.DISCARDED: _SUCCESS,
    Ending.WRITTEN: _SUCCESS,
    Ending.FAILED: _FAILURE,
    Ending.CRASHED: _FAILURE,
    Ending.RELEASED: _RELEASE,
    Ending.UNKNOWN: _RELEASE,
    Ending.POSTPONED: _RELEASE,
    Ending.SNOOZED: {State.READY: "snoozed", State.CANCELLED: "cancelled"},
    Ending.SUSPENDED: {State.READY: "snoozed", State.CANCELLED: "cancelled"},
    Ending.CANCELLED: {State.CANCELLED: "cancelled"},
}
"""The column that counts an attempt, by its ending and its job's new state."""
TIMED: Final = frozenset({Ending.FAILED, Ending.CRASHED})
"""Endings whose waits and run times count, besides successes."""


@dataclass(slots=True)
class Tally:
    """The counts of one queue, task and exception class."""

    counts: Counter[str] = field(default_factory=Counter)
    """By column."""
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    waits: Counter[int] = field(default_factory=Counter)
    """By bucket of the histogram."""
    runs: Counter[int] = field(default_factory=Counter)

    def add_times(self, waits: Sequence[float], runs: Sequence[float], weight: int = 1) -> None:
        """Add the waits and the run times of attempts, in seconds. Each counts `weight` times."""
        self.wait_seconds += sum(waits) * weight
        self.run_seconds += sum(runs) * weight
        histogram.count_into(self.waits, waits, weight)
        histogram.count_into(self.runs, runs, weight)

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.counts.update(other.counts)
        self.waits.update(other.waits)
        self.runs.update(other.runs)
        self.wait_seconds += other.wait_seconds
        self.run_seconds += other.run_seconds

    def columns(self) -> dict[str, Any]:
        """Return the columns of the row to append."""
        return {
            **dict.fromkeys(("succeeded", "retried", "dead", "cancelled", "released", "snoozed", "crashed"), 0),
            **self.counts,
            "wait_seconds": self.wait_seconds,
            "run_seconds": self.run_seconds,
            "wait_buckets": list(self.waits),
            "wait_counts": list(self.waits.values()),
            "run_buckets": list(self.runs),
            "run_counts": list(self.runs.values()),
        }


Key = tuple[str, str, str]
"""Queue, task and exception class."""


class AttemptCounter:
    """The counts of one process since it last wrote them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: defaultdict[Key, Tally] = defaultdict(Tally)
        self._since = time.monotonic()
        """When the first of these attempts ended."""
        self._offset_seconds = random.uniform(0, SPREAD_SECONDS)  # noqa: S311 -- spreads load, hides nothing

    @property
    def due_in_seconds(self) -> float:
        """Seconds until the process should write its counts next."""
        return INTERVAL_SECONDS - (time.time() - self._offset_seconds) % INTERVAL_SECONDS

    def __bool__(self) -> bool:
        """Return whether there is something to write."""
        return bool(self._tallies)

    def observe(self, transition: JobTransition, database: str) -> None:
        """Count an attempt that did not succeed."""
        state, ending, task_name = transition.result.state, transition.ending, transition.task_name
        column = None if ending is None or state is None else COLUMNS[ending].get(state)
        if ending is None or column is None or task_name is None:
            return
        with self._lock:
            tally = self._tally((transition.details["queue_name"], task_name, transition.exception_class))
            tally.counts[column] += 1
            if ending is Ending.CRASHED:
                tally.counts["crashed"] += 1
            if ending in TIMED and transition.attempt is not None:
                # Beside the successes: readers want the times of a task, and add half as many histograms.
                timed = self._tally((transition.details["queue_name"], task_name, ""))
                timed.add_times(*seconds_of([transition.attempt]))

    def count_successes(self, attempts: Sequence[TimedAttempt]) -> None:
        """Count attempts that succeeded. In a large batch of one task, time only every n-th, which counts n times."""
        groups: defaultdict[tuple[str, str], list[TimedAttempt]] = defaultdict(list)
        for labels, in_a_row in groupby(attempts, key=LABELS):
            groups[labels] += in_a_row
        with self._lock:
            for (queue_name, task_name), group in groups.items():
                tally = self._tally((queue_name, task_name, ""))
                tally.counts["succeeded"] += len(group)
                step = len(group) // TIMED_IN_BATCH * 2 + 1
                first = random.randrange(step)  # noqa: S311 -- jobs may alternate in step with a fixed choice
                tally.add_times(*seconds_of(group[first::step]), weight=step)

    def _tally(self, key: Key) -> Tally:
        if not self._tallies:
            self._since = time.monotonic()
        if len(self._tallies) >= CLASSES_LIMIT and key not in self._tallies and key[2]:
            key = (*key[:2], OTHER)
        return self._tallies[key]

    def write(self, connection: Connection) -> None:
        """Append the counts to the rollup. Without counts, do nothing.

        After a lost connection the counts are kept, and the next call writes them. If the database refuses them, they
        are dropped, so that they cannot be refused forever.
        """
        with self._lock:
            tallies, self._tallies = self._tallies, defaultdict(Tally)
            since = self._since
        if not tallies:
            return
        rows = [
            {"queue_name": queue_name, "task_name": task_name, "exception_class": exception_class, **tally.columns()}
            for (queue_name, task_name, exception_class), tally in tallies.items()
        ]
        try:
            left = rollups.append_rollups(connection, rows, seconds_ago=(time.monotonic() - since) / 2)
        except (psycopg.OperationalError, OSError):
            self._put_back(tallies, since)
            raise
        if left:
            keys = list(tallies)
            self._put_back({keys[place]: tallies[keys[place]] for place in left}, since)

    def _put_back(self, tallies: Mapping[Key, Tally], since: float) -> None:
        """Add counts that were not written to those that were counted meanwhile."""
        with self._lock:
            for key, tally in tallies.items():
                self._tally(key).add(tally)
            self._since = since


def seconds_of(attempts: Sequence[TimedAttempt]) -> tuple[list[float], list[float]]:
    """Return how long the jobs had been due when the attempts started, and how long the attempts ran."""
    waits = [
        (job := one.claimed).claimed_ms / 1000 - job.run_after.timestamp() + one.started_at - job.claimed_at
        for one in attempts
    ]
    return waits, [one.finished_at - one.started_at for one in attempts]
