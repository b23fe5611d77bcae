"""The types that the tests annotate arguments with."""

import enum
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Generic, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

Item = TypeVar("Item")


class Kind(enum.Enum):
    """An enum that is stored by value."""

    CARD = "card"
    CASH = 7


class Shape(enum.Enum):
    """An enum that is stored by name, because JSON cannot represent the values."""

    ROUND = object()
    FLAT = (1, 2)


class Alike(enum.Enum):
    """An enum whose values are the same as keys of an object."""

    NUMBER = 1
    TEXT = "1"


class Colour(enum.StrEnum):
    """An enum whose members are strings."""

    RED = "red"


class Mode(enum.Flag):
    """An enum with combinations."""

    READ = 1
    WRITE = 2


class Point(NamedTuple):
    """A named tuple."""

    at: date
    level: int = 0


class Options(TypedDict):
    """A typed dict with a value to convert."""

    until: date
    note: NotRequired[str]


class PlainOptions(TypedDict):
    """A typed dict of plain JSON values."""

    note: str


@dataclass(frozen=True)
class Line:
    """A dataclass that contains itself."""

    sku: str
    price: Decimal
    kind: Kind = Kind.CARD
    children: "tuple[Line, ...]" = ()
    total: Decimal = field(init=False, default=Decimal(0))


@dataclass
class Page(Generic[Item]):
    """A generic dataclass."""

    first: Item
    items: list[Item]


@dataclass
class Receipt:
    """A dataclass in results."""

    number: UUID
    issued_at: datetime
    lines: list[Line]


@dataclass
class Checked:
    """A dataclass whose constructor refuses a value."""

    day: date

    def __post_init__(self):
        if self.day.year < 2000:
            raise ValueError("secret")


@dataclass
class NeedsMore:
    """A dataclass that cannot be created again from its fields."""

    day: date
    salt: InitVar[str]
