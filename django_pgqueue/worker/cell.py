"""A process that runs isolated jobs, one at a time: its life, and the worker process's handle on it.

A crash takes the job that runs here with it and nothing else. Jobs and reports go through a socket as JSON, each after
its length; pickle would run code that a task put there.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from django_pgqueue.lifecycle import Claimed
from django_pgqueue.progress import Progress

from . import describe, hygiene, letters, memory
from .background_log import background_log, keep_output_open
from .drift import surroundings
from .executor import Attempt
from .exit_functions import run_exit_functions
from .notes import NoteSink, Teller
from .report import Report

logger = logging.getLogger("django_pgqueue.worker")

WORD: Final = struct.Struct("=i")
STACK_SIGNAL: Final = signal.SIGUSR2
STACK_SECONDS: Final = 0.5
"""How long a process that is to be killed gets to write its stack."""
ANSWER_SECONDS: Final = 30.0
"""How long an answer that has begun may take to its end."""
DEAD_SECONDS: Final = 0.2
"""How long an answer is looked for of a process that has ended."""
STATUS_SECONDS: Final = 2.0
"""How long the nursery gets to tell how a process ended."""
HANDLED: Final = (
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals whose handlers jobs may change: all 64 would cost 0.2 ms a job."""
KEPT: Final = (
    "started_at",
    "finished_at",
    "result",
    "delay_seconds",
    "may_be_committed",
    "exception_class",
    "error",
    "traceback",
)
"""What of a report goes through the socket as it is."""


class CellDied(Exception):
    """The process ended without a report."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status  # its wait status, None if nobody could tell


class CellKilled(Exception):
    """The process was killed because its time was over; `stack` is what it was doing."""

    def __init__(self, stack: str) -> None:
        super().__init__(stack)
        self.stack = stack


class Cell:
    """The worker process's handle on one."""

    def __init__(self, pid: int, jobs: socket.socket, status: int, stack: int) -> None:
        self.pid = pid
        self._jobs = jobs
        self._status = status
        self._stack = stack
        self.is_worn = False
        """Whether a job left something there that the next should not find."""
        self.resident_mib = 0.0
        """Its memory after its last job."""
        self._is_busy = False
        self._is_sent = False
        """Whether a job has gone through the socket, and has not ended: else nothing may be told of it."""

    def run(
        self, claimed: Claimed, timeout_seconds: float | None, notes: NoteSink, is_asked: Callable[[], bool]
    ) -> Report:
        """Have one job run; raises `CellDied` if the process ended, `CellKilled` if its time was over.

        What the job tells of its progress meanwhile goes to `notes`. `is_asked`: whether it is to be cancelled, asked
        once when it has been sent.
        """
        stop_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._is_busy = True
        told: dict[str, Any] = {}
        message = letters.as_json(claimed) | {"server_losses": hygiene.generation()}
        is_sent = self._is_sent = self._send(letters.packed(message), stop_at)
        if is_asked():
            self.ask_to_cancel()
        while "ending" not in told:
            if not (is_sent and self._wait(select.POLLIN, stop_at)):
                stack = self.stack()
                self.kill()
                raise CellKilled(stack)
            told = self._receive() or {}
            if told.pop("execution_id", None) != claimed.execution_id:
                raise CellDied(self._wait_status())
            if progress := told.pop("progress"):
                notes.note(claimed.key, Progress(*progress))
        self._is_busy = self._is_sent = False
        self.is_worn = told.pop("is_worn")
        self.resident_mib = told.pop("resident_mib")
        return letters.as_report(claimed, told)

    def ask_to_cancel(self) -> None:
        """Tell the job that runs there that somebody wants it cancelled; from any thread. It reads this if it asks."""
        if self._is_sent:
            with suppress(OSError):
                self._jobs.send(letters.packed({"cancel": True}), socket.MSG_DONTWAIT)

    def _send(self, data: bytes, stop_at: float | None) -> bool:
        """Send a job; say whether it went in time. That nobody is there to take it is found out by waiting."""
        left = memoryview(data)
        with suppress(OSError):
            while left and not self.has_ended():  # else what it has forked may hold the socket open, and never read
                if not self._wait(select.POLLOUT, stop_at):
                    return False
                with suppress(BlockingIOError):
                    left = left[self._jobs.send(left, socket.MSG_DONTWAIT) :]
        return True

    def _receive(self) -> dict[str, Any] | None:
        """Return the answer, None if the process ended without; what it forked may hold the socket open still."""
        self._jobs.settimeout(DEAD_SECONDS if self.has_ended() else ANSWER_SECONDS)
        try:
            return letters.receive(self._jobs)
        except (OSError, ValueError):  # no answer, or none of ours
            return None
        finally:
            self._jobs.settimeout(None)

    def _wait(self, event: int, stop_at: float | None) -> bool:
        """Wait until the socket is ready, or the process has ended; say whether that was in time."""
        poll = select.poll()
        poll.register(self._jobs, event)
        poll.register(self._status, select.POLLIN)
        left = None if stop_at is None else max(0.0, stop_at - time.monotonic()) * 1000
        return bool(poll.poll(left))

    def stack(self) -> str:
        """Return what the process is doing, as far as it can tell; its C code is asked, so that no loop hides it."""
        if not self.has_ended():
            with suppress(ProcessLookupError):
                os.kill(self.pid, STACK_SIGNAL)
        text = b""
        poll = select.poll()
        poll.register(self._stack, select.POLLIN)
        deadline = time.monotonic() + STACK_SECONDS
        while poll.poll(50 if text else max(0.0, deadline - time.monotonic()) * 1000):
            data = os.read(self._stack, 65536)
            text += data
            if not data or time.monotonic() > deadline:
                break
        return text.decode("utf-8", "replace")

    def kill(self) -> None:
        """End the process, whatever it does, and the programs that it has started; from any thread."""
        if self.has_ended():
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # just forked, and no group yet
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether its end was told: from then on the pid may be another's."""
        return _is_readable(self._status, 0.0)

    def _wait_status(self) -> int | None:
        if not _is_readable(self._status, STATUS_SECONDS):
            return None
        word = os.read(self._status, WORD.size)
        return WORD.unpack(word)[0] if len(word) == WORD.size else None

    def close(self) -> None:
        """Let go of the process: one that waits for a job ends by itself, one that runs one is killed.

        The caller calls `forget()` when the process has ended.
        """
        if self._is_busy:
            self.kill()
        with suppress(OSError):
            self._jobs.shutdown(socket.SHUT_RDWR)  # closing is not enough: what a task has forked may hold a copy
        self._jobs.close()
        os.close(self._stack)

    def forget(self) -> None:
        """Close the last descriptor, by which its end was seen."""
        os.close(self._status)


