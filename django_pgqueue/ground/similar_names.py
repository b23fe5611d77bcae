"""Find the known name that a misspelled name may mean.

The commands call it for what an operator has typed: names of queues, tasks, limits and schedules, and words of the
command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that may be meant; "" if none is similar by the ratio `cutoff` of difflib.

    A dotted name that ends with the given one comes first: `send_receipt` means `shop.tasks.send_receipt`.
    """
    names = sorted(known)
    endings = [each for each in names if each.endswith(f".{name}")]
    return next(iter(endings or get_close_matches(name, names, n=1, cutoff=cutoff)), "")


def meant(name: str, known: Iterable[str], command: str) -> str:
    """Return the end of a sentence about an unknown name: the name that may be meant, or the command that lists all."""
    close = closest(name, known)
    return f": did you mean {close!r}?" if close else f". `{command}` lists what exists."
