"""What a worker process that has ended still held: charged with the crash if it had started, released if not.

That calls code of the application: backoffs, and receivers of signals. The supervisor sends the heartbeats of all other
worker processes, so it runs none of it: it forks a process for each settlement. Where that process hangs or dies, the
supervisor writes what is left to write itself, with the default backoff and without signals.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, NoReturn

import psycopg

from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.db import wake_workers
from django_pgqueue.lifecycle import Failed, Fate, Held, Released
from django_pgqueue.states import Outcome

from . import policy
from .background_log import background_log
from .crash_events import log_crash, publish_crash
from .exit_functions import forget_inherited_processes, run_exit_functions
from .giving import publish_cancelled
from .leases import Process
from .link import Link
from .refusals import Refusals
from .trouble import trouble
from .watchdog import kill

logger = logging.getLogger("django_pgqueue.worker")

DIED: Final = "the worker process died while it ran"
UNWRITTEN: Final = "the attempt's end could not be stored before its worker process ended"
OVERDUE: Final = "it ran past its timeout, and kept the whole worker process from running: killed with it"
WRITE_SECONDS: Final = 3.0, 15.0
"""How long a settlement may take to write what it does: half a lease, but at least and at most this."""
CALL_SECONDS: Final = 15.0
"""How long a settlement may take in all, its receivers included."""
RETRY_SECONDS: Final = 1.0
AT_ONCE: Final = 4
"""So many may call receivers at a time; only one writes."""
SOME_LEFT: Final = 3
"""The exit code that says: a row was locked, or the database is away. Try again."""
NO_CONNECTION: Final = 4
"""The exit code that says: there was no connection. The supervisor, which has one, then settles by itself."""
NAME: Final = b"pgqueue-settle"
Callback = Callable[[], None]
refusals: Final = Refusals("the end of execution")


@dataclass
class Batch:
    """A settlement under way."""

    processes: list[Process]
    written: mmap.mmap
    """Shared memory: a byte for each of them, 1 if all that it held was written. An exit code would prove nothing,
    because a receiver may call `os._exit(0)`."""
    began_at: float = field(default_factory=time.monotonic)

    def left(self) -> list[Process]:
        """Return the processes whose executions are not all written."""
        return [process for process, byte in zip(self.processes, self.written[:], strict=True) if not byte]

    def is_too_late(self) -> bool:
        """Whether it has taken so long that it must be killed."""
        shortest, longest = WRITE_SECONDS
        write_seconds = min(longest, max(shortest, get_settings().LEASE / 2))
        return time.monotonic() - self.began_at > (write_seconds if self.left() else CALL_SECONDS)


class Settlement:
    """The supervisor's side. `fork` runs a function in a new process of a given name and returns its pid."""

    def __init__(self, link: Link, fork: Callable[[Callable[[], NoReturn], bytes], int]) -> None:
        self.link = link
        self.ended: list[Process] = []
        """Worker processes that have ended, and may have left open executions."""
        self._fork = fork
        self._batches: dict[int, Batch] = {}
        self._retry_at = 0.0
        self._without_application: list[Process] = []
        """Those of `ended` that a forked process has failed at."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to write or to call."""
        return not self.ended and not self._batches

    def tick(self) -> None:
        """Go on with what is to be settled; wait for no forked process. Raises what the database raises."""
        for pid, batch in self._batches.items():
            if batch.is_too_late():
                kill(pid)
        self._forget_written()
        writing = any(batch.left() for batch in self._batches.values())
        if writing or not self.ended or time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + RETRY_SECONDS
        to_fork = [process for process in list(self.ended) if not self._settle_here(process)]
        if to_fork and len(self._batches) < AT_ONCE:
            written = mmap.mmap(-1, len(to_fork))
            pid = self._fork(partial(main, self.link.alias, to_fork, written), NAME)
            self._batches[pid] = Batch(to_fork, written)

    def reaped(self, pid: int, exit_code: int) -> bool:
        """Take note that a process has ended; return whether it was one of these."""
        batch = self._batches.pop(pid, None)
        if batch is None:
            return False
        left = batch.left()
        self.ended = [process for process in self.ended if process not in batch.processes or process in left]
        if exit_code not in (0, SOME_LEFT) or (left and exit_code == 0):
            logger.error("settling a worker process's jobs was cut short: signal receivers may not have been called")
            self._without_application += left
            self._retry_at = 0.0
        return True

    def kill_rest(self) -> None:
        """End what still calls receivers: the worker ends now."""
        for pid in self._batches:
            kill(pid)

    def _forget_written(self) -> None:
        for batch in self._batches.values():
            left = batch.left()
            self.ended = [process for process in self.ended if process not in batch.processes or process in left]

    def _settle_here(self, process: Process) -> bool:
        """Settle what needs no code of the application; return False if a process is to be forked for it."""
        if process in self._without_application:
            if settle(self.link, process, by_default=True).is_whole:
                self.ended.remove(process)
            return True
        if process.worker_id:
            with self.link.use() as connection:
                if lifecycle.open_executions(connection, process.worker_id):
                    return False
                lifecycle.unregister_worker(connection, process.worker_id)
        self.ended.remove(process)
        return True


