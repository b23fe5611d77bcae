"""Converters of classes with named fields: dataclasses, named tuples and typed dicts become JSON objects.

A stored object must have exactly the fields of the class, except that a field with a default can be missing. Otherwise
the job does not fit this code, like a call with an unknown keyword.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.signatures import signature_of

from .converter import ARRAY, OBJECT, Converter, Mismatch, Rows, converted


class Field(NamedTuple):
    """One field of a record."""

    name: str
    converter: Converter | None
    is_required: bool
    is_argument: bool = True
    """Whether the constructor takes the field. False for fields with `init=False`."""


Compile = Callable[[Any], Converter | None]
"""Returns the converter of an annotation."""


class RecordConverter(Converter):
    """The base class of converters of classes with named fields.

    `set_fields()` completes a converter, because the annotation of a field can be the class itself.
    """

    kinds = OBJECT

    def __init__(self, record_class: Any) -> None:
        self.expected = record_class.__qualname__
        self.record_class = record_class
        self.fields: dict[str, Field] = {}

    def set_fields(self, hints: Mapping[str, Any], compile_: Compile) -> None:
        """Set the fields of the class by its annotations."""
        self.fields = {field.name: field for field in self.fields_of(hints, compile_)}

    def fields_of(self, hints: Mapping[str, Any], compile_: Compile) -> Iterator[Field]:
        """Yield the fields of the class."""
        raise NotImplementedError

    def accepts(self, value: Any) -> bool:
        return type(value) is self.record_class  # the fields of a subclass would be lost

    def encode(self, value: Any) -> Any:
        self.check(value)
        return {
            field.name: converted(f".{field.name}", field.converter.encode, each) if field.converter else each
            for field, each in self._values(value)
        }

    def _values(self, value: Any) -> Iterator[tuple[Field, Any]]:
        for field in self.fields.values():
            try:
                yield field, getattr(value, field.name)
            except AttributeError:
                raise Mismatch(f"has no value for its field {field.name!r}", ValueError) from None

    def decode(self, stored: Any, rows: Rows) -> Any:
        if not isinstance(stored, dict):
            raise self.unreadable()
        if missing := [name for name, field in self.fields.items() if field.is_required and name not in stored]:
            raise Mismatch(f"is stored without {missing[0]!r}, which {self.expected} requires")
        decoded = {name: self._decoded(name, each, rows) for name, each in stored.items()}
        try:
            return self.make(decoded)
        except Exception as error:  # noqa: BLE001 -- it runs the project's code; the text can contain the value
            raise Mismatch(f"is refused by {self.expected} with {type(error).__name__}") from None

    def _decoded(self, name: str, stored: Any, rows: Rows) -> Any:
        field = self.fields.get(name)
        if field is None:
            raise Mismatch(f"is stored with a field that {self.expected} does not have")
        return converted(f".{name}", field.converter.decode, stored, rows) if field.converter else stored

    def make(self, values: dict[str, Any]) -> Any:
        """Return a new object with these fields."""
        return self.record_class(**values)

    def parts(self, stored: Any) -> Iterable[tuple[Converter, Any]]:
        if not isinstance(stored, dict):
            return ()
        fields = ((self.fields.get(name), each) for name, each in stored.items())
        return ((field.converter, each) for field, each in fields if field is not None and field.converter is not None)


class DataclassConverter(RecordConverter):
    """A dataclass. Fields with `init=False` are stored too, and set after the constructor has run."""

    def fields_of(self, hints: Mapping[str, Any], compile_: Compile) -> Iterator[Field]:
        """Yield the fields. Raise `InvalidTask` if the constructor needs a value that is not a field."""
        fields = {field.name: field for field in dataclasses.fields(self.record_class)}
        for name, argument in signature_of(self.record_class).parameters.items():
            is_variable = argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
            if name not in fields and argument.default is argument.empty and not is_variable:
                raise InvalidTask(f"{self.expected} needs {name!r} to be created, which is not one of its fields")
        for name, field in fields.items():
            is_required = field.init and field.default is field.default_factory is dataclasses.MISSING
            yield Field(name, compile_(hints[name]), is_required, field.init)

    def make(self, values: dict[str, Any]) -> Any:
        made = self.record_class(**{name: each for name, each in values.items() if self.fields[name].is_argument})
        for name, each in values.items():
            if not self.fields[name].is_argument:
                object.__setattr__(made, name, each)  # the class can be frozen
        return made


class NamedTupleConverter(RecordConverter):
    """A named tuple. Earlier code without the annotation has stored it as an array."""

    kinds = OBJECT | ARRAY

    def fields_of(self, hints: Mapping[str, Any], compile_: Compile) -> Iterator[Field]:
        for name in self.record_class._fields:
            converter = compile_(hints[name]) if name in hints else None
            yield Field(name, converter, name not in self.record_class._field_defaults)

    def decode(self, stored: Any, rows: Rows) -> Any:
        return super().decode(self._by_name(stored), rows)

    def _by_name(self, stored: Any) -> Any:
        is_complete = isinstance(stored, list) and len(stored) <= len(self.fields)
        return dict(zip(self.fields, stored, strict=False)) if is_complete else stored

    def parts(self, stored: Any) -> Iterable[tuple[Converter, Any]]:
        return super().parts(self._by_name(stored))


class TypedDictConverter(RecordConverter):
    """A `TypedDict`, which is a plain dict at run time."""

    def fields_of(self, hints: Mapping[str, Any], compile_: Compile) -> Iterator[Field]:
        for name, annotation in hints.items():
            yield Field(name, compile_(annotation), name in self.record_class.__required_keys__)

    def set_fields(self, hints: Mapping[str, Any], compile_: Compile) -> None:
        super().set_fields(hints, compile_)
        self.converts = any(field.converter is not None and field.converter.converts for field in self.fields.values())

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def _values(self, value: Any) -> Iterator[tuple[Field, Any]]:
        if any(name not in self.fields for name in value):  # the key can be as secret as the value
            raise Mismatch(f"has a key that {self.expected} does not have")
        for name, field in self.fields.items():
            if name in value:
                yield field, value[name]
            elif field.is_required:
                raise Mismatch(f"has no key {name!r}, which {self.expected} requires")

    def decode(self, stored: Any, rows: Rows) -> Any:
        return super().decode(stored, rows) if self.converts else stored

    def make(self, values: dict[str, Any]) -> Any:
        return values