def _is_readable(descriptor: int, timeout_seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_seconds * 1000))


def main(jobs: socket.socket, stack: int, alias: str) -> NoReturn:
    """Be a cell: run the jobs that come, until no more can come."""
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=False, chain=False)
    os.setpgid(0, 0)  # so that the programs which its jobs start can be killed with it
    _be_first_to_go()
    background_log.install()
    hygiene.watch()
    keep_output_open()
    context, before = hygiene.clean_context(), _traces()
    while (told := letters.receive(jobs)) is not None:
        if "cancel" in told:  # the job that it was for did not ask, and has ended
            continue
        notes = Teller(lambda message: jobs.sendall(letters.packed(message)))
        hygiene.distrust_since(told.pop("server_losses"))
        claimed = letters.as_claimed(told)
        report = context.copy().run(_run, claimed, alias, notes, lambda: _is_readable(jobs.fileno(), 0.0))
        answer = {key: getattr(report, key) for key in KEPT} | {"ending": report.ending.value}
        answer |= {"is_worn": _traces() != before, "resident_mib": memory.resident_mib()}
        _flush()
        jobs.sendall(letters.packed(answer | notes.message(report.claimed.execution_id)))
    run_exit_functions("isolated", alias)
    os._exit(0)


def _run(claimed: Claimed, alias: str, notes: NoteSink, asked_to_cancel: Callable[[], bool]) -> Report:
    """Run a job; whatever comes through the socket meanwhile, or its end, is a wish that the job should stop."""
    attempt = Attempt(claimed, alias, notes, asked_to_cancel)
    try:
        hygiene.before_job()
        hygiene.close_ended()
        report = attempt.run()
    except BaseException as error:  # noqa: BLE001 -- a connection that cannot even be closed
        report = attempt.ended_by(error)
    try:
        hygiene.after_job()
    except BaseException as error:  # noqa: BLE001 -- as above
        describe.log_exception(f"cleaning up after job {claimed.job_id} failed", error)
    return report


def _be_first_to_go() -> None:
    """When memory runs out the kernel is to take this process, and not the worker that answers for many jobs."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("500")


def _traces() -> tuple[Any, ...]:
    """Return what jobs may change in a process, and the next would find so: to be compared."""
    alarm_is_set = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    handlers = [signal.getsignal(number) for number in HANDLED]
    return threading.active_count() - background_log.is_running, alarm_is_set, handlers, surroundings()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # whatever the task made of it
            stream.flush()
