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
        for problem in _model_problems(model, set()):
            raise InvalidTask(problem)

    def accepts(self, value: Any) -> bool:
        return type(value) is self.model  # the fields of a subclass would be lost

    def encode(self, value: Any) -> Any:
        self.check(value)
        try:
            # A warning would show the value. "round_trip" omits computed fields, which a model may refuse to read.
            return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
        except INVALID as error:
            raise Mismatch(f"cannot be encoded by pydantic: {type(error).__name__}") from None

    def decode(self, stored: Any, rows: Rows) -> Any:
        try:
            return self.model.model_validate_json(json.dumps(stored))
        except Exception as error:  # noqa: BLE001 -- a validator can raise anything; the text can contain the value
            raise _refused(self.expected, error) from None


def _model_problems(model: Any, seen: set[Any]) -> Iterator[str]:
    """Yield why a model, or one that it contains, would not come back from its JSON."""
    pydantic = sys.modules["pydantic"]
    seen.add(model)
    if model.__pydantic_decorators__.model_serializers:
        return  # it decides itself what is stored
    yield from _name_problems(model)
    serialized = _serialized_fields(model)
    for name, field in model.model_fields.items():
        if serialized & {name, "*"}:
            continue
        for part in _classes_in(field.annotation):
            if issubclass(part, (pydantic.SecretStr, pydantic.SecretBytes)):
                yield (
                    f"pydantic stores the secret {model.__qualname__}.{name} as asterisks: "
                    "pass the id of the row that contains it, or write a field_serializer"
                )
            if issubclass(part, pydantic.BaseModel) and part not in seen:
                yield from _model_problems(part, seen)


def _name_problems(model: Any) -> Iterator[str]:
    """Yield which fields of a model are not stored, or are stored under a name that the model does not read."""
    for name, field in model.model_fields.items():
        if field.exclude and field.is_required():
            yield f"{model.__qualname__}.{name} is required, but pydantic does not store it because of exclude=True"
        if not _reads_what_it_writes(model, name, field):
            yield (
                f"{model.__qualname__}.{name} is not read under the name that pydantic stores it under: "
                "use alias=… in place of validation_alias=… and serialization_alias=…, or set populate_by_name"
            )


def _serialized_fields(model: Any) -> set[str]:
    """Return the names of the fields that a model serializes itself."""
    serializers = model.__pydantic_decorators__.field_serializers.values()
    return {name for serializer in serializers for name in serializer.info.fields}


def _reads_what_it_writes(model: Any, name: str, field: Any) -> bool:
    """Return whether a model reads a field under the name that it is stored under."""
    alias, config = field.validation_alias, model.model_config
    readable: set[Any] = set()
    if alias is None or config.get("populate_by_name") or config.get("validate_by_name"):
        readable.add(name)
    if config.get("validate_by_alias", True):
        readable |= {each for each in getattr(alias, "choices", [alias]) if isinstance(each, str)}
    return (field.serialization_alias or name) in readable


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
        except Exception as error:  # noqa: BLE001 -- as above
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
