"""The process that makes processes: for isolated jobs, and forked from a worker process before that has any threads.

A process with threads cannot fork safely, and starting Python and Django anew takes a second; the nursery has all the
tasks loaded, no thread and no connection, and forks in milliseconds. For each process that it makes it is sent three
file descriptors: the cell's end of a socket pair, that jobs go through; a pipe, to which the nursery writes the cell's
pid and, when it ends, its wait status; and a pipe for the cell's stack (see `cell`).

It also kills its worker process if that goes on after the end of its leases (see `dead_mans_switch`).

It ends with its worker process, and so do the cells with it: on Linux by the kernel's doing, whatever state they are
in; elsewhere the nursery sees the socket's end, and kills them.
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
from .board import Board
from .dead_mans_switch import is_due, kill_all, seconds_until_look

WORD: Final = struct.Struct("=i")
NO_CELL: Final = -1
"""In place of a pid: the fork failed."""
ANSWER_SECONDS: Final = 10.0
"""How long a fork may take: by then the nursery is stopped, or the machine as good as that."""
PR_SET_PDEATHSIG: Final = 1


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
                _die_with(parent)
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
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([orders.fileno(), reader], [], [], seconds_until_look(board))
        if is_due(board):
            kill_all(board, worker, list(statuses))
            break
        if reader in ready:
            os.read(reader, 4096)
            _tell_of_deaths(statuses)
        if orders.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(orders, 1, 3)
            if not message:
                break
            _fork(orders, alias, descriptors, statuses, [reader, writer])
    for pid in statuses:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


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
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    orders.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _tell_of_deaths(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        descriptor = statuses.pop(pid)
        _write(descriptor, status)
        os.close(descriptor)


def _write(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the worker process has lost interest in this cell
        os.write(descriptor, WORD.pack(number))


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with the thread that forked it; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(1)
