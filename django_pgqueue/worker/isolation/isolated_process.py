"""Run isolated jobs one after another in a process of their own, and control such a process from the worker process.

`main()` runs in the isolated process, which the fork server starts. `IsolatedProcess` is the worker process's handle on
it; the thread of one slot uses it, and other threads may call `kill()` and `ask_to_cancel()`. A crash ends only the job
that runs in the isolated process. Jobs and reports go through a socket as JSON (see `wire`).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from django_pgqueue import signals
from django_pgqueue.exceptions import Dead
from django_pgqueue.ground.job_log import RecordedLine
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.ground.posix import signals_named
from django_pgqueue.ground.progress import Progress
from django_pgqueue.ground.waker import is_readable
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.completion.progress_writer import ProgressSender
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.lost_writes import report_of_lost_writes
from django_pgqueue.worker.execution.process_events import ISOLATED, START_SECONDS, call_start_receivers, stop_receivers
from django_pgqueue.worker.execution.report import ProgressSink, Report
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.background_log import background_log, flush_output, keep_output_open
from django_pgqueue.worker.runtime.exit_functions import run_exit_functions
from django_pgqueue.worker.runtime.process_info import resident_mib
from django_pgqueue.worker.runtime.state_snapshot import global_state

from . import wire

logger = logging.getLogger("django_pgqueue.worker")

INTEGER: Final = struct.Struct("=i")
[STACK_SIGNAL] = signals_named("SIGUSR2") or (signal.SIGTERM,)
STACK_SECONDS: Final = 0.5
"""How long a process may take to write its stack before it is killed."""
ANSWER_SECONDS: Final = 30.0
"""How long the rest of an answer may take to arrive after its first bytes."""
ENDED_ANSWER_SECONDS: Final = 0.2
"""How long to wait for an answer from a process that has ended."""
STATUS_SECONDS: Final = 2.0
"""How long the fork server may take to send the wait status of a process."""
HANDLED: Final = signals_named("SIGALRM", "SIGCHLD", "SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
"""Signals whose handlers are compared before and after a job. To compare all 64 would cost 0.2 ms a job."""
STARTED: Final = {"started": True}
"""The first message of a process that calls receivers at its start."""
STARTED_SECONDS: Final = START_SECONDS + 5.0
"""How long to wait for this message. The process itself limits the time of the receivers."""


@dataclass(eq=False)
class IsolatedProcessDied(Exception):
    """The process ended without sending a report. `status` is None if the fork server did not send it."""

    status: int | None


@dataclass(eq=False)
class IsolatedProcessKilled(Exception):
    """The process was killed at the job's timeout. `stack` is its stack at that time."""

    stack: str


class IsolatedProcess:
    """The worker process's handle on one isolated process."""

    def __init__(self, pid: int, jobs: socket.socket, status: int, stack: int) -> None:
        self.pid = pid
        self._jobs = jobs
        self._status = status
        self._stack = stack
        self._stack_lock = threading.Lock()
        self.is_worn = False
        """Whether a job has changed global state there that the next job must not find."""
        self.resident_mib = 0.0
        """Its resident memory after its last job."""
        self._is_busy = False
        self._is_sent = False
        """Whether a job was sent completely and has not ended. Only then may a cancellation request be sent."""

    def run(
        self, claimed: Claimed, timeout_seconds: float | None, notes: ProgressSink, is_asked: Callable[[], bool]
    ) -> Report:
        """Run one job and return its report. Pass the job's progress and log lines to `notes`.

        `is_asked` returns whether the cancellation of the job was requested. It is called once, after the job was sent.
        Raises `IsolatedProcessDied` if the process ended, `IsolatedProcessKilled` if it was killed at the timeout.
        """
        stop_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._is_busy = True
        received: dict[str, Any] = {}
        add_line: Callable[[RecordedLine], None] | None = None
        message = wire.as_json(claimed) | {"server_losses": django_connections.uses.losses}
        is_sent = self._is_sent = self._send(wire.packed(message), stop_at)
        if is_asked():
            self.ask_to_cancel()
        while "ending" not in received:
            if not (is_sent and self._wait(select.POLLIN, stop_at)):
                stack = self.stack()
                self.kill()
                raise IsolatedProcessKilled(stack)
            received = self._receive() or {}
            if received.pop("execution_id", None) != claimed.execution_id:
                raise IsolatedProcessDied(self._wait_status())
            if progress := received.pop("progress"):
                notes.note(claimed.key, Progress(*progress))
            for line in received.pop("lines", ()):
                add_line = add_line or notes.open_log(claimed.key)
                add_line(RecordedLine(*line))
        self._is_busy = self._is_sent = False
        self.is_worn = received.pop("is_worn")
        self.resident_mib = received.pop("resident_mib")
        return wire.as_report(claimed, received)

    def has_started(self) -> bool:
        """Wait until the process has called the receivers of `worker_process_started`; return whether it has.

        The timeout of a job therefore begins after them.
        """
        return self._wait(select.POLLIN, time.monotonic() + STARTED_SECONDS) and self._receive() == STARTED

    def ask_to_cancel(self) -> None:
        """Send a cancellation request to the running job, which reads it when it asks its context. From any thread."""
        if self._is_sent:
            with suppress(OSError):
                self._jobs.send(wire.packed({"cancel": True}), socket.MSG_DONTWAIT)

    def _send(self, data: bytes, stop_at: float | None) -> bool:
        """Send a job. Return False at the timeout, and True also if the process has ended: the next wait finds out."""
        unsent = memoryview(data)
        with suppress(OSError):
            # Without `has_ended()` this could wait for ever: a program that the process has forked may hold the socket
            # open and never read from it.
            while unsent and not self.has_ended():
                if not self._wait(select.POLLOUT, stop_at):
                    return False
                with suppress(BlockingIOError):
                    unsent = unsent[self._jobs.send(unsent, socket.MSG_DONTWAIT) :]
        return True

    def _receive(self) -> dict[str, Any] | None:
        """Return the answer, or None if the process ended without one."""
        # A program that the process has forked may keep the socket open, so waiting for its end is not enough.
        self._jobs.settimeout(ENDED_ANSWER_SECONDS if self.has_ended() else ANSWER_SECONDS)
        try:
            return wire.receive(self._jobs)
        except (OSError, ValueError):  # no answer, or not one in our format
            return None
        finally:
            self._jobs.settimeout(None)

    def _wait(self, event: int, stop_at: float | None) -> bool:
        """Wait until the socket is ready or the process has ended. Return whether that happened before `stop_at`."""
        poll = select.poll()
        poll.register(self._jobs, event)
        poll.register(self._status, select.POLLIN)
        left_ms = None if stop_at is None else max(0.0, stop_at - time.monotonic()) * 1000
        return bool(poll.poll(left_ms))

    def stack(self) -> str:
        """Return the stack of the process, if it can write it. A handler in C writes it, also during a busy loop."""
        text = b""
        with self._stack_lock:  # of two threads that read from the pipe, each would get a part
            if not self.has_ended():
                with suppress(ProcessLookupError):
                    os.kill(self.pid, STACK_SIGNAL)
            deadline = time.monotonic() + STACK_SECONDS
            while is_readable(self._stack, 0.05 if text else max(0.0, deadline - time.monotonic())):
                data = os.read(self._stack, 65536)
                text += data
                if not data or time.monotonic() > deadline:
                    break
        return text.decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill the process and the programs that it has started. From any thread."""
        if self.has_ended():
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # just forked: it does not lead a group yet
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Return whether the fork server has reported its end. From then on another process may have its pid."""
        return is_readable(self._status)

    def _wait_status(self) -> int | None:
        if not is_readable(self._status, STATUS_SECONDS):
            return None
        data = os.read(self._status, INTEGER.size)
        return INTEGER.unpack(data)[0] if len(data) == INTEGER.size else None

    def close(self) -> None:
        """Close the connection to the process. An idle process then ends by itself; kill it if it runs a job.

        The caller must call `forget()` when the process has ended.
        """
        if self._is_busy:
            self.kill()
        with suppress(OSError):
            # `close()` is not enough: a program that a task has forked may hold a copy of the socket.
            self._jobs.shutdown(socket.SHUT_RDWR)
        self._jobs.close()
        os.close(self._stack)

    def forget(self) -> None:
        """Close the last descriptor, the one that reports the end of the process."""
        os.close(self._status)


