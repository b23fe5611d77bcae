"""A history by job, and what the invariants are told and tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from tests.tools.faults.history import Event, History

BY_OPERATOR: Final = "operator"
"""The event by which the suite says that it acted on a job itself."""
FINISHED: Final = frozenset({"succeeded", "dead", "cancelled"})


class Violation(NamedTuple):
    """What does not hold, and of which job (0: of none)."""

    invariant: str
    job: int
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: job {self.job}: {self.what}"


class Rules(NamedTuple):
    """What a run promises besides."""

    crash_budget: int = 3
    retention_seconds: float | None = None
    """Of finished jobs; None: a run this short removes none."""
    finished: bool = False
    """Whether every job that is due must have ended."""
    obey_seconds: float = 2.0
    """How old a claim's knowledge of pauses may be: a second, and what the machine takes."""
    blames_rightly: bool = False
    """Whether each death and each crash must have a cause of its own: no row of the run is one that claims refuse."""
    passed_over_seconds: float = 5.0
    """For how long workers may claim other jobs of a queue, while the limit of a key admits a job of it."""


class Life:
    """One job's events, replayed: its state, and which executions are open."""

    def __init__(self, job: int) -> None:
        self.job = job
        self.events: list[Event] = []

    def of(self, place: str) -> list[Event]:
        """The events of the job's row, or of its executions."""
        return [event for event in self.events if event.place == place]

    def transactions(self) -> Iterator[list[Event]]:
        """Groups of events that committed together."""
        for _, group in groupby(self.events, key=lambda event: event.xid):
            yield list(group)


def lives_of(history: History) -> dict[int, Life]:
    """Return the events by job."""
    lives: dict[int, Life] = {}
    for event in history.events:
        lives.setdefault(event.job, Life(event.job)).events.append(event)
    return lives


def operated(history: History, *acts: str) -> set[int]:
    """The jobs on which the suite acted itself."""
    return {job for record in history.said(BY_OPERATOR) if record["act"] in acts for job in record["jobs"]}


def closed(life: Life) -> dict[int, Event]:
    """The events by which a job's executions were closed."""
    return {
        event.execution: event
        for event in life.of("execution")
        if event.execution is not None and event.new is not None and event.new["outcome"] is not None
    }
