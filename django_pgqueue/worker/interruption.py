"""Where an exception may be thrown into a thread, and where it would leave a lock locked for ever.

How it arrives: `PyThreadState_SetAsyncExc` marks the thread, and CPython raises at the next point where that thread
checks for it: after the return of a call to C code, at the start of a Python function, or at a jump backwards. Whoever
throws holds the interpreter lock, so the other thread stands still at one of two kinds of places:

* In C code that has released the interpreter lock, such as a system call or a wait for a lock. The exception is raised
  when that call returns, in the frame that is on top now. If the C code calls Python first, it is raised at the start
  of that function, before its first statement.
* At such a check itself. It is raised right there.

So in both cases the top frame, and the instruction that it is at, decide. A function that takes a lock and protects it
only a moment later (`Condition.__enter__`, `Queue.put`, `Handler.acquire`) must not be on top. Nor may a `with`
statement be between the call of `__enter__` and its protection: up to Python 3.13 that is one instruction and safe for
locks written in C, but an `__enter__` in C may have called Python; since 3.14 it is an ordinary call, after which
exceptions are raised.

`logging` takes its locks in functions of such names, called from Python, so the others can be interrupted: a task that
logs all the time is nearly always found in `StreamHandler.emit` or `flush`, where it waits for the file.

A thread that waits (`Event.wait`, `Condition.wait`, `Thread.join`) has such a frame below and releases its lock on the
way out, so it can be interrupted. Locks that a function takes by a plain `lock.acquire()` are not known here.
"""

from __future__ import annotations

import dis
import time
from types import FrameType
from typing import Final

MODULES: Final = frozenset(
    {
        *("importlib._bootstrap", "importlib._bootstrap_external"),
        *("_frozen_importlib", "_frozen_importlib_external", "_weakrefset", "weakref", "queue"),
    }
)
PACKAGES: Final = ("concurrent.futures.",)
"""Modules whose functions keep locks that all threads of the process need."""
WAITS: Final = frozenset({"wait", "wait_for", "join", "_wait_for_tstate_lock"})
"""Functions of `threading` in which a thread waits for others, for as long as they like."""
TAKES_OR_RELEASES: Final = frozenset(
    {
        *("acquire", "release", "__enter__", "__exit__", "__aenter__", "__aexit__", "acquire_lock", "release_lock"),
        *("_acquireLock", "_releaseLock", "_acquire_restore", "_release_save", "notify", "notify_all", "createLock"),
    }
)
"""Functions of any module, by name."""
ENTERS: Final = frozenset(dis.opmap[name] for name in ("BEFORE_WITH", "BEFORE_ASYNC_WITH") if name in dis.opmap)
CALL: Final = dis.opmap.get("CALL", -1)
LOAD_SPECIAL: Final = dis.opmap.get("LOAD_SPECIAL", -1)
CACHE: Final = 0


def may_interrupt(frame: FrameType | None) -> bool:
    """Return whether an exception may be thrown into the thread whose top frame this is."""
    if frame is None:
        return True
    module, function = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
    if function in TAKES_OR_RELEASES:
        return False
    if module == "threading":
        return function in WAITS
    if module == "logging" and function == "handle":
        return False
    if module in MODULES or module.startswith(PACKAGES):
        return False
    return not _enters_with(frame)


def begin_time_slice() -> None:
    """Release the interpreter lock and take it again.

    CPython takes it from a thread that others wait for after 5 ms. Look at the other thread's frame and throw within
    that time; otherwise it may run in between, and be somewhere else when the exception arrives.
    """
    time.sleep(0)


def _enters_with(frame: FrameType) -> bool:
    """Return whether the frame is at the call of `__enter__` by a `with` statement."""
    code, at = frame.f_code.co_code, frame.f_lasti
    if not 0 <= at < len(code):
        return False
    if code[at] in ENTERS:
        return True
    if code[at] != CALL or LOAD_SPECIAL < 0:
        return False
    before = at - 2
    while before > 0 and code[before] == CACHE:
        before -= 2
    return before >= 0 and code[before] == LOAD_SPECIAL
