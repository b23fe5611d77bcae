"""Converters of single values: dates and times, numbers, UUIDs, paths, bytes and the members of enums."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final
from uuid import UUID

from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string

from .converter import INVALID, NUMBER, STRING, Converter, Kinds, Mismatch, Rows, kind_of


class TextConverter(Converter):
    """A type that is stored as a string."""

    kinds = STRING

    def __init__(
        self,
        python_type: type,
        to_text: Callable[[Any], str],
        from_text: Callable[[str], Any],
        *,
        from_number: Callable[[Any], Any] | None = None,
        without: tuple[type, ...] = (),
    ) -> None:
        self.expected = python_type.__name__
        self.python_type = python_type
        self.to_text = to_text
        self.from_text = from_text
        self.from_number = from_number
        self.without = without

    def accepts(self, value: Any) -> bool:
        return isinstance(value, self.python_type) and not isinstance(value, self.without)

    def encode(self, value: Any) -> Any:
        self.check(value)
        return self.to_text(value)

    def decode(self, stored: Any, rows: Rows) -> Any:
        kind = kind_of(stored)
        try:
            if kind == "string":
                return self.from_text(stored)
            if kind == "number" and self.from_number is not None:
                return self.from_number(stored)
        except INVALID:
            pass  # the error's text can contain the value
        raise self.unreadable() from None


def _time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Mismatch("is a time whose time zone has no fixed offset, which text cannot represent", ValueError)
    return value.isoformat()


def _duration(text: str) -> timedelta:
    duration = parse_duration(text)
    if duration is None:
        raise ValueError("not a duration")
    return duration


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


TEXTS: Final[dict[Any, TextConverter]] = {
    datetime: TextConverter(datetime, datetime.isoformat, datetime.fromisoformat),
    # A datetime is a date for Python, but its time would be lost.
    date: TextConverter(date, date.isoformat, date.fromisoformat, without=(datetime,)),
    time: TextConverter(time, _time, time.fromisoformat),
    # Numbers are what earlier code has stored for these two types.
    timedelta: TextConverter(
        timedelta, duration_iso_string, _duration, from_number=lambda number: timedelta(seconds=number)
    ),
    Decimal: TextConverter(Decimal, str, Decimal, from_number=lambda number: Decimal(str(number))),
    UUID: TextConverter(UUID, str, UUID),
    bytes: TextConverter(bytes, lambda value: base64.b64encode(value).decode(), _bytes),
}


class EnumConverter(Converter):
    """A member of an enum. It is stored by its value if all values are plain JSON scalars, otherwise by its name."""

    def __init__(self, enum_class: type[Enum]) -> None:
        self.expected = enum_class.__qualname__
        self.enum_class = enum_class
        values = [member.value for member in enum_class.__members__.values()]
        self.is_by_value = all(value is None or isinstance(value, str | int | float) for value in values)
        self.kinds = self._kinds(values)
        self.value_types = tuple(kind for kind in (str, int) if kind in enum_class.__mro__)

    def _kinds(self, values: list[Any]) -> Kinds:
        if not self.is_by_value:
            return STRING
        kinds = frozenset(kind_of(value) for value in values) or STRING
        return kinds | NUMBER if issubclass(self.enum_class, Flag) else kinds

    def accepts(self, value: Any) -> bool:
        """Return whether this is a member, or equal to one: `Color.RED == "red"` is true for a `StrEnum`."""
        if isinstance(value, self.enum_class):
            return True
        return isinstance(value, self.value_types) and self._by_value(value) is not None

    def encode(self, value: Any) -> Any:
        self.check(value)
        member = value if isinstance(value, self.enum_class) else self.enum_class(value)
        return member.value if self.is_by_value else member.name

    def decode(self, stored: Any, rows: Rows) -> Any:
        member = self._by_value(stored) if self.is_by_value else None
        if member is None and isinstance(stored, str):
            member = self.enum_class.__members__.get(stored)
        if member is None:
            raise self.unreadable()
        return member

    def _by_value(self, value: Any) -> Enum | None:
        try:
            return self.enum_class(value)
        except INVALID:
            return None


class LiteralConverter(Converter):
    """One of the plain values of a `Literal`."""

    converts = False

    def __init__(self, options: tuple[Any, ...]) -> None:
        self.expected = f"Literal[{', '.join(map(repr, options))}]"
        self.options = options
        self.kinds = frozenset(kind_of(option) for option in options)

    def accepts(self, value: Any) -> bool:
        return any(isinstance(value, type(option)) and value == option for option in self.options)

    def encode(self, value: Any) -> Any:
        if not self.accepts(value):
            raise Mismatch(f"must be one of {self.expected}")
        return value

    def decode(self, stored: Any, rows: Rows) -> Any:
        return stored
