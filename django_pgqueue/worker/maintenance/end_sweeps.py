"""The sweeps of the maintenance for what follows the ends of jobs, and the later pages of large checks.

A worker that dies after a completion leaves its checks undone, and some ends have none (`ends` has a table). Each sweep
looks at all rows for which a check may be due, so it finds those, whatever has ended the jobs.

A check can have much to do: a dead job can have 20,000 dependents. The thread that has ended the job does one page of
it, and leaves the rest to the maintenance (`LaterChecks`), so that it writes the completions of other jobs meanwhile.
If the process dies, a sweep finds the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ends.end_check import EndCheck, Reactor, Sweep
from django_pgqueue.ends.end_checks import CHECKS, NEVER, EndChecks, sweep
from django_pgqueue.lifecycle import steps
from django_pgqueue.lifecycle.steps import FIRST_MARK
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition, Reactions
from django_pgqueue.settings.conf import DAY_SECONDS
from django_pgqueue.states import State
from django_pgqueue.worker.runtime.connection import ConnectionSource

SWEEP_SECONDS: Final = 10.0
"""The interval while there are batches, or jobs that wait for events."""
UNUSED_SECONDS: Final = 60.0
"""The interval after a sweep that found none. An idle worker of an application without them runs few statements."""


PAUSE_FACTOR: Final = 10
"""How many times as long as a page takes the sweep waits before the next one."""
MOST_EVENTS: Final = 1000
"""Events that a process remembers. Anybody can forge notifications."""
WOKEN: Final = TransitionResult(TransitionStatus.DONE, State.READY)


class EndSweep:
    """The position of one process in the walk of one sweep."""

    def __init__(self, link: ConnectionSource, end_check: EndCheck, one: Sweep, reactor: Reactor) -> None:
        self.name = one.name
        self.interval_seconds = DAY_SECONDS / 24 if one.is_rare else SWEEP_SECONDS
        self._link, self._end_check, self._sweep, self._reactor = link, end_check, one, reactor
        self._after_id = 0

    def run(self) -> bool | float:
        """Look at one page. Return whether there is more to do, or in how many seconds."""
        began, is_first = time.monotonic(), not self._after_id
        with self._link.use() as connection:
            swept = sweep(connection, self._end_check, self._sweep, self._after_id, self._reactor)
        self._after_id = swept.last_id or 0
        if is_first and swept.is_empty and not self._sweep.is_rare:
            return UNUSED_SECONDS
        return PAUSE_FACTOR * (time.monotonic() - began) if self._after_id else False


class LaterChecks:
    """Keep what the checks of a process have left for its maintenance, which does it page by page.

    Any thread adds to it. Only the maintenance runs it.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """Create it. `wake` wakes the maintenance."""
        self._wake = wake
        self._added = deque[tuple[str, Collection[Any]]]()
        self._is_running = False
        """Whether a page is left. Set before anything is taken from `_added`, so that `is_empty()` misses nothing."""

    def add(self, name: str, left: Collection[Any]) -> None:
        """Add what the check with this name has left."""
        self._added.append((name, left))
        self._wake()

    def is_new(self) -> bool:
        """Return whether anything was added since the last page."""
        return bool(self._added)

    def is_empty(self) -> bool:
        """Return whether every page is done."""
        return not self._is_running and not self._added

    def run(self, link: ConnectionSource, checks: EndChecks) -> bool | float:
        """Do one page of each check. Return whether there is more to do, or in how many seconds."""
        self._is_running = self._is_running or bool(self._added)
        while self._added:
            checks.note_left(*self._added.popleft())
        if self._is_running:
            with link.use() as connection:
                checks.check(connection)
        due_in_seconds = checks.due_in_seconds
        self._is_running = due_in_seconds < NEVER
        return due_in_seconds if self._is_running else False


def end_sweeps(link: ConnectionSource, reactor: Reactor) -> list[EndSweep]:
    """Return the sweeps of all checks."""
    return [EndSweep(link, end_check, one, reactor) for end_check in CHECKS for one in end_check.sweeps]


class SentEvents:
    """Keep the events of which a process has heard, for its maintenance, which wakes the jobs that wait for them.

    A sender whose database role may not change jobs leaves this to the workers. Each of them hears of the event. The
    fetcher adds events, and only the maintenance runs this. The sweep finds what is dropped or lost.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """Create it. `wake` wakes the maintenance."""
        self._wake = wake
        self._event_ids = deque[int](maxlen=MOST_EVENTS)

    def add(self, event_ids: Collection[int]) -> None:
        """Add events. Safe from any thread."""
        self._event_ids.extend(event_ids)
        self._wake()

    def is_new(self) -> bool:
        """Return whether any event was added since the last run."""
        return bool(self._event_ids)

    def run(self, link: ConnectionSource, reactions: Reactions) -> bool:
        """Wake the jobs that wait for the events. Without any, leave the connection alone."""
        event_ids = {self._event_ids.popleft() for _ in range(len(self._event_ids))}
        if event_ids:
            with link.use() as connection:
                _react(reactions, connection, steps.wake_for_events(connection, event_ids))
        return False


class StepDuties:
    """The position of one process in its walk over the waits for events.

    The sweep wakes the jobs whose event has come, but that neither the sender nor the completer has woken: because a
    process was lost between its commit and that statement, because another session had locked the job, or because the
    event was inserted by SQL.
    """

    def __init__(self, link: ConnectionSource, reactions: Reactions) -> None:
        self._link = link
        self._reactions = reactions
        self._mark = FIRST_MARK

    def wake_missed(self) -> bool | float:
        """Wake jobs whose event has come, of one page. Return whether there is more to do, or in how many seconds."""
        with self._link.use() as connection:
            woken = steps.wake_missed(connection, self._mark)
            _react(self._reactions, connection, woken.job_ids)
        is_unused = woken.is_empty and self._mark == FIRST_MARK
        self._mark = woken.mark or FIRST_MARK
        return UNUSED_SECONDS if is_unused else False


def _react(reactions: Reactions, connection: EngineConnection, job_ids: Collection[int]) -> None:
    """React to jobs that were woken."""
    if job_ids:
        reactions.after(connection, [JobTransition(job_id, None, WOKEN, is_due=True) for job_id in job_ids])
