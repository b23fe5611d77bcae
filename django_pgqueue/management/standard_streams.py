"""Standard streams that are closed or cannot be written: a worker starts, works and stops all the same.

A service manager may start a program without them (`runworker >&-`), or with a full disk behind them. Left alone, the
next pipe or connection that is opened gets number 1 or 2, and whatever is printed goes there.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


def open_missing_streams() -> None:
    """Open `/dev/null` in place of each standard stream that is closed."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            _open_null_as(number)
    sys.stdout = sys.stdout or _null()
    sys.stderr = sys.stderr or _null()


def discard_unwritable_output() -> None:
    """Have Python's own flush at the exit not fail: that would end a sound worker with exit code 120."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = _null()


def _open_null_as(number: int) -> None:
    descriptor = os.open(os.devnull, os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.set_inheritable(number, True)  # noqa: FBT003 -- programs that tasks start have standard streams too


def _null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
