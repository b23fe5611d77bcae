"""Pydantic's models and msgspec's structs as arguments and in dataclasses."""

import json
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Generic, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from django.core.exceptions import ValidationError

from django_pgqueue.arguments.annotations import Annotations
from django_pgqueue.arguments.converter import Mismatch
from django_pgqueue.arguments.rows import KEYS
from django_pgqueue.encoding.serialization import encode_result
from django_pgqueue.exceptions import InvalidTask

T = TypeVar("T")


class Item(pydantic.BaseModel):
    """A model with types that JSON does not have, and with an alias."""

    number: UUID
    price: Decimal = pydantic.Field(alias="unitPrice", gt=0)
    tags: set[str] = set()
    by_day: dict[date, tuple[int, bytes]] = {}


class Strict(pydantic.BaseModel):
    """A model that accepts no text for a date, except in JSON."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True)
    at: datetime


class Page(pydantic.BaseModel, Generic[T]):
    """A generic model."""

    items: list[T]


class Numbers(pydantic.RootModel[list[int]]):
    """A model that is an array in JSON."""


class Struct(msgspec.Struct, frozen=True):
    """A struct with types that JSON does not have."""

    number: UUID
    by_number: dict[int, Decimal]
    tags: frozenset[str] = frozenset()


class Row(msgspec.Struct, array_like=True):
    """A struct that is an array in JSON."""

    at: date


@dataclass
class Both:
    """A dataclass with both."""

    item: Item
    struct: Struct | None


@pydantic.dataclasses.dataclass
class Checked:
    """A dataclass that pydantic checks."""

    at: date
    count: int = 0


ITEM = Item(number=UUID(int=7), unitPrice=Decimal("1.50"), tags={"a"}, by_day={date(2026, 7, 1): (1, b"x")})
STRUCT = Struct(UUID(int=7), {1: Decimal("1.50")}, frozenset({"a"}))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Item, ITEM),
        (Strict, Strict(at=datetime.fromisoformat("2026-07-01T00:00:00+00:00"))),
        (Page[Item], Page[Item](items=[ITEM])),
        (Numbers, Numbers([1, 2])),
        (list[Item] | None, [ITEM]),
        (Struct, STRUCT),
        (Row, Row(date(2026, 7, 1))),
        (Both, Both(ITEM, STRUCT)),
        (Both, Both(ITEM, None)),
        (Checked, Checked(date(2026, 7, 1), 3)),
    ],
    ids=lambda each: getattr(each, "__name__", "value"),
)
def test_library_value_comes_back_equal(annotation, value):
    converter = Annotations().converter(annotation)
    assert converter is not None
    assert converter.decode(json.loads(encode_result(converter.encode(value))), KEYS) == value


def test_library_value_is_readable_json():
    assert Annotations().converter(Item).encode(ITEM) == {
        "number": str(UUID(int=7)),
        "unitPrice": "1.50",
        "tags": ["a"],
        "by_day": {"2026-07-01": [1, "x"]},
    }
    assert Annotations().converter(Struct).encode(STRUCT)["by_number"] == {"1": "1.50"}


class More(Item):
    """A model whose field would be lost."""

    extra: int = 0


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(Item, STRUCT), (Struct, ITEM), (Item, {"number": 7}), (Item, More(number=UUID(int=7), unitPrice=Decimal(1)))],
)
def test_library_other_class_is_refused(annotation, value):
    with pytest.raises(Mismatch, match=rf"must be {annotation.__name__}, not {type(value).__name__}"):
        Annotations().converter(annotation).encode(value)


class Stock(pydantic.BaseModel):
    """A model with another one."""

    item: Item


class AnyStock(pydantic.BaseModel):
    """A model that names both classes of its field."""

    item: More | Item


@pytest.mark.parametrize(("model", "kept"), [(Stock, False), (AnyStock, True)])
def test_pydantic_keeps_fields_of_a_nested_subclass_if_named(model, kept):
    converter, item = Annotations().converter(model), More(number=UUID(int=7), unitPrice=Decimal(1), extra=5)
    decoded = converter.decode(converter.encode(model(item=item)), KEYS)
    assert (getattr(decoded.item, "extra", None) == 5) is kept


class Login(pydantic.BaseModel):
    """A model with a secret."""

    passwords: list[pydantic.SecretStr] | None = None


class Account(pydantic.BaseModel):
    """A model with a secret in another one, and with itself."""

    login: Login
    parents: list["Account"] = []


class Revealed(pydantic.BaseModel):
    """A model that stores its secret."""

    password: pydantic.SecretStr

    @pydantic.field_serializer("password", when_used="json")
    def reveal(self, value: pydantic.SecretStr) -> str:
        """Return the secret."""
        return value.get_secret_value()


@pytest.mark.parametrize("annotation", [Login, Account])
def test_pydantic_secret_that_would_be_masked_is_refused(annotation):
    with pytest.raises(InvalidTask, match=r"the secret Login\.passwords as asterisks"):
        Annotations().converter(annotation)


class Dated(Login):
    """A model that serializes another field than its secret."""

    at: int

    @pydantic.field_serializer("at")
    def number(self, value: int) -> int:
        """Return the number."""
        return value


class Outer(pydantic.BaseModel):
    """A model that serializes one field, and has a secret in another one."""

    at: int
    login: Login

    @pydantic.field_serializer("at")
    def number(self, value: int) -> int:
        """Return the number."""
        return value


@pytest.mark.parametrize(("annotation", "field"), [(Dated, r"Dated\.passwords"), (Outer, r"Login\.passwords")])
def test_pydantic_serializer_of_other_field_masks_the_secret(annotation, field):
    with pytest.raises(InvalidTask, match=rf"the secret {field} as asterisks"):
        Annotations().converter(annotation)


class AllRevealed(pydantic.BaseModel):
    """A model that serializes all of its fields."""

    password: pydantic.SecretStr

    @pydantic.field_serializer("*")
    def reveal(self, value: pydantic.SecretStr) -> str:
        """Return the secret."""
        return value.get_secret_value()


class OwnDocument(pydantic.BaseModel):
    """A model that serializes itself."""

    password: pydantic.SecretStr

    @pydantic.model_serializer
    def document(self) -> dict[str, str]:
        """Return the secret."""
        return {"password": self.password.get_secret_value()}


@pytest.mark.parametrize("model", [AllRevealed, OwnDocument])
def test_pydantic_model_that_serializes_all_comes_back(model):
    converter, value = Annotations().converter(model), model(password=pydantic.SecretStr("x"))
    assert converter.decode(converter.encode(value), KEYS) == value


class Read(pydantic.BaseModel):
    """A model that reads a field under another name."""

    number: int = pydantic.Field(validation_alias="X")


class Written(pydantic.BaseModel):
    """A model that writes a field under another name, and has a default, so that the value would be lost."""

    number: int = pydantic.Field(1, serialization_alias="X")


class Placed(pydantic.BaseModel):
    """A model that reads a field from a place in another one."""

    number: int = pydantic.Field(validation_alias=pydantic.AliasPath("X", 0))


class Nested(pydantic.BaseModel):
    """A model with such a model."""

    parts: list[Read]


@pytest.mark.parametrize(
    ("annotation", "field"),
    [(Read, "Read.number"), (Written, "Written.number"), (Placed, "Placed.number"), (Nested, "Read.number")],
)
def test_pydantic_field_with_two_names_is_refused(annotation, field):
    with pytest.raises(InvalidTask, match=rf"^{field} is not read under the name"):
        Annotations().converter(annotation)


class Hidden(pydantic.BaseModel):
    """A model that omits a field which it needs."""

    number: int = pydantic.Field(exclude=True)


def test_pydantic_required_field_that_is_excluded_is_refused():
    with pytest.raises(InvalidTask, match=r"^Hidden\.number is required, but pydantic does not store it"):
        Annotations().converter(Hidden)


class ByName(pydantic.BaseModel):
    """A model that reads its field under both names."""

    model_config = pydantic.ConfigDict(populate_by_name=True)
    number: int = pydantic.Field(validation_alias="X")


class OfChoices(pydantic.BaseModel):
    """A model that reads its field under several names."""

    number: int = pydantic.Field(validation_alias=pydantic.AliasChoices("X", "number"))


class Computed(pydantic.BaseModel):
    """A model with a computed field, which it refuses to read, and with JSON in JSON."""

    model_config = pydantic.ConfigDict(extra="forbid")
    numbers: pydantic.Json[list[int]]

    @pydantic.computed_field  # type: ignore[prop-decorator]  # pydantic supports it
    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(self.numbers)


@pytest.mark.parametrize(
    "value",
    [
        ByName.model_validate({"X": 1}),
        OfChoices.model_validate({"X": 1}),
        Computed.model_validate({"numbers": "[1, 2]"}),
    ],
    ids=repr,
)
def test_pydantic_model_with_unusual_fields_comes_back(value):
    converter = Annotations().converter(type(value))
    assert converter.decode(json.loads(encode_result(converter.encode(value))), KEYS) == value


def test_pydantic_changed_field_is_refused_without_the_value(recwarn):
    converter, value = Annotations().converter(Numbers), Numbers([1])
    value.root = ["4111-secret"]
    with pytest.raises(Mismatch, match="cannot be encoded by pydantic: PydanticSerializationError") as refused:
        converter.encode(value)
    assert "4111" not in str(refused.value)
    assert not [each for each in recwarn if "4111" in str(each.message)]


def test_pydantic_secret_with_a_serializer_comes_back():
    converter, value = Annotations().converter(Revealed), Revealed(password=pydantic.SecretStr("x"))
    assert converter.decode(converter.encode(value), KEYS) == value


class Validated(pydantic.BaseModel):
    """A model whose validator raises an error that pydantic does not know."""

    number: int

    @pydantic.field_validator("number")
    def validate_number(cls, value: int) -> int:
        """Refuse each value."""
        raise ValidationError("secret")


class ValidatedStruct(msgspec.Struct):
    """A struct that raises an error that msgspec does not know."""

    number: int

    def __post_init__(self) -> None:
        """Refuse each value."""
        raise ValidationError("secret")


@pytest.mark.parametrize("annotation", [Validated, ValidatedStruct])
def test_library_any_error_of_a_validator_refuses_the_value(annotation):
    with pytest.raises(Mismatch, match=r"refuses with ValidationError$"):
        Annotations().converter(annotation).decode({"number": 1}, KEYS)


@pytest.mark.parametrize("annotation", [Item, Struct])
@pytest.mark.parametrize("stored", [{"number": "secret"}, [], None, "secret"])
def test_library_unreadable_value_is_refused_without_it(annotation, stored):
    with pytest.raises(Mismatch, match=rf"is stored as a value that {annotation.__name__} refuses") as refused:
        Annotations().converter(annotation).decode(stored, KEYS)
    assert "secret" not in str(refused.value)
