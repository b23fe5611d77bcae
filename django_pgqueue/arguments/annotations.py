"""Compile annotations into converters.

`plan` calls this once for each annotation of a task. An annotation that needs no conversion gets a converter with
`converts = False`. One that means any value, or names a class that this package cannot convert, gets None: its values
stay plain JSON.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Collection as AnyCollection
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence, Set
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

from django_pgqueue.exceptions import InvalidTask

from .containers import (
    DictConverter,
    FixedTupleConverter,
    ItemsConverter,
    KeyConverter,
    UnionConverter,
    member_key,
)
from .converter import ARRAY, NULL, PLAIN, STRING, Converter, PlainConverter
from .libraries import of_library
from .records import DataclassConverter, NamedTupleConverter, RecordConverter, TypedDictConverter
from .rows import RowConverter, is_model
from .scalars import TEXTS, EnumConverter, LiteralConverter, TextConverter

ANYTHING: Final = (Any, object)
WRAPPERS: Final = (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)
AS_LISTS: Final = (list, Sequence, MutableSequence, Iterable, Iterator, AnyCollection)
AS_SETS: Final = (set, Set, MutableSet)
AS_DICTS: Final = (dict, Mapping, MutableMapping)
CONTAINERS: Final = frozenset({list, tuple, set, frozenset})
KEYS_AS_JSON: Final = (PLAIN[int], PLAIN[float], PLAIN[bool])
"""Plain types whose values are the text of dict keys. Keys of unions stay strings, as without an annotation."""
PLAIN_LIST: Final = PlainConverter("list", (Sequence,), ARRAY)


class Annotations:
    """Compiles annotations. One object remembers the classes that it has compiled, which can contain themselves."""

    def __init__(self) -> None:
        self._records: dict[Any, RecordConverter] = {}
        self._open_aliases: list[Any] = []
        self._recursive_aliases: list[Any] = []
        self.has_rows = False
        """Whether an annotation names a model."""

    def converter(self, annotation: Any) -> Converter | None:
        """Return the converter of an annotation, or None if any value is accepted as it is.

        Raises:
            InvalidTask: Stored values of the annotation would be ambiguous, or could not be read.
            NameError: A part of the annotation is not defined.
        """
        alias = _alias(annotation)
        if alias is not None:
            return self._aliased(alias)
        annotation = _unwrapped(annotation)
        if annotation in ANYTHING or isinstance(annotation, typing.TypeVar):
            return None
        origin = typing.get_origin(annotation)
        if origin in (typing.Union, types.UnionType):
            return self._union(annotation)
        if origin is typing.Literal:
            return _literal(typing.get_args(annotation))
        if (container := self._container(origin or annotation, typing.get_args(annotation))) is not None:
            return container
        return self._class(annotation)

    def _aliased(self, alias: Any) -> Converter | None:
        """Return the converter of an alias. An alias that contains itself can only stand for plain JSON."""
        if alias in self._open_aliases:
            self._recursive_aliases.append(alias)
            return None
        self._open_aliases.append(alias)
        try:
            converter = self.converter(_value_of(alias))
        finally:
            self._open_aliases.pop()
        if converter is not None and converter.converts and alias in self._recursive_aliases:
            raise InvalidTask(f"the type {alias} contains itself: use a dataclass")
        return converter

    # ---------------------------------------------------------------- unions and literals

    def _union(self, annotation: Any) -> Converter | None:
        arguments = typing.get_args(annotation)
        members = [self.converter(each) for each in arguments]
        known = [member for member in members if member is not None]
        if len(known) < len(members):
            if any(member.converts for member in known) and not set(arguments) & set(ANYTHING):
                raise _ambiguous(annotation)
            return None
        joined = _joined(known)
        if len(joined) == 1:
            return joined[0]
        for index, member in enumerate(joined):
            if any((member.kinds & other.kinds) - NULL for other in joined[:index]):
                if not any(each.converts for each in joined):
                    return None
                raise _ambiguous(annotation)
        return UnionConverter(joined)

    # ---------------------------------------------------------------- containers

    def _container(self, kind: Any, arguments: tuple[Any, ...]) -> Converter | None:
        if kind is tuple and arguments != () and not (len(arguments) == 2 and arguments[1] is Ellipsis):
            return FixedTupleConverter([self.converter(each) for each in arguments])
        if kind in AS_DICTS:
            return self._dict(arguments)
        if kind in AS_SETS:
            kind = set
        elif kind in AS_LISTS:
            kind = list
        if kind not in CONTAINERS:
            return None
        item = self.converter(arguments[0]) if arguments else None
        if kind is list and item is None:
            return PLAIN_LIST
        return ItemsConverter(kind, item)

    def _dict(self, arguments: tuple[Any, ...]) -> Converter:
        if not arguments:
            return PLAIN[dict]
        key, value = self._key(arguments[0]), self.converter(arguments[1])
        return PLAIN[dict] if key is None and value is None else DictConverter(key, value)

    def _key(self, annotation: Any) -> KeyConverter | None:
        """Return the converter of a dict's keys, or None for keys that are strings."""
        converter = self.converter(annotation)
        if converter is None:
            return None
        if isinstance(converter, EnumConverter):
            return member_key(converter)
        if isinstance(converter, LiteralConverter) and converter.kinds != STRING:
            raise _not_a_key(converter)
        if not converter.converts:
            return KeyConverter(converter, json.loads) if converter in KEYS_AS_JSON else None
        if converter.kinds == STRING:
            return KeyConverter(converter, str)
        raise _not_a_key(converter)

    # ---------------------------------------------------------------- classes

    def _class(self, annotation: Any) -> Converter | None:
        if annotation is None:
            return PLAIN[type(None)]
        if not isinstance(annotation, type):
            return self._record(typing.get_origin(annotation), annotation)
        if annotation in PLAIN:
            return PLAIN[annotation]
        if annotation in TEXTS:
            return TEXTS[annotation]
        if issubclass(annotation, Enum):
            return EnumConverter(annotation)
        if issubclass(annotation, PurePath):
            return TextConverter(annotation, str, annotation)
        if is_model(annotation):
            self.has_rows = True
            return RowConverter(annotation)
        return of_library(annotation) or self._record(annotation, annotation)

    def _record(self, record_class: Any, annotation: Any) -> Converter | None:
        """Return the converter of a class with fields; `annotation` is the class, or has the types of a generic one."""
        converter_class = _record_class(record_class) if isinstance(record_class, type) else None
        if converter_class is None:
            return None
        if annotation not in self._records:
            record = self._records[annotation] = converter_class(record_class)
            try:
                hints = typing.get_type_hints(record_class, include_extras=True)
            except NameError as error:
                raise InvalidTask(f"an annotation of {record_class.__qualname__} is not defined: {error}") from None
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise InvalidTask(f"an annotation of {record_class.__qualname__} is invalid: {reason}") from error
            chosen = dict(zip(getattr(record_class, "__parameters__", ()), typing.get_args(annotation), strict=False))
            hints = {name: _with_types(hint, chosen) for name, hint in hints.items()}
            record.set_fields(hints, self.converter)
        return self._records[annotation]


