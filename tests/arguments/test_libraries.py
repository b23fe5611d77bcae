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

from django_pgqueue.arguments.annotations import Annotations
from django_pgqueue.arguments.converter import Mismatch
from django_pgqueue.arguments.rows import KEYS
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.serialization import encode_result

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
    one = Annotations().converter(annotation)
    assert one is not None
    assert one.decode(json.loads(encode_result(one.encode(value))), KEYS) == value


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


def test_pydantic_secret_with_a_serializer_comes_back():
    one, value = Annotations().converter(Revealed), Revealed(password=pydantic.SecretStr("x"))
    assert one.decode(one.encode(value), KEYS) == value


@pytest.mark.parametrize("annotation", [Item, Struct])
@pytest.mark.parametrize("stored", [{"number": "secret"}, [], None, "secret"])
def test_library_unreadable_value_is_refused_without_it(annotation, stored):
    with pytest.raises(Mismatch, match=rf"is stored as a value that {annotation.__name__} refuses") as refused:
        Annotations().converter(annotation).decode(stored, KEYS)
    assert "secret" not in str(refused.value)
