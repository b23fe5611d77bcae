"""Converters of lists, tuples, sets, dicts and unions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Flag
from typing import Any, Final

from django_pgqueue.exceptions import InvalidTask

from .converter import ARRAY, BYTES, INVALID, OBJECT, Converter, Mismatch, Rows, converted, kind_of
from .rows import KEYS
from .scalars import EnumConverter

HIDDEN_STEP: Final = "[…]"
"""Stands for the item of a set, and for a key of a dict, which can be as secret as the value."""


def name_of(converter: Converter | None) -> str:
    """Return the name of a converter's annotation for error messages."""
    return "Any" if converter is None else converter.expected


def is_sequence(value: Any) -> bool:
    """Return whether a value becomes a JSON array: any sequence except text and bytes."""
    return isinstance(value, Sequence) and not isinstance(value, (str, *BYTES))


class ItemsConverter(Converter):
    """A list, a tuple of any length, or a set, whose items have one annotation."""

    kinds = ARRAY

    def __init__(self, make: type, item: Converter | None) -> None:
        self.make = make
        self.item = item
        self.is_set = issubclass(make, Set)
        self.converts = make is not list or (item is not None and item.converts)
        more = ", ..." if make is tuple else ""
        self.expected = f"{make.__name__}[{name_of(item)}{more}]"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Set) if self.is_set else is_sequence(value)

    def encode(self, value: Any) -> Any:
        self.check(value)
        if not self.converts and self.item is not None and self.item.exact.issuperset(map(type, value)):
            return value
        encoded = list(value) if self.item is None else self._encoded(value, self.item)
        return in_order(encoded) if self.is_set else encoded

    def _encoded(self, value: Iterable[Any], item: Converter) -> list[Any]:
        encoded: list[Any] = []
        try:
            for each in value:
                encoded.append(item.encode(each))  # noqa: PERF401 -- the length is the index of the item that fails
        except Mismatch as error:
            raise error.within(HIDDEN_STEP if self.is_set else f"[{len(encoded)}]") from None
        return encoded

    def decode(self, stored: Any, rows: Rows) -> Any:
        if not self.converts:
            return stored
        if not isinstance(stored, list):
            raise self.unreadable()
        decoded: list[Any] = []
        try:
            for each in stored:
                decoded.append(each if self.item is None else self.item.decode(each, rows))  # noqa: PERF401 -- as above
            return self.make(decoded)
        except Mismatch as error:
            raise error.within(f"[{len(decoded)}]") from None
        except TypeError:  # an item that is not hashable
            raise self.unreadable() from None

    def parts(self, stored: Any) -> Iterable[tuple[Converter, Any]]:
        if self.item is None or not isinstance(stored, list):
            return ()
        item = self.item
        return ((item, each) for each in stored)


def in_order(encoded: list[Any]) -> list[Any]:
    """Return the items of a set in an order that is the same in each process."""
    try:
        return sorted(encoded)
    except TypeError:  # items of several types, or objects
        return sorted(encoded, key=json.dumps)


class FixedTupleConverter(Converter):
    """A tuple whose items have an annotation each."""

    kinds = ARRAY

    def __init__(self, items: Sequence[Converter | None]) -> None:
        self.items = items
        self.expected = f"tuple[{', '.join(map(name_of, items)) or '()'}]"

    def accepts(self, value: Any) -> bool:
        return is_sequence(value) and len(value) == len(self.items)

    def encode(self, value: Any) -> Any:
        if is_sequence(value) and len(value) != len(self.items):
            raise Mismatch(f"must have {len(self.items)} items, not {len(value)}")
        self.check(value)
        return [
            converted(f"[{index}]", item.encode, each) if item else each
            for index, (item, each) in enumerate(zip(self.items, value, strict=True))
        ]

    def decode(self, stored: Any, rows: Rows) -> Any:
        if not isinstance(stored, list) or len(stored) != len(self.items):
            raise self.unreadable()
        return tuple(
            converted(f"[{index}]", item.decode, each, rows) if item else each
            for index, (item, each) in enumerate(zip(self.items, stored, strict=True))
        )

    def parts(self, stored: Any) -> Iterable[tuple[Converter, Any]]:
        if not isinstance(stored, list):
            return ()
        return ((item, each) for item, each in zip(self.items, stored, strict=False) if item is not None)


