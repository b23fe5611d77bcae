"""Keep a worker or a command running when its standard streams are closed, or cannot be written.

Called by the management commands. A service manager can start a program without standard streams (`runworker >&-`), or
with a full disk behind them. If a stream is closed, the next pipe or connection that the process opens gets its
descriptor, and everything that is printed goes there.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO

from django.core.management.base import OutputWrapper


def open_missing_streams() -> None:
    """Open `/dev/null` in place of each closed standard stream, and let the others write every character."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            _open_null_as(number)
    sys.stdout = sys.stdout or _null()
    sys.stderr = sys.stderr or _null()
    for stream in (sys.stdout, sys.stderr):
        _escape_unknown_characters(stream)


def _escape_unknown_characters(stream: TextIO) -> None:
    """Let a stream write "ä" as "\\xe4" if its encoding lacks the character. Otherwise the command would fail.

    That is the encoding ASCII of a container without a locale, or of a terminal with `LC_ALL=C`.

    `reconfigure()` flushes the stream, and asks for its position if it could be sought when it was made. Both fail for
    some streams that print well enough: the disk is full, or a program that makes itself a daemon has put a pipe in
    place of the file. In the second case, `reconfigure()` has set the new value before it fails.
    """
    if isinstance(stream, TextIOWrapper):
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            stream.reconfigure(errors="backslashreplace")


def write_if_writable(stdout: OutputWrapper, line: str) -> None:
    """Write a line, unless the disk or the pipe is full: a write to a full pipe without a reader never returns."""
    with suppress(OSError):
        if _can_write(stdout):
            stdout.write(line)
            stdout.flush()


def discard_unwritable_output() -> None:
    """Discard output that cannot be flushed. Otherwise Python's flush at exit fails, and the exit code becomes 120."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = _null()


def has_lost_reader() -> bool:
    """Return whether the reader of standard output, such as `head`, has closed the pipe. Then discard the output."""
    events = _polled(sys.stdout, 0)  # errors are always reported
    is_lost = events is not None and bool(events & select.POLLERR)
    if is_lost:
        sys.stdout = _null()
    return is_lost


def _can_write(stdout: OutputWrapper) -> bool:
    """Return whether a line can be written without blocking. A pipe counts as writable if 4 KiB fit into it."""
    return _polled(stdout, select.POLLOUT) != 0


def _polled(stream: TextIO | OutputWrapper, wanted: int) -> int | None:
    """Return which of these events, or which errors, a stream has now. None: it cannot be polled."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):  # a stream in memory has no descriptor
        return None
    if not hasattr(select, "poll"):
        return None
    poller = select.poll()
    poller.register(descriptor, wanted)
    return sum(events for _, events in poller.poll(0))


def _open_null_as(number: int) -> None:
    descriptor = os.open(os.devnull, os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.set_inheritable(number, True)  # noqa: FBT003 -- programs that tasks start need standard streams too


def _null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def is_terminal(stdout: OutputWrapper) -> bool:
    """Return whether the output is a terminal that understands control codes.

    `NO_COLOR` in the environment turns colours off (https://no-color.org), as `--no-color` does.
    """
    return stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def is_coloured(stdout: OutputWrapper, arguments: Mapping[str, Any]) -> bool:
    """Return whether lines may be coloured."""
    if arguments.get("force_color"):
        return True
    return is_terminal(stdout) and not arguments.get("no_color") and not os.environ.get("NO_COLOR")
