"""Read the global state of the process that a job can change and leave to the next job, to compare it before and after.

`slots.leak_detector` compares it in a worker process, `isolation` in an isolated process.
"""

from __future__ import annotations

import locale
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from django.conf import settings

ENVIRONMENT: Final = "environment variables"


class NamedValues:
    """Named values of which only the names may be logged. Values are compared by identity or equality."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedValues) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # never used as a key

    def names_that_differ(self, other: NamedValues) -> str:
        """Return the names of the values that only one of both has, or that differ."""
        names, missing = self._values.keys() | other._values.keys(), object()
        differ = (name for name in names if self._values.get(name, missing) != other._values.get(name, missing))
        return ", ".join(sorted(differ))


def global_state() -> dict[str, Any]:
    """Return the state that all threads of the process share, by name. The values are compared and not all logged."""
    return {
        "the working directory": _working_directory(),
        "the umask": _umask(),
        "the recursion limit": sys.getrecursionlimit(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the default timeout of sockets": socket.getdefaulttimeout(),
        "the standard output": (id(sys.stdout), sys.stdout is None or sys.stdout.closed),
        "the standard error": (id(sys.stderr), sys.stderr is None or sys.stderr.closed),
        "Django's settings": NamedValues(vars(vars(settings)["_wrapped"])),
        ENVIRONMENT: NamedValues(os.environ),
    }


def describe_change(before: Any, now: Any) -> str:
    """Return how one value of the global state has changed, as text for the log."""
    if isinstance(before, NamedValues):
        return f"({before.names_that_differ(now)})"
    return "(closed or replaced)" if isinstance(before, tuple) else f"({before!r}, now {now!r})"


def open_files() -> int:
    """Return how many files this process has open; 0 on a system without /proc."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/fd"))
    return 0


def _working_directory() -> str | None:
    with suppress(OSError):  # the directory is gone
        return os.getcwd()
    return None


def _umask() -> str | None:
    """Return the umask from /proc, None without it. The system call that reads it also changes it for all threads."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next((line.split()[1] for line in status if line.startswith("Umask:")), None)
    return None
