"""The base class of converters, and the converter of plain JSON types.

A converter belongs to one annotation. `encode()` turns a value into plain JSON types, and `decode()` turns these into a
value again. Their errors name the expected and the actual type, never the value, because a value can be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

Kinds = frozenset[str]
"""Names of JSON types."""

STRING: Final[Kinds] = frozenset({"string"})
NUMBER: Final[Kinds] = frozenset({"number", "boolean"})
"""A boolean is a number for Python and for type checkers."""
BOOLEAN: Final[Kinds] = frozenset({"boolean"})
OBJECT: Final[Kinds] = frozenset({"object"})
ARRAY: Final[Kinds] = frozenset({"array"})
NULL: Final[Kinds] = frozenset({"null"})
ALL: Final[Kinds] = STRING | NUMBER | OBJECT | ARRAY | NULL
BYTES: Final = (bytes, bytearray, memoryview)
UNREADABLE: Final = "is stored as a value that is not"
"""Beginning of the problem of a stored value that does not fit."""
INVALID: Final = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Errors by which constructors and parsers refuse a value."""


class Mismatch(Exception):
    """A value does not fit its annotation.

    Attributes:
        problem: The rest of a sentence that begins with the place of the value.
        path: The place of the value inside its argument, such as `[2].amount`.
        error_class: The exception that `enqueue()` raises.
    """

    def __init__(self, problem: str, error_class: type[Exception] = TypeError) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""
        self.error_class = error_class

    def within(self, step: str) -> Mismatch:
        """Add the outer step of the path: the attribute or the index that has the value."""
        self.path = step + self.path
        return self

    def message(self, place: str) -> str:
        """Return the complete sentence for the argument at `place`."""
        return f"{place}{self.path} {self.problem}"


def converted(step: str, convert: Callable[..., Any], *arguments: Any) -> Any:
    """Convert a part of a value. `step` is the attribute or the index that has the part, for the path of an error."""
    try:
        return convert(*arguments)
    except Mismatch as error:
        raise error.within(step) from None


class Rows(Protocol):
    """Returns what a task gets for the primary key of a row."""

    def row(self, model: Any, key: Any) -> Any:
        """Return the value for one row of a model."""


class Converter:
    """Converts the values of one annotation."""

    expected: str
    """The annotation as error messages show it."""
    kinds: Kinds
    """The JSON types that `encode()` returns. A union distinguishes its members by them."""
    converts = True
    """Whether a value differs from what is stored for it."""
    exact: frozenset[type] = frozenset()
    """Types whose instances always fit and are stored as they are. Instances of other types can fit too."""

    def accepts(self, value: Any) -> bool:
        """Return whether `encode()` is meant for a value. The parts of a container are not checked."""
        raise NotImplementedError

    def encode(self, value: Any) -> Any:
        """Return a value in plain JSON types. Raise `Mismatch` if it does not fit."""
        raise NotImplementedError

    def decode(self, stored: Any, rows: Rows) -> Any:
        """Return the value for a stored one. Raise `Mismatch` if the stored value does not fit."""
        raise NotImplementedError

    def parts(self, stored: Any) -> Iterable[tuple[Converter, Any]]:
        """Return the stored parts of a container, each with its converter. `stored` may be anything."""
        return ()

    def references(self, stored: Any) -> Iterator[tuple[Any, Any]]:
        """Yield (model, primary key) for each row in a stored value."""
        for converter, part in self.parts(stored):
            yield from converter.references(part)

    def check(self, value: Any) -> None:
        """Raise `Mismatch` if `accepts()` returns False."""
        if not self.accepts(value):
            raise Mismatch(f"must be {self.expected}, not {type(value).__name__}")

    def unreadable(self) -> Mismatch:
        """Return the error for a stored value that `decode()` cannot read."""
        return Mismatch(f"{UNREADABLE} {self.expected}")


EXACT: Final[dict[type, tuple[type, ...]]] = {
    int: (int, bool),
    float: (float,),
    bool: (bool,),
    str: (str,),
    type(None): (type(None),),
    Mapping: (dict,),
    Sequence: (list, tuple),
}
"""The exact types whose instances fit a type of a `PlainConverter`."""


class PlainConverter(Converter):
    """Checks a value that JSON represents as it is. It is not checked again when it is read."""

    converts = False

    def __init__(self, expected: str, types: tuple[type, ...], kinds: Kinds) -> None:
        self.expected = expected
        self.types = types
        self.kinds = kinds
        self.exact = frozenset[type]().union(*(EXACT[each] for each in types))

    def accepts(self, value: Any) -> bool:
        if isinstance(value, str):  # a string is a sequence too
            return str in self.types
        return isinstance(value, self.types) and not isinstance(value, BYTES)

    def encode(self, value: Any) -> Any:
        self.check(value)
        return value

    def decode(self, stored: Any, rows: Rows) -> Any:
        return stored

    def joined(self, other: PlainConverter) -> PlainConverter:
        """Return the converter of a union of two plain types."""
        return PlainConverter(f"{self.expected} | {other.expected}", self.types + other.types, self.kinds | other.kinds)


PLAIN: Final[dict[Any, PlainConverter]] = {
    int: PlainConverter("int", (int,), NUMBER),
    float: PlainConverter("float", (int, float), NUMBER),
    bool: PlainConverter("bool", (bool,), BOOLEAN),
    str: PlainConverter("str", (str,), STRING),
    type(None): PlainConverter("None", (type(None),), NULL),
    dict: PlainConverter("dict", (Mapping,), OBJECT),
}


def kind_of(stored: Any) -> str:
    """Return the name of the JSON type of a decoded JSON value."""
    if stored is None:
        return "null"
    if isinstance(stored, bool):
        return "boolean"
    if isinstance(stored, str):
        return "string"
    if isinstance(stored, dict):
        return "object"
    return "array" if isinstance(stored, list) else "number"
