"""Ask the system about this process, and for services that only Linux has. On other systems those do nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NoReturn, TypeVar

from django_pgqueue.ground.posix import CAN_FORK, after_fork_in_child

if CAN_FORK:
    import resource

T = TypeVar("T")
PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15


class Forks:
    """The forks that led to this process. Calling `os.getpid()` per job took a tenth of the job's time.

    A task may fork. The child process must not report a result in place of its parent, so an attempt compares counts.
    """

    count = 0


def _count_fork() -> None:
    forks.count += 1


def end_copy() -> NoReturn:
    """End this process, because it is a copy that application code has forked: `forks.count` has changed.

    The copy would otherwise continue as a second worker: it would wait for events for ever, and write on connections
    that it shares with its parent.
    """
    os._exit(1)


def call_here(function: Callable[[], T]) -> T:
    """Call application code. If it forks and returns in the copy too, end the copy."""
    count = forks.count
    try:
        return function()
    finally:
        if forks.count != count:
            end_copy()


forks: Final = Forks()
after_fork_in_child(_count_fork)


def resident_mib() -> float:
    """Return this process's resident memory in MiB. On systems without /proc this is the peak value."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mib_of(pid: int) -> int | None:
    """Return the resident memory of another process in MiB; None if it has ended or the system does not say it."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() // 2**20
    except (OSError, IndexError):
        return None


def ended_children() -> Iterator[tuple[int, int]]:
    """Yield the id and the exit code of each child process that has ended, without waiting."""
    with suppress(ChildProcessError):  # there is no child
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def exit_code_text(exit_code: int) -> str:
    """Return the exit code of any process as text: "exit code 3" or "signal SIGKILL"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-exit_code}"


def request_death_signal(number: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when the thread that forked it ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def set_process_name(name: bytes) -> None:
    """Set the process name that `ps -o comm` and `top` show."""
    _prctl(PR_SET_NAME, name)


def _prctl(option: int, argument: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
