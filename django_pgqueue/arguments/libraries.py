"""Converters of pydantic's models and msgspec's structs, which convert themselves.

This module never imports these libraries: an annotation that is such a class has imported its library already.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterator
from typing import Any

from django_pgqueue.exceptions import InvalidTask

from .converter import ALL, ARRAY, INVALID, OBJECT, Converter, Mismatch, Rows


class PydanticConverter(Converter):
    """A pydantic model. It is read in pydantic's JSON mode, so that models with strict types accept it too."""

    def __init__(self, model: Any) -> None:
        self.expected = model.__qualname__
        self.model = model
        is_root = getattr(model, "__pydantic_root_model__", False)
        self.kinds = ALL if is_root else OBJECT
        if (field := _masked_field(model, set())) is not None:
            raise InvalidTask(
                f"pydantic stores the secret {field} as asterisks: pass the id of the row that contains it, "
                "or write a field_serializer"
            )

    def accepts(self, value: Any) -> bool:
        return type(value) is self.model  # the fields of a subclass would be lost

    def encode(self, value: Any) -> Any:
        self.check(value)
        return value.model_dump(mode="json", by_alias=True)

    def decode(self, stored: Any, rows: Rows) -> Any:
        try:
            return self.model.model_validate_json(json.dumps(stored))
        except INVALID as error:  # a ValidationError is a ValueError
            raise _refused(self.expected, error) from None


def _masked_field(model: Any, seen: set[Any]) -> str | None:
    """Return the name of a secret field that a model's JSON would not contain. None if the model serializes it."""
    pydantic = sys.modules["pydantic"]
    seen.add(model)
    own = model.__pydantic_decorators__
    if own.field_serializers or own.model_serializers:
        return None
    for name, field in model.model_fields.items():
        for part in _classes_in(field.annotation):
            if issubclass(part, (pydantic.SecretStr, pydantic.SecretBytes)):
                return f"{model.__qualname__}.{name}"
            if issubclass(part, pydantic.BaseModel) and part not in seen and (found := _masked_field(part, seen)):
                return found
    return None


def _classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation names."""
    if isinstance(annotation, type):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes_in(argument)


class MsgspecConverter(Converter):
    """A msgspec struct."""

    kinds = OBJECT | ARRAY

    def __init__(self, struct: Any) -> None:
        self.expected = struct.__qualname__
        self.struct = struct
        self.msgspec = sys.modules["msgspec"]

    def accepts(self, value: Any) -> bool:
        return type(value) is self.struct  # as above

    def encode(self, value: Any) -> Any:
        self.check(value)
        try:
            return self.msgspec.to_builtins(value, str_keys=True)
        except INVALID as error:
            raise Mismatch(f"cannot be encoded by msgspec: {type(error).__name__}") from None

    def decode(self, stored: Any, rows: Rows) -> Any:
        try:
            return self.msgspec.convert(stored, self.struct, str_keys=True)
        except (self.msgspec.ValidationError, *INVALID) as error:
            raise _refused(self.expected, error) from None


def _refused(expected: str, error: Exception) -> Mismatch:
    return Mismatch(f"is stored as a value that {expected} refuses with {type(error).__name__}")


def of_library(annotation: type) -> Converter | None:
    """Return the converter of a class of an optional library, or None for any other class."""
    pydantic, msgspec = sys.modules.get("pydantic"), sys.modules.get("msgspec")
    if pydantic is not None and issubclass(annotation, pydantic.BaseModel):
        return PydanticConverter(annotation)
    if msgspec is not None and issubclass(annotation, msgspec.Struct):
        return MsgspecConverter(annotation)
    return None