def main(alias: str, processes: list[Process], written: mmap.mmap) -> NoReturn:
    """Settle for these worker processes; then call the receivers; called in a process just forked."""
    exit_code = 1
    try:
        forget_inherited_processes()
        background_log.start()
        link = Link(alias, "settlement")
        callbacks: list[Callback] = []
        no_connection = False
        for number, process in enumerate(processes):
            try:
                settled = settle(link, process, by_default=False)
            except (psycopg.Error, OSError) as error:
                trouble.report("settlement", error)
                no_connection = not link.connected_at
                break
            callbacks += settled.callbacks
            written[number] = settled.is_whole
        for callback in callbacks:
            _call(callback)
        link.close()
        exit_code = 0 if all(written[:]) else NO_CONNECTION if no_connection else SOME_LEFT
    finally:
        run_exit_functions(None, alias)
        os._exit(exit_code)


def _call(callback: Callback) -> None:
    try:
        callback()
    except BaseException:  # a receiver may raise SystemExit, which must not keep it from the others
        logger.exception("a receiver failed")


class Settled(NamedTuple):
    """What came of one worker process."""

    is_whole: bool
    """Whether all could be written: another session may hold a row locked."""
    callbacks: list[Callback]
    """What is to be called for it, which may run code of the application."""


def settle(link: Link, process: Process, *, by_default: bool) -> Settled:
    """Write what became of all that a worker process held. `by_default` calls no function of the application."""
    started = _guilty(process)
    error = OVERDUE if process.overdue else DIED
    with link.use() as connection:
        held = lifecycle.open_executions(connection, process.worker_id)
        crashed = {one.execution_id: one for one in held if one.execution_id in started and one.task_name}
        ended = process.board.unwritten() - set(crashed)
        counted = [one for one in held if one.execution_id in ended and one.task_name]
        others = {one.execution_id: one for one in held if one.execution_id not in crashed and one not in counted}
        releases = [Released(one.key) for one in others.values()]
        failures = [_crash(one, error, by_default=by_default) for one in crashed.values()]
        failures += [_unwritten(one) for one in counted]
        released, unreleased = lifecycle.divided(connection, releases, partial(lifecycle.release, connection))
        charged, uncharged = lifecycle.divided(connection, failures, partial(lifecycle.fail, connection))
        # What the database refuses stays open, and its lease runs out.
        refused = [(one.row.key, one.error) for one in unreleased] + [(one.row.key, one.error) for one in uncharged]
        for execution, why in refused:
            refusals.note(execution.execution_id, why)
        if held:
            wake_workers(connection)
        lifecycle.unregister_worker(connection, process.worker_id)
    callbacks: list[Callback] = [
        partial(publish_cancelled, others[key], moved, link.alias) for key, moved in released.items()
    ]
    for key, moved in [(key, moved) for key, moved in charged.items() if key in crashed]:
        if by_default:
            log_crash(crashed[key], moved, error)
        callbacks.append(partial(publish_crash, crashed[key], moved, link.alias, error=error, rescued=False))
    is_whole = not any(moved.fate is Fate.LOCKED for moved in (*released.values(), *charged.values()))
    return Settled(is_whole, callbacks)


def _guilty(process: Process) -> set[int]:
    """Return the executions to charge with a child's end: those it was killed for, or all that had started in it."""
    if process.overdue:
        return set(process.overdue)
    return set() if process.expected_to_end else set(process.board.suspects())


def _crash(held: Held, error: str, *, by_default: bool) -> Failed:
    started = held._replace(started=True)
    try:
        delay_seconds = policy.delay_after_crash(started, by_default=by_default)
    except BaseException:
        logger.exception("the backoff of %s failed; the default is used", held.task_name)
        delay_seconds = policy.delay_after_crash(started, by_default=True)
    return Failed(held.key, Outcome.CRASHED, delay_seconds, None, 0.0, error=error)


def _unwritten(held: Held) -> Failed:
    """Return the end of an execution whose own end could not be written: it counts, so that repeats are bounded."""
    delay_seconds = policy.delay_after_crash(held._replace(started=False), by_default=True)
    return Failed(held.key, Outcome.FAILED, delay_seconds, None, 0.0, error=UNWRITTEN)
