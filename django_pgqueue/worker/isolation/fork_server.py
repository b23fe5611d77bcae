"""Fork isolated processes from a process without threads: the fork server.

A worker process starts its fork server before its own threads. A process with threads cannot fork safely, and starting
Python and Django again takes a second. The fork server has all tasks loaded but no threads and no connections, and
forks in milliseconds. With each request it receives three file descriptors: the isolated process's end of a socket pair
for jobs; a pipe, to which the fork server writes the pid and, when the process ends, its wait status; and a pipe for
the stack of the isolated process (see `isolated_process`).

The fork server also kills its worker process if that continues after the end of its leases (`must_kill_worker()`).

When the worker process ends, the fork server kills the isolated processes together with the programs that their jobs
have started, and exits. Each isolated process leads a process group for this purpose. On Linux the kernel signals the
worker's death to the fork server, because a copy of the worker that a task has forked may keep the socket open. On
other systems the fork server detects the end of the socket. If the fork server itself dies, the kernel kills the
isolated processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import struct
import threading
from typing import Final, NoReturn

from django_pgqueue import signals
from django_pgqueue.ground.posix import signals_named
from django_pgqueue.ground.waker import Waker, is_readable
from django_pgqueue.worker.isolation import isolated_process
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.process_info import request_death_signal
from django_pgqueue.worker.runtime.shared_memory import ExitReason, ProcessState

MARGIN_SECONDS: Final = 0.3
"""How long after the end of the leases the worker process may take to exit by itself."""
CHECK_SECONDS: Final = 1.0
"""The longest sleep between two checks: a suspended machine may have slept through the end of the leases."""
SHORTEST_CHECK_SECONDS: Final = 0.05
INTEGER: Final = struct.Struct("=i")
FORK_FAILED: Final = -1
"""Sent instead of a pid if the fork failed."""
ANSWER_SECONDS: Final = 10.0
"""How long a fork may take. After this time the fork server is stopped, or the machine is as good as stopped."""
[WORKER_ENDED] = signals_named("SIGUSR1") or (signal.SIGTERM,)
"""The kernel sends this to the fork server when the worker ends. Any process may send it, so the fork server then
checks whether its parent has changed."""


def seconds_until_lease_check(process_state: ProcessState) -> float:
    """Return how long to sleep before the next check.

    A worker process exits by itself at the end of its leases (`LeaseGuard`). It cannot do so if C code keeps the
    interpreter lock, or if the process is stopped. A timer inside the process would have the same weakness: only its
    own Python code could renew it. The fork server of the worker process runs no code of the application. It therefore
    checks the shared memory that the supervisor's heartbeats renew.
    """
    if not process_state.running():
        return CHECK_SECONDS / 2
    return min(CHECK_SECONDS, max(SHORTEST_CHECK_SECONDS, process_state.lease_left_seconds + MARGIN_SECONDS))


def must_kill_worker(process_state: ProcessState) -> bool:
    """Return whether the worker must be killed: its leases ended longer than the margin ago while jobs still run."""
    return process_state.lease_left_seconds < -MARGIN_SECONDS and bool(process_state.running())


class ForkServer:
    """The worker process's side of the fork server."""

    def __init__(self, alias: str, process_state: ProcessState) -> None:
        self.is_gone = False
        """Whether the fork server has ended or does not answer, so that it cannot start isolated processes."""
        self.has_start_receivers = False
        """Whether each isolated process first calls receivers, and reports when they have returned."""
        self._lock = threading.Lock()
        self._alias = alias
        self._process_state = process_state
        self._socket: socket.socket

    def start(self) -> None:
        """Fork the fork server. Call this before the process starts any thread."""
        self._socket, server_end = socket.socketpair()
        gc.freeze()  # objects loaded now stay shared with the forked processes, because no collection touches them
        # Read before the fork: the isolated processes then find the same receivers.
        self.has_start_receivers = signals.worker_process_started.has_listeners()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._socket.close()
                counts.use(None)  # the worker process alone writes its counts
                _main(server_end, self._alias, self._process_state, parent)
            finally:
                os._exit(1)
        server_end.close()

    def start_process(self) -> isolated_process.IsolatedProcess:
        """Start an isolated process and return it. Raise `OSError` if that fails."""
        with contextlib.ExitStack() as own_ends, contextlib.ExitStack() as sent_ends:
            jobs, sent_jobs = socket.socketpair()
            own_ends.enter_context(jobs)
            sent_ends.enter_context(sent_jobs)
            status, sent_status = _pipe(own_ends, sent_ends)
            stack, sent_stack = _pipe(own_ends, sent_ends)
            self._request_fork([sent_jobs.fileno(), sent_status, sent_stack])
            sent_ends.close()  # otherwise this process would not notice the end of the fork server
            pid = self._receive_pid(status)
            own_ends.pop_all()
        return isolated_process.IsolatedProcess(pid, jobs, status, stack)

    def _request_fork(self, descriptors: list[int]) -> None:
        try:
            with self._lock:
                socket.send_fds(self._socket, [b"F"], descriptors)
        except OSError:
            self.is_gone = True
            raise

    def _receive_pid(self, status: int) -> int:
        """Return the pid of the new process."""
        if not is_readable(status, ANSWER_SECONDS):
            self.is_gone = True
            raise OSError("the fork server does not answer")
        data = os.read(status, INTEGER.size)
        pid: int = INTEGER.unpack(data)[0] if len(data) == INTEGER.size else FORK_FAILED
        if pid == FORK_FAILED:
            raise OSError("the fork server could not start an isolated process")
        return pid


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Open a pipe. Each exit stack closes one end."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _main(requests: socket.socket, alias: str, process_state: ProcessState, worker: int) -> NoReturn:
    """Run the fork server: fork on request and report ended processes, until the worker process ends or is killed."""
    django_connections.close_for_good()
    waker = Waker()
    for number in (signal.SIGCHLD, WORKER_ENDED):
        signal.signal(number, lambda *_: None)
    waker.wake_on_signals()
    request_death_signal(WORKER_ENDED)
    statuses: dict[int, int] = {}
    while os.getppid() == worker:
        ready = waker.wait(seconds_until_lease_check(process_state), requests.fileno())
        if must_kill_worker(process_state):
            process_state.exit_reason = ExitReason.LEASE_LOST
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            break
        if waker.fileno() in ready:
            _report_ended(statuses)
        if requests.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 3)
            if not message:
                break
            _fork(requests, alias, descriptors, statuses, waker)
    for pid in statuses:  # these are not reaped yet, so no other process can have their pids
        _kill_group(pid)
    os._exit(0)


