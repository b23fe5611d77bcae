"""Decide whether an exception may be raised in another thread, or would leave a lock locked for ever.

`ThreadSlot` asks before it raises a timeout, a cancellation or a lost lease in its job's thread.

`PyThreadState_SetAsyncExc` marks the thread, and CPython raises at the next point where that thread checks for it:
after the return of a call to C code, at the start of a Python function, or at a backward jump. The calling thread holds
the interpreter lock, so the other thread stands still at one of two kinds of places:

* In C code that has released the interpreter lock, such as a system call or a wait for a lock. The exception is raised
  when that call returns, in the frame that is on top now. If the C code calls Python first, the exception is raised at
  the start of that function, before its first statement.
* At such a check itself. The exception is raised right there.

In both cases the top frame and its current instruction decide. A function that takes a lock and protects it only a
moment later (`Condition.__enter__`, `Queue.put`, `Handler.acquire`) must not be on top. A `with` statement must not be
between the call of `__enter__` and its protection. Up to Python 3.13 that is one instruction and safe for locks written
in C, but an `__enter__` in C may have called Python. Since 3.14 it is an ordinary call, after which exceptions are
raised.

`logging` takes its locks in functions with such names, called from Python. Its other functions can be interrupted: a
task that logs all the time is nearly always in `StreamHandler.emit` or `flush`, where it waits for the file.

A waiting thread (`Event.wait`, `Condition.wait`, `Thread.join`) has such a frame below and releases its lock on the way
out, so it can be interrupted. This module does not know locks that a function takes by a plain `lock.acquire()`.
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
"""Packages, and in `MODULES` modules, whose functions hold locks that all threads of the process need."""
WAITS: Final = frozenset({"wait", "wait_for", "join", "_wait_for_tstate_lock"})
"""Functions of `threading` in which a thread waits for other threads, for any length of time."""
TAKES_OR_RELEASES: Final = frozenset(
    {
        *("acquire", "release", "__enter__", "__exit__", "__aenter__", "__aexit__", "acquire_lock", "release_lock"),
        *("_acquireLock", "_releaseLock", "_acquire_restore", "_release_save", "notify", "notify_all", "createLock"),
    }
)
"""Names of functions, in any module, that take or release a lock. They must not be interrupted."""
ENTERS: Final = frozenset(dis.opmap[name] for name in ("BEFORE_WITH", "BEFORE_ASYNC_WITH") if name in dis.opmap)
CALL: Final = dis.opmap.get("CALL", -1)
LOAD_SPECIAL: Final = dis.opmap.get("LOAD_SPECIAL", -1)
CACHE: Final = 0


def may_interrupt(frame: FrameType | None) -> bool:
    """Return whether an exception may be raised in the thread whose top frame is `frame`."""
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

    CPython takes the lock from a thread after 5 ms if other threads wait for it. Read the other thread's frame and
    raise within that time; otherwise the other thread may run in between and be elsewhere when the exception arrives.
    """
    time.sleep(0)


def _enters_with(frame: FrameType) -> bool:
    """Return whether the frame is at a `with` statement's call of `__enter__`."""
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