def main(jobs: socket.socket, stack: int, alias: str) -> NoReturn:
    """Run the isolated process: run the jobs that arrive until the socket is closed.

    If `worker_process_started` has receivers, call them first, and report that they have returned.
    """
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=False, chain=False)
    os.setpgid(0, 0)  # so that the programs that its jobs start can be killed with it
    _prefer_for_oom_kill()
    background_log.install()
    django_connections.watch()
    keep_output_open()
    if signals.worker_process_started.has_listeners():
        call_start_receivers(ISOLATED, alias)
        jobs.sendall(wire.packed(STARTED))
    context, before = django_connections.clean_context(), _shared_state()
    while (received := wire.receive(jobs)) is not None:
        if "cancel" in received:  # for a job that has ended without reading the request
            continue
        notes = ProgressSender(lambda message: jobs.sendall(wire.packed(message)))
        django_connections.distrust_since(received.pop("server_losses"))
        claimed = wire.as_claimed(received)
        report = context.copy().run(_run, claimed, alias, notes, lambda: is_readable(jobs.fileno()))
        answer = wire.from_report(report) | {"is_worn": _shared_state() != before, "resident_mib": resident_mib()}
        flush_output()
        jobs.sendall(wire.packed(answer | notes.last_message(report.claimed.execution_id)))
    run_exit_functions(stop_receivers(ISOLATED, alias))
    os._exit(0)


def _run(claimed: Claimed, alias: str, notes: ProgressSink, asked_to_cancel: Callable[[], bool]) -> Report:
    """Run a job. Any data on the socket meanwhile, or the end of the socket, is a request to cancel the job."""
    attempt = attempt_of(claimed, alias, notes, asked_to_cancel)
    try:
        django_connections.before_job()
        report = attempt.run()
    except BaseException as error:  # noqa: BLE001 -- a connection that cannot even be closed
        report = attempt.ended_by(error)
    try:
        django_connections.after_job()
    except Dead as error:
        return report_of_lost_writes(attempt, report, error)
    except BaseException as error:  # noqa: BLE001 -- as above
        error_text.log_exception(
            f"cleaning up after job {claimed.job_id} failed", error, extra=job_event("job_cleanup_failed", claimed)
        )
    return report


def _prefer_for_oom_kill() -> None:
    """Make the kernel kill this process first when memory runs out, not the worker, which runs many jobs."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("500")


def _shared_state() -> tuple[Any, ...]:
    """Return the global state that a job may change for the next one, to be compared before and after."""
    alarm_is_set = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    handlers = [signal.getsignal(number) for number in HANDLED]
    return threading.active_count() - background_log.is_running, alarm_is_set, handlers, global_state()
