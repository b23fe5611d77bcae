"""Check the JSON of a request: every value has the described type and size, and there is no unknown name.

`views` reads each value through `Fields`. The module protects one rule: nothing reaches the database unchecked. Texts
that PostgreSQL cannot store are refused here, with the place of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from django_pgqueue.encoding.serialization import normalise

from .problems import invalid

LONGEST_DELAY_SECONDS: Final = 366 * 86400.0


class Fields:
    """The members of a JSON object.

    Args:
        value: The object.
        names: The names that it may have.
        place: Where it stands, for messages.
    """

    def __init__(self, value: Any, names: Collection[str], place: str = "the body") -> None:
        if not isinstance(value, dict):
            raise invalid(f"{place} must be a JSON object")
        for name in value:
            if name not in names:
                raise invalid(f"{place} has an unknown member {name[:50]!r}: the members are {', '.join(names)}")
        self._value: Mapping[str, Any] = value
        self._place = place

    def has(self, name: str) -> bool:
        """Return whether a member is there and is not null."""
        return self._value.get(name) is not None

    def text(self, name: str, *, most: int, default: str | None = None) -> str:
        """Return a text of at most `most` characters. Without a default, it must be there and not empty."""
        value = self._value.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or len(value) > most or (default is None and not value):
            raise self._wrong(name, f"a text of {1 if default is None else 0} to {most:,} characters")
        self._storable(name, value)
        return value

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        """Return a whole number between two bounds."""
        value = self._value.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low:,} to {high:,}")
        return value

    def seconds(self, name: str, most: float = LONGEST_DELAY_SECONDS, *, least: float = 0.0) -> float | None:
        """Return a number of seconds between two bounds. None: it is not there."""
        wanted = f"a number of seconds from {least:,g} to {most:,.0f}"
        return self._number(name, lambda value: least <= value <= most, wanted)

    def number(self, name: str) -> float | None:
        """Return a finite number. None: it is not there."""
        return self._number(name, _is_finite, "a number")

    def _number(self, name: str, is_valid: Callable[[float], bool], wanted: str) -> float | None:
        value = self._value.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_valid(value):
            raise self._wrong(name, wanted)
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, False if it is not there."""
        value = self._value.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of some words."""
        value = self._value.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}")
        return value

    def texts(self, name: str, *, most: int, longest: int) -> tuple[str, ...]:
        """Return a list of at most `most` texts without repetitions, empty if it is not there."""
        values = self._value.get(name) or []
        if not isinstance(values, list) or len(values) > most:
            raise self._wrong(name, f"a list of at most {most} texts")
        for value in values:
            if not isinstance(value, str) or not 0 < len(value) <= longest:
                raise self._wrong(name, f"a list of texts of 1 to {longest} characters")
            self._storable(name, value)
        return tuple(dict.fromkeys(values))

    def objects(self, name: str, names: Collection[str], *, most: int) -> list[Fields]:
        """Return a list of 1 to `most` objects."""
        values = self._value.get(name)
        if not isinstance(values, list) or not 0 < len(values) <= most:
            raise self._wrong(name, f"a list of 1 to {most} objects")
        return [Fields(value, names, f"{name}[{index}]") for index, value in enumerate(values)]

    def object(self, name: str, names: Collection[str]) -> Fields | None:
        """Return an object. None: it is not there."""
        value = self._value.get(name)
        return None if value is None else Fields(value, names, f"{name} in {self._place}")

    def json(self, name: str) -> Any:
        """Return any JSON value, None if it is not there. PostgreSQL can store it, and Python can read it back."""
        return self._storable(name, self._value.get(name), 0)

    def _storable(self, name: str, value: Any, depth: int = 1) -> Any:
        """Return a value, normalised. Raise `Problem` if PostgreSQL cannot store it."""
        try:
            return normalise(value, f"{name} in {self._place}", depth)
        except ValueError as error:
            raise invalid(str(error)) from None

    def _wrong(self, name: str, wanted: str) -> Exception:
        return invalid(f"{name} in {self._place} must be {wanted}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can represent
        return False
