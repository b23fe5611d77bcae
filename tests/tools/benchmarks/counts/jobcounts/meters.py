"""Count calls of Python functions, bytecode instructions and lock acquisitions, in all threads of this process."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

HERE: Final = str(Path(__file__).parent)
PACKAGE: Final = "django_pgqueue"


class Tally:
    """How often each code object was seen, by its id: the hash of a code object takes longer than a call."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.codes: dict[int, CodeType] = {}

    def add(self, code: CodeType) -> None:
        """Count one more of this code."""
        key = id(code)
        if key in self.numbers:
            self.numbers[key] += 1
        else:
            self.codes[key], self.numbers[key] = code, 1

    def clear(self) -> None:
        """Begin anew."""
        self.numbers.clear()
        self.codes.clear()


class CallMeter:
    """Counts the frames of Python functions that are entered, also those of generators that are resumed.

    Install it before the threads start whose calls it shall count.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._counts_now = False

    def install(self) -> None:
        """Watch this thread, and all threads that start later."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count what happens inside."""
        self._counts_now = True
        yield
        self._counts_now = False

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and self._counts_now:
            self.tally.add(frame.f_code)


class InstructionMeter:
    """Counts the bytecode instructions that are executed. It needs `sys.monitoring`, so Python 3.12 or later."""

    TOOL: Final = 4

    def __init__(self, *, libraries: bool = True) -> None:
        """Count the instructions of all code. Without `libraries`, only those of the package: that is quicker."""
        self.tally = Tally()
        self._libraries = libraries

    def install(self) -> None:
        """Reserve the place of a tool."""
        monitoring = sys.monitoring  # type: ignore[attr-defined]  # since 3.12
        monitoring.use_tool_id(self.TOOL, "jobcounts")
        event, disable, numbers = monitoring.events.INSTRUCTION, monitoring.DISABLE, self.tally.numbers
        add, is_counted = self.tally.add, self._is_counted

        def note(code: CodeType, offset: int) -> object:
            key = id(code)
            if key in numbers:
                numbers[key] += 1
            elif is_counted(code.co_filename):
                add(code)
            else:
                return disable
            return None

        monitoring.register_callback(self.TOOL, event, note)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count what happens inside."""
        monitoring = sys.monitoring  # type: ignore[attr-defined]  # since 3.12
        monitoring.set_events(self.TOOL, monitoring.events.INSTRUCTION)
        yield
        monitoring.set_events(self.TOOL, 0)

    def _is_counted(self, filename: str) -> bool:
        return not filename.startswith(HERE) and (self._libraries or filename.startswith(_package_directory()))


class LockMeter:
    """Counts acquisitions of locks that Python code creates. Install it before anything else is imported."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._counts_now = False

    def install(self) -> None:
        """Let all locks created from now on count. An `RLock` is then the one that is written in Python."""
        allocate, meter = threading.Lock, self

        class CountedLock:
            """A lock that counts its acquisitions, by the code that acquires it."""

            def __init__(self) -> None:
                self._lock = allocate()
                self.release = self._lock.release
                self.locked = self._lock.locked
                self._at_fork_reinit = self._lock._at_fork_reinit  # type: ignore[attr-defined]  # as for a fork

            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                meter.note()
                return self._lock.acquire(blocking, timeout)

            def __enter__(self) -> bool:
                meter.note()
                return self._lock.acquire()

            def __exit__(self, *error: object) -> None:
                self._lock.release()

        module: Any = threading
        module.Lock = module._allocate_lock = CountedLock
        module._CRLock = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count what happens inside."""
        self._counts_now = True
        yield
        self._counts_now = False

    def note(self) -> None:
        """Count an acquisition by the caller of the lock."""
        if self._counts_now:
            self.tally.add(sys._getframe(2).f_code)


Meter = CallMeter | InstructionMeter | LockMeter
BEFORE_DJANGO: Final = frozenset({"locks"})
"""Meters that must be installed before Django is imported. The others would slow down its start."""
METERS: Final[dict[str, Callable[[], Meter]]] = {
    "calls": CallMeter,
    "instructions": InstructionMeter,
    "own_instructions": lambda: InstructionMeter(libraries=False),
    "locks": LockMeter,
}


@contextmanager
def measuring(meter: Meter | None) -> Iterator[None]:
    """Count what happens inside. Meanwhile no garbage is collected, because that calls finalizers."""
    gc.collect()
    gc.disable()
    try:
        if meter is None:
            yield
        else:
            meter.tally.clear()
            with meter.on():
                yield
    finally:
        gc.enable()


def by_function(tally: Tally) -> dict[str, int]:
    """Return the counts by function, such as `django_pgqueue/task.py Task.enqueue` or `library json/decoder.py decode`.

    Functions of this program do not count.
    """
    found: Counter[str] = Counter()
    for key, code in tally.codes.items():
        if not code.co_filename.startswith(HERE):
            found[f"{_place(code.co_filename)} {code.co_qualname}"] += tally.numbers[key]
    return dict(found)


def _place(filename: str) -> str:
    directory = _package_directory()
    if filename.startswith(directory):
        return f"{PACKAGE}{filename.removeprefix(directory)}"
    return "library " + "/".join(Path(filename).parts[-2:])


@cache
def _package_directory() -> str:
    """Return the directory of the counted package. Its name may occur in the paths of libraries too."""
    [directory] = importlib.util.find_spec(PACKAGE).submodule_search_locations  # type: ignore[union-attr, misc]
    return directory