class KeyConverter:
    """Converts the keys of a dict, which are strings in JSON."""

    def __init__(self, converter: Converter, from_text: Callable[[str], Any]) -> None:
        self.converter = converter
        self.expected = converter.expected
        self.from_text = from_text

    def encode(self, key: Any) -> str:
        """Return a key as a string. Raise `Mismatch` if it does not fit."""
        try:
            encoded = self.converter.encode(key)
        except Mismatch as error:
            raise Mismatch(f"has a key that {error.problem}") from None
        return encoded if isinstance(encoded, str) else json.dumps(encoded)

    def decode(self, text: str) -> Any:
        """Return the key for a stored string. Raise `Mismatch` if no key fits the string."""
        try:
            stored = self.from_text(text)
            if not self.converter.converts:  # a plain type, which decode() does not check
                self.converter.check(stored)
            return self.converter.decode(stored, KEYS)
        except (Mismatch, *INVALID):
            raise Mismatch(f"has a stored key that is not {self.expected}") from None


def member_key(member: EnumConverter) -> KeyConverter:
    """Return the key converter of an enum, whose values can be numbers.

    Raises:
        InvalidTask: Two members have the same string as a key, such as 1 and "1".
    """
    if issubclass(member.enum_class, Flag):  # combinations are no members of their own
        return KeyConverter(member, int)
    stored = {member.encode(each) for each in member.enum_class}
    by_text = {each if isinstance(each, str) else json.dumps(each): each for each in stored}
    if len(by_text) < len(stored):
        raise InvalidTask(f"two members of {member.expected} become the same key of a JSON object")
    return KeyConverter(member, lambda text: by_text.get(text, text))


class DictConverter(Converter):
    """A dict whose keys have one annotation, and its values another."""

    kinds = OBJECT

    def __init__(self, key: KeyConverter | None, value: Converter | None) -> None:
        self.key = key
        self.value = value
        self.converts = key is not None or (value is not None and value.converts)
        self.expected = f"dict[{'str' if key is None else key.expected}, {name_of(value)}]"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def encode(self, value: Any) -> Any:
        self.check(value)
        if not self.converts and self.value is not None and self.value.exact.issuperset(map(type, value.values())):
            return value
        encoded: dict[Any, Any] = {}
        for key, each in value.items():
            name = key if self.key is None else self.key.encode(key)
            encoded[name] = converted(HIDDEN_STEP, self.value.encode, each) if self.value else each
        return encoded

    def decode(self, stored: Any, rows: Rows) -> Any:
        if not self.converts:
            return stored
        if not isinstance(stored, dict):
            raise self.unreadable()
        return {
            name if self.key is None else self.key.decode(name): (
                converted(HIDDEN_STEP, self.value.decode, each, rows) if self.value else each
            )
            for name, each in stored.items()
        }

    def parts(self, stored: Any) -> Iterable[tuple[Converter, Any]]:
        if self.value is None or not isinstance(stored, dict):
            return ()
        value = self.value
        return ((value, each) for each in stored.values())


class UnionConverter(Converter):
    """A union of types whose values are of different JSON types, so that the stored value shows its type."""

    def __init__(self, members: Sequence[Converter]) -> None:
        self.members = members
        self.kinds = frozenset[str]().union(*(member.kinds for member in members))
        self.converts = any(member.converts for member in members)
        self.exact = frozenset[type]().union(*(member.exact for member in members))
        self.expected = " | ".join(member.expected for member in members)
        others = [member for member in members if member.converts]
        self.only = others[0] if len(others) == 1 else None
        """The member that reads values of a JSON type that no member writes, such as a number for a `Decimal`."""

    def accepts(self, value: Any) -> bool:
        return any(member.accepts(value) for member in self.members)

    def encode(self, value: Any) -> Any:
        for member in self.members:
            if member.accepts(value):
                return member.encode(value)
        self.check(value)
        return value

    def decode(self, stored: Any, rows: Rows) -> Any:
        if not self.converts:
            return stored
        member = self._member_for(stored)
        if member is None:
            raise self.unreadable()
        return member.decode(stored, rows)

    def _member_for(self, stored: Any) -> Converter | None:
        kind = kind_of(stored)
        return next((member for member in self.members if kind in member.kinds), self.only)

    def parts(self, stored: Any) -> Iterable[tuple[Converter, Any]]:
        member = self._member_for(stored)
        return () if member is None else ((member, stored),)