def _record_class(annotation: type) -> type[RecordConverter] | None:
    if dataclasses.is_dataclass(annotation):
        return DataclassConverter
    if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return NamedTupleConverter
    return TypedDictConverter if typing.is_typeddict(annotation) else None


def _joined(members: list[Converter]) -> list[Converter]:
    """Return the members of a union with all plain types as one, converting members first."""
    plain = [member for member in members if isinstance(member, PlainConverter)]
    others = [member for member in members if not isinstance(member, PlainConverter)]
    if plain:
        first, *rest = plain
        for member in rest:
            first = first.joined(member)
        others.append(first)
    return others


def _ambiguous(annotation: Any) -> InvalidTask:
    return InvalidTask(
        f"the members of {annotation} look alike as JSON, so a stored value does not show which one it is: "
        "use one type (a model accepts primary keys too), or a dataclass for each case"
    )


def _not_a_key(converter: Converter) -> InvalidTask:
    return InvalidTask(f"{converter.expected} cannot be the type of a dict's keys, which JSON stores as strings")


def _literal(options: tuple[Any, ...]) -> Converter | None:
    classes = {type(option) for option in options if isinstance(option, Enum)}
    if len(classes) == 1 and all(isinstance(option, Enum) for option in options):
        return EnumConverter(classes.pop())
    if classes or any(isinstance(option, bytes) for option in options):
        return None
    return LiteralConverter(options)


def _alias(annotation: Any) -> Any:
    """Return an annotation that is a `type` statement's alias, with or without arguments; otherwise None."""
    for each in (annotation, typing.get_origin(annotation)):
        if each is not None and hasattr(each, "__value__") and hasattr(each, "__type_params__"):
            return annotation
    return None


def _value_of(alias: Any) -> Any:
    """Return the annotation that an alias stands for."""
    origin = typing.get_origin(alias)
    return alias.__value__ if origin is None else origin.__value__[typing.get_args(alias)]


def _with_types(annotation: Any, chosen: Mapping[Any, Any]) -> Any:
    """Return an annotation with the types that were chosen for the variables of a generic class."""
    variables = getattr(annotation, "__parameters__", ())
    if isinstance(annotation, typing.TypeVar):
        return chosen.get(annotation, annotation)
    return annotation[tuple(chosen.get(each, each) for each in variables)] if variables and chosen else annotation


def _unwrapped(annotation: Any) -> Any:
    """Return an annotation without `Annotated`, `NewType` and the like."""
    while True:
        if hasattr(annotation, "__metadata__"):  # Annotated
            annotation = annotation.__origin__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, dataclasses.InitVar):
            annotation = annotation.type
        elif typing.get_origin(annotation) in WRAPPERS:
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation
