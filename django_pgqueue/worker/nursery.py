"""The process that makes processes: for isolated jobs, and forked from a worker process before that has any threads.

A process with threads cannot fork safely, and starting Python and Django anew takes a second; the nursery has all the
tasks loaded, no thread and no connection, and forks in milliseconds. For each process that it makes it is sent three
file descriptors: the cell's end of a socket pair, that jobs go through; a pipe, to which the nursery writes the cell's
pid and, when it ends, its wait status; and a pipe for the cell's stack (see `cell`).

It also kills its worker process if that goes on after the end of its leases (see `dead_mans_switch`).

It outlives its worker process for a moment, to kill the cells together with the programs that their jobs have started:
each cell leads a process group. On Linux the kernel tells the nursery of the worker's death by a signal, because a
copy of the worker that a task has forked may hold the socket open; elsewhere the nursery sees the socket's end. If the
nursery itself dies, the kernel kills the cells.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
from typing import Final, NoReturn

from . import cell, hygiene
from .board import Board, Farewell
from .dead_mans_switch import is_due, seconds_until_look

WORD: Final = struct.Struct("=i")
NO_CELL: Final = -1
"""In place of a pid: the fork failed."""
ANSWER_SECONDS: Final = 10.0
"""How long a fork may take: by then the nursery is stopped, or the machine as good as that."""
PR_SET_PDEATHSIG: Final = 1
WORKER_ENDED: Final = signal.SIGUSR1
"""What the kernel sends to the nursery. Anybody may send it: the nursery looks then whether its parent has changed."""


class Nursery:
    """The worker process's side of it."""

    def __init__(self, alias: str, board: Board) -> None:
        self.is_gone = False
        """Whether the process has ended, or does not answer, so that no more cells can be made."""
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        gc.freeze()  # what is loaded now stays shared with the processes to come: no collection touches it
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._socket.close()
                _main(theirs, alias, board, parent)
            finally:
                os._exit(1)
        theirs.close()

    def new_cell(self) -> cell.Cell:
        """Make a process for isolated jobs; raises `OSError` if that fails."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            jobs, their_jobs = socket.socketpair()
            ours.enter_context(jobs)
            theirs.enter_context(their_jobs)
            status, their_status = _pipe(ours, theirs)
            stack, their_stack = _pipe(ours, theirs)
            self._order([their_jobs.fileno(), their_status, their_stack])
            theirs.close()  # so that the nursery's end is seen
            pid = self._answer(status)
            ours.pop_all()
        return cell.Cell(pid, jobs, status, stack)

    def _order(self, descriptors: list[int]) -> None:
        try:
            with self._lock:
                socket.send_fds(self._socket, [b"F"], descriptors)
        except OSError:
            self.is_gone = True
            raise

    def _answer(self, status: int) -> int:
        """Return the new process's pid."""
        if not select.select([status], [], [], ANSWER_SECONDS)[0]:
            self.is_gone = True
            raise OSError("the process that makes processes does not answer")
        word = os.read(status, WORD.size)
        pid: int = WORD.unpack(word)[0] if len(word) == WORD.size else NO_CELL
        if pid == NO_CELL:
            raise OSError("no process could be started for it")
        return pid


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Make a pipe whose ends two stacks close."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _main(orders: socket.socket, alias: str, board: Board, worker: int) -> NoReturn:
    """Be the nursery: fork at each order, tell of each death, until the worker process is gone or must not go on."""
    hygiene.close_for_good()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in (signal.SIGCHLD, WORKER_ENDED):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _signal_at_death_of_parent(WORKER_ENDED)
    statuses: dict[int, int] = {}
    while os.getppid() == worker:
        ready, _, _ = select.select([orders.fileno(), reader], [], [], seconds_until_look(board))
        if is_due(board):
            board.say_farewell(Farewell.LEASE_LOST)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            break
        if reader in ready:
            os.read(reader, 4096)
            _tell_of_deaths(statuses)
        if orders.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(orders, 1, 3)
            if not message:
                break
            _fork(orders, alias, descriptors, statuses, [reader, writer])
    for pid in statuses:  # none of them is reaped, so no other process can have its number
        _kill_group(pid)
    os._exit(0)


def _kill_group(pid: int) -> None:
    """Kill a cell, and what its job has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # in case it leads no group yet


def _fork(orders: socket.socket, alias: str, descriptors: list[int], statuses: dict[int, int], own: list[int]) -> None:
    jobs, status, stack = descriptors
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:  # the worker process logs it, because a log handler may block
        pid = NO_CELL
    if pid == 0:
        try:
            _leave_behind(orders, [*statuses.values(), status, *own])
            _die_with(parent)
            cell.main(socket.socket(fileno=jobs), stack, alias)
        finally:
            os._exit(1)
    if pid != NO_CELL:
        with contextlib.suppress(OSError):  # it has done so itself, and perhaps ended
            os.setpgid(pid, pid)
    os.close(jobs)
    os.close(stack)
    _write(status, pid)
    if pid == NO_CELL:
        os.close(status)
    else:
        statuses[pid] = status


def _leave_behind(orders: socket.socket, descriptors: list[int]) -> None:
    """In a cell just forked: let go of what is the nursery's."""
    signal.set_wakeup_fd(-1)  # from Python 3.12 on asyncio has done so already, if it is imported
    for number in (signal.SIGCHLD, WORKER_ENDED):
        signal.signal(number, signal.SIG_DFL)
    orders.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _tell_of_deaths(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = _next_death()
        if pid == 0:
            return
        descriptor = statuses.pop(pid)
        _write(descriptor, status)
        os.close(descriptor)


def _next_death() -> tuple[int, int]:
    """Return the pid and wait status of a cell that has ended, or pid 0.

    What the job of a cell that died has started is killed before the cell is reaped: its number is nobody else's yet.
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
    with contextlib.suppress(BrokenPipeError):  # the worker process has lost interest in this cell
        os.write(descriptor, WORD.pack(number))


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with the thread that forked it; only Linux can."""
    _signal_at_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def _signal_at_death_of_parent(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
