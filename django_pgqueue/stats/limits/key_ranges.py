"""Ranges of limit keys in the lanes of jobs with a limit, as the statements of `limit_queries` take them.

PostgreSQL compares limit keys by their bytes, which is the order of strings in Python. The character after ":" is ";".
No key has the character NUL, so the first string after a key is the key and "\\x01".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

LAST: Final = "\U0010ffff"
"""The last character."""


class KeyRange(NamedTuple):
    """Limit keys from `low` up to `high`, without `high`."""

    low: str
    high: str


class LaneRange(NamedTuple):
    """A range of limit keys in one lane."""

    queue_name: str
    priority: int
    low: str
    high: str


def range_of_key(limit_key: str) -> KeyRange:
    """Return the range that contains this key alone."""
    return KeyRange(limit_key, after(limit_key))


def range_around(limit_key: str) -> KeyRange:
    """Return the range of its limit that a key is in: all keys with a value, or the name alone."""
    name, has_value, _ = limit_key.partition(":")
    return KeyRange(f"{name}:", f"{name};") if has_value else range_of_key(name)


def ranges_of_limit(name: str, *, prefix: str, after_key: str) -> list[KeyRange]:
    """Return the ranges of the keys of a limit whose values begin with a prefix, behind a key."""
    if prefix:
        ranges = [KeyRange(f"{name}:{prefix}", f"{name}:{prefix}{LAST}")]
    else:
        ranges = [range_of_key(name), range_around(f"{name}:")]
    ranges = [KeyRange(max(low, after(after_key)) if after_key else low, high) for low, high in ranges]
    return [each for each in ranges if each.low < each.high]


def after(limit_key: str) -> str:
    """Return the first string after a key."""
    return f"{limit_key}\x01"


def in_lanes(lanes: Iterable[tuple[str, int]], ranges: Sequence[KeyRange]) -> list[LaneRange]:
    """Return each range in each lane."""
    return [LaneRange(*lane, *each) for lane in lanes for each in ranges]


def columns(ranges: Iterable[LaneRange]) -> dict[str, list[Any]]:
    """Return the parameters of a statement that takes these ranges."""
    queue_names, priorities, lows, highs = ([*column] for column in zip(*ranges, strict=True))
    return {"queue_names": queue_names, "priorities": priorities, "lows": lows, "highs": highs}


def is_storable(text: str) -> bool:
    """Return whether PostgreSQL can store this text. Otherwise no job has it in its limit key."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