def _kill_group(pid: int) -> None:
    """Kill an isolated process and the programs that its job has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # in case it does not lead a group yet


def _fork(requests: socket.socket, alias: str, descriptors: list[int], statuses: dict[int, int], waker: Waker) -> None:
    jobs, status, stack = descriptors
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:  # the worker process logs it, because a log handler may block
        pid = FORK_FAILED
    if pid == 0:
        try:
            _close_inherited(requests, waker, [*statuses.values(), status])
            request_death_signal(signal.SIGKILL)
            if os.getppid() != parent:  # the fork server ended before the request
                os._exit(1)
            isolated_process.main(socket.socket(fileno=jobs), stack, alias)
        finally:
            os._exit(1)
    if pid != FORK_FAILED:
        with contextlib.suppress(OSError):  # the isolated process does this itself, and may have ended already
            os.setpgid(pid, pid)
    os.close(jobs)
    os.close(stack)
    _write(status, pid)
    if pid == FORK_FAILED:
        os.close(status)
    else:
        statuses[pid] = status


def _close_inherited(requests: socket.socket, waker: Waker, descriptors: list[int]) -> None:
    """In a newly forked isolated process: close and reset what belongs to the fork server."""
    signal.set_wakeup_fd(-1)  # if asyncio is imported, it has done this already, from Python 3.12 on
    for number in (signal.SIGCHLD, WORKER_ENDED):
        signal.signal(number, signal.SIG_DFL)
    requests.close()
    waker.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _report_ended(statuses: dict[int, int]) -> None:
    """Send the wait statuses of ended processes to the worker process."""
    while statuses:
        pid, status = _reap_next()
        if pid == 0:
            return
        descriptor = statuses.pop(pid)
        _write(descriptor, status)
        os.close(descriptor)


def _reap_next() -> tuple[int, int]:
    """Return the pid and wait status of an isolated process that has ended, or pid 0.

    If its exit status is not 0, kill the programs that its job has started before it is reaped. Until then no other
    process can have its pid.
    """
    if not hasattr(os, "waitid"):  # macOS with a Python before 3.13
        return os.waitpid(-1, os.WNOHANG)
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return 0, 0
    if ended.si_status != 0:
        _kill_group(ended.si_pid)
    return os.waitpid(ended.si_pid, 0)


def _write(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the worker process has closed this isolated process already
        os.write(descriptor, INTEGER.pack(number))
