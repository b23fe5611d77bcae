"""Conversion of values by annotations: each value comes back equal, and each wrong value is refused."""

import json
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NewType, Optional, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from django_pgqueue.arguments.annotations import Annotations
from django_pgqueue.arguments.converter import Mismatch
from django_pgqueue.arguments.rows import KEYS
from django_pgqueue.encoding.serialization import encode_result
from django_pgqueue.exceptions import InvalidTask

from .types import (
    Alike,
    Checked,
    Colour,
    Kind,
    Line,
    Mode,
    NeedsMore,
    Options,
    Page,
    PlainOptions,
    Point,
    Receipt,
    Shape,
)

OrderId = NewType("OrderId", UUID)
JULY = datetime(2026, 7, 1, 12, 30, 15, 250, tzinfo=timezone(timedelta(hours=2)))
NAIVE = JULY.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
DAY = date(2026, 7, 1)
UUID_7 = UUID(int=7)
LINE = Line("a", Decimal("1.50"), Kind.CASH, (Line("b", Decimal("1E+3")),))


def converter(annotation):
    return Annotations().converter(annotation)


def is_same(value, other):
    """Return whether two values are equal and of one type, also inside. 1 == Decimal(1) == True for Python."""
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        types = {key: type(key) for key in value} == {key: type(key) for key in other}
        return types and all(is_same(value[key], other[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(is_same, value, other))
    return bool(value == other)


CASES = [
    (datetime, JULY, "2026-07-01T12:30:15.000250+02:00"),
    (datetime, NAIVE, "2026-07-01T00:00:00"),
    (date, DAY, "2026-07-01"),
    (time, time(9, 30), "09:30:00"),
    (timedelta, timedelta(days=1, hours=2, seconds=3.5), "P1DT02H00M03.500000S"),
    (timedelta, timedelta(seconds=-1), "-P0DT00H00M01S"),
    (Decimal, Decimal("1.10"), "1.10"),
    (Decimal, Decimal("1E+3"), "1E+3"),
    (UUID, UUID_7, "00000000-0000-0000-0000-000000000007"),
    (Path, Path("/srv/x"), "/srv/x"),
    (PurePosixPath, PurePosixPath("a/b"), "a/b"),
    (bytes, b"\x00\xff", "AP8="),
    (Kind, Kind.CARD, "card"),
    (Kind, Kind.CASH, 7),
    (Shape, Shape.FLAT, "FLAT"),
    (Mode, Mode.READ | Mode.WRITE, 3),
    (list[UUID], [UUID_7], [str(UUID_7)]),
    (Sequence[date], [DAY], ["2026-07-01"]),
    (Iterable[date], [DAY], ["2026-07-01"]),
    (tuple[date, ...], (DAY, DAY), ["2026-07-01", "2026-07-01"]),
    (tuple[date, int, Any], (DAY, 1, "x"), ["2026-07-01", 1, "x"]),
    (tuple[()], (), []),
    (tuple, (1, "a"), [1, "a"]),
    (set[int], {3, 1, 20}, [1, 3, 20]),
    (frozenset[Kind], frozenset({Kind.CARD, Kind.CASH}), ["card", 7]),
    (set, {"a"}, ["a"]),
    (dict[UUID, int], {UUID_7: 1}, {str(UUID_7): 1}),
    (dict[int, Decimal], {1: Decimal(2)}, {"1": "2"}),
    (dict[float, str], {0.5: "x"}, {"0.5": "x"}),
    (dict[date, str], {DAY: "x"}, {"2026-07-01": "x"}),
    (dict[Kind, int], {Kind.CASH: 1, Kind.CARD: 2}, {"7": 1, "card": 2}),
    (dict[bool, date], {True: DAY}, {"true": "2026-07-01"}),
    (dict[int, date], {True: DAY}, {"true": "2026-07-01"}),
    (dict[Mode, date], {Mode.READ | Mode.WRITE: DAY}, {"3": "2026-07-01"}),
    (dict[OrderId, int], {UUID_7: 1}, {str(UUID_7): 1}),
    (Mapping[str, date], {"a": DAY}, {"a": "2026-07-01"}),
    (date | None, None, None),
    (Optional[date], DAY, "2026-07-01"),  # noqa: UP045 -- the older way to write it
    (Union[int, date], 3, 3),  # noqa: UP007 -- as above
    (UUID | int | None, 3, 3),
    (UUID | Line, UUID_7, str(UUID_7)),
    (list[date] | date, [DAY], ["2026-07-01"]),
    (Annotated[date, "a note"], DAY, "2026-07-01"),
    (OrderId, UUID_7, str(UUID_7)),
    (Point, Point(DAY, 2), {"at": "2026-07-01", "level": 2}),
    (Options, {"until": DAY}, {"until": "2026-07-01"}),
    (Literal[Kind.CARD], Kind.CARD, "card"),
    (Page[date], Page(DAY, [DAY]), {"first": "2026-07-01", "items": ["2026-07-01"]}),
    (Page[Page[int]], Page(Page(1, []), []), {"first": {"first": 1, "items": []}, "items": []}),
    (
        Line,
        LINE,
        {
            "sku": "a",
            "price": "1.50",
            "kind": 7,
            "children": [{"sku": "b", "price": "1E+3", "kind": "card", "children": [], "total": "0"}],
            "total": "0",
        },
    ),
]


@pytest.mark.parametrize(("annotation", "value", "stored"), CASES, ids=[str(case[0]) for case in CASES])
def test_converter_value_is_stored_readable_and_comes_back(annotation, value, stored):
    one = converter(annotation)
    encoded = json.loads(encode_result(one.encode(value)))
    assert encoded == stored
    assert is_same(one.decode(encoded, KEYS), value)


# ------------------------------------------------------------------ any annotation, any value

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
zones = st.none() | st.just(UTC) | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
naive = st.datetimes(NAIVE.replace(year=2), NAIVE.replace(year=9998))
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    datetime: st.builds(lambda moment, zone: moment.replace(tzinfo=zone), naive, zones),
    date: st.dates(),
    time: st.builds(lambda moment, zone: moment.replace(tzinfo=zone), st.times(), zones),
    timedelta: st.timedeltas(),
    Decimal: st.decimals(allow_nan=False),
    UUID: st.uuids(),
    Path: texts.map(Path),
    bytes: st.binary(),
    Kind: st.sampled_from(Kind),
    Shape: st.sampled_from(Shape),
    Mode: st.sampled_from([Mode.READ, Mode.WRITE, Mode.READ | Mode.WRITE]),
    str: texts,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Line: st.builds(Line, texts, st.decimals(allow_nan=False), st.sampled_from(Kind)),
    Point: st.builds(Point, st.dates(), st.integers()),
    Options: st.fixed_dictionaries({"until": st.dates()}, optional={"note": texts}),
}
UNHASHABLE = {Options}
KEYS_OF_DICTS = (str, int, float, bool, UUID, date, Kind, Shape, Decimal, datetime, timedelta)


def containers(inner):
    """Return annotations of containers of these annotations, each with the strategy of its values."""

    def of(pair):
        annotation, values = pair
        made = [
            (list[annotation], st.lists(values, max_size=3)),
            (tuple[annotation, ...], st.lists(values, max_size=3).map(tuple)),
            (tuple[annotation, int], st.tuples(values, st.integers())),
            (annotation | None, st.none() | values),
            *((dict[key, annotation], st.dictionaries(VALUES[key], values, max_size=3)) for key in KEYS_OF_DICTS),
        ]
        if annotation in VALUES and annotation not in UNHASHABLE:
            made.append((set[annotation], st.frozensets(values, max_size=3).map(set)))
            made.append((frozenset[annotation], st.frozensets(values, max_size=3)))
        return st.sampled_from(made)

    return inner.flatmap(of)


annotations = st.recursive(st.sampled_from(list(VALUES.items())), containers, max_leaves=3)


@pytest.mark.promise("typed-values-come-back")
@given(data=st.data())
@pytest.mark.django_db
def test_converter_any_value_comes_back_equal_from_postgres(through_postgres, data):
    annotation, values = data.draw(annotations)
    value = data.draw(values)
    one = converter(annotation)
    stored = through_postgres(encode_result(one.encode(value)))
    assert is_same(one.decode(stored, KEYS), value)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=3) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@pytest.mark.promise("typed-misfit-refused")
@given(data=st.data(), value=junk)
def test_converter_any_junk_raises_only_mismatch_without_the_value(data, value):
    """Rows can be written by hand, and callers can pass anything."""
    annotation, _ = data.draw(annotations)
    one = converter(annotation)
    for convert in (one.encode, lambda stored: one.decode(stored, KEYS)):
        try:
            convert(value)
        except Mismatch as refused:
            message = refused.message("argument 'x'")
            assert message.startswith("argument 'x'")
            if isinstance(value, str) and len(value) > 12:
                assert value not in message


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (UUID, "7", "must be UUID, not str"),
        (datetime, DAY, "must be datetime, not date"),
        (date, JULY, "must be date, not datetime"),
        (Decimal, 1.5, "must be Decimal, not float"),
        (Decimal, 1, "must be Decimal, not int"),
        (bytes, bytearray(b"x"), "must be bytes, not bytearray"),
        (Path, "x", "must be Path, not str"),
        (Kind, "card", "must be Kind, not str"),
        (Colour, "blue", "must be Colour, not str"),
        (list[UUID], UUID_7, "must be list[UUID], not UUID"),
        (list[UUID], "7", "must be list[UUID], not str"),
        (list[UUID], [UUID_7, 8], "[1] must be UUID, not int"),
        (tuple[date, int], (DAY,), "must have 2 items, not 1"),
        (tuple[date, int], (DAY, "x"), "[1] must be int, not str"),
        (set[date], [DAY], "must be set[date], not list"),
        (set[date], {7}, "[…] must be date, not int"),
        (dict[UUID, date], {"secret": DAY}, "has a key that must be UUID, not str"),
        (dict[str, date], {"secret": 7}, "[…] must be date, not int"),
        (dict[float, date], {1: DAY, 1.5: 7}, "[…] must be date, not int"),
        (date | None, 7, "must be date | None, not int"),
        (UUID | int, "x", "must be UUID | int, not str"),
        (Line, {"sku": "a", "price": "1"}, "must be Line, not dict"),
        (Line, Line("a", 7), ".price must be Decimal, not int"),  # type: ignore[arg-type]  # what is tested
        (list[Line], [Line(7, Decimal(1))], "[0].sku must be str, not int"),  # type: ignore[arg-type]  # as above
        (Options, {}, "has no key 'until', which Options requires"),
        (Options, {"until": DAY, "other": 1}, "has a key that Options does not have"),
        (tuple[date, float], (DAY, "x"), "[1] must be float, not str"),
        (tuple[date, Literal["a", "b"]], (DAY, "secret"), "[1] must be one of Literal['a', 'b']"),
    ],
    ids=str,
)
def test_converter_wrong_value_is_refused_with_both_types(annotation, value, problem):
    with pytest.raises(Mismatch) as refused:
        converter(annotation).encode(value)
    assert refused.value.message("").strip() == problem


def test_converter_accepts_what_type_checkers_accept():
    assert converter(tuple[date, float]).encode((DAY, 1)) == ["2026-07-01", 1]
    assert converter(tuple[date, int]).encode((DAY, True)) == ["2026-07-01", True]
    assert converter(Colour).encode("red") == "red"


def test_dataclass_subclass_is_refused_because_fields_would_be_lost():
    @dataclass(frozen=True)
    class More(Line):
        extra: int = 0

    with pytest.raises(Mismatch, match="must be Line, not"):
        converter(Line).encode(More("a", Decimal(1)))


@pytest.mark.parametrize(
    ("annotation", "stored"),
    [
        (UUID, "secret"),
        (UUID, 7),
        (datetime, "secret"),
        (timedelta, "secret"),
        (timedelta, True),
        (Decimal, "secret"),
        (bytes, "%%%"),
        (Kind, "secret"),
        (Kind, []),
        (Shape, "secret"),
        (list[date], {}),
        (tuple[date, int], ["2026-07-01"]),
        (set[Any], [[]]),
        (dict[int, str], {"secret": ""}),
        (dict[int, str], {"[]": ""}),
        (dict[int, str], {"1.5": ""}),
        (dict[UUID, str], []),
        (UUID | int, []),
        (Line, []),
        (Line, {"sku": "a"}),
        (Line, {"sku": "a", "price": "1", "secrets": 1}),
        (Checked, {"day": "1999-01-01"}),
        (Point, []),
    ],
    ids=str,
)
def test_converter_unreadable_stored_value_is_refused_without_it(annotation, stored):
    with pytest.raises(Mismatch) as refused:
        converter(annotation).decode(stored, KEYS)
    assert "secret" not in refused.value.message("").replace("'secrets'", "")


# ------------------------------------------------------------------ values that earlier code has stored


@pytest.mark.parametrize(
    ("annotation", "stored", "value"),
    [
        (datetime, "2026-07-01T12:00:00Z", datetime(2026, 7, 1, 12, tzinfo=UTC)),
        (timedelta, 90, timedelta(seconds=90)),
        (timedelta, 1.5, timedelta(seconds=1.5)),
        (Decimal, 3, Decimal(3)),
        (Decimal, 9.99, Decimal("9.99")),
        (Decimal | None, 9.99, Decimal("9.99")),
        (Kind, "CARD", Kind.CARD),
        (Point, ["2026-07-01"], Point(DAY)),
        (Line, {"sku": "a", "price": "1"}, Line("a", Decimal(1))),
        (Options, {"until": "2026-07-01"}, {"until": DAY}),
    ],
    ids=str,
)
def test_converter_reads_what_earlier_code_stored(annotation, stored, value):
    assert is_same(converter(annotation).decode(stored, KEYS), value)


def test_time_with_a_named_zone_is_refused():
    """It has no offset without a date, so it would come back without its time zone."""
    with pytest.raises(Mismatch, match="no fixed offset"):
        converter(time).encode(time(9, tzinfo=ZoneInfo("Europe/Paris")))


@pytest.mark.parametrize("plain", [list[int], dict[str, int], list[int] | None, PlainOptions], ids=str)
def test_plain_part_of_a_stored_value_is_not_checked(plain):
    """An old job must not fail because of an annotation that converts nothing."""
    assert converter(tuple[date, plain]).decode(["2026-07-01", "other"], KEYS) == (DAY, "other")


def test_dataclass_field_without_init_keeps_its_value():
    line = Line("a", Decimal(1))
    object.__setattr__(line, "total", Decimal(9))
    one = converter(Line)
    assert one.decode(one.encode(line), KEYS).total == Decimal(9)


# ------------------------------------------------------------------ annotations


@pytest.mark.parametrize(
    "annotation",
    [
        *(
            int,
            str,
            float,
            bool,
            None,
            dict,
            list,
            dict[str, Any],
            list[int],
            list[dict[str, list[int]]],
            Sequence[str],
        ),
        *(int | None, int | str, Literal["a", 1], list[int] | None, dict[str, int] | list[int], PlainOptions),
        *(Any, object, typing.TypeVar("T"), BaseException, list[BaseException], typing.Callable[..., int]),
        *(list[int] | list[str], dict[str, int] | PlainOptions, dict[int | str, str], dict[str | None, int]),
    ],
    ids=str,
)
def test_annotation_of_plain_json_converts_nothing(annotation):
    one = converter(annotation)
    assert one is None or not one.converts


@pytest.mark.parametrize(
    ("annotation", "part"),
    [
        (UUID | str, "look alike"),
        (datetime | date, "look alike"),
        (Decimal | UUID | None, "look alike"),
        (Line | Receipt, "look alike"),
        (list[UUID] | list[int], "look alike"),
        (dict[str, UUID] | Line, "look alike"),
        (Kind | int, "look alike"),
        (UUID | BaseException, "look alike"),
        (dict[tuple[int, int], str], "keys"),
        (dict[Alike, str], "same key"),
        (dict[UUID | None, str], "keys"),
        (NeedsMore, "salt"),
        (dict[Literal[1, 2], date], "keys"),
        (dict[Literal["a", None], date], "keys"),
    ],
    ids=str,
)
def test_annotation_that_cannot_be_read_back_is_refused(annotation, part):
    with pytest.raises(InvalidTask, match=part):
        converter(annotation)


MaybeDay = TypeAliasType("MaybeDay", date | None)
Item = TypeVar("Item")
Pair = TypeAliasType("Pair", tuple[Item, Item], type_params=(Item,))


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (MaybeDay, DAY, "2026-07-01"),
        (MaybeDay | None, None, None),
        (list[MaybeDay], [DAY, None], ["2026-07-01", None]),
        (Pair[date], (DAY, DAY), ["2026-07-01", "2026-07-01"]),
    ],
    ids=str,
)
def test_type_alias_stands_for_its_type(annotation, value, stored):
    one = converter(annotation)
    assert one.encode(value) == stored
    assert one.decode(stored, KEYS) == value


STATEMENTS = """
type Day = date
type Days[T] = dict[T, Day]
type Json = dict[str, Json] | list[Json] | str | int | None
type Tree = list[Tree] | UUID
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in Python 3.12")
def test_type_statement_stands_for_its_type():
    names: dict[str, Any] = {"date": date, "UUID": UUID}
    exec(STATEMENTS, names)  # noqa: S102 -- Python 3.11 cannot parse it
    assert converter(names["Days"][UUID]).encode({UUID_7: DAY}) == {str(UUID_7): "2026-07-01"}
    plain = converter(names["Json"])
    assert not plain.converts
    assert plain.encode({"a": [1, None]}) == {"a": [1, None]}
    with pytest.raises(InvalidTask, match="contains itself"):
        converter(names["Tree"])


def test_union_with_any_stays_plain():
    assert converter(UUID | Any) is None


@dataclass
class Strict:
    """A dataclass that refuses its value with an error of its own."""

    at: date

    def __post_init__(self):
        if self.at.year < 2000:
            raise ValidationError(f"{self.at} is too old")


def test_constructor_that_raises_any_error_refuses_the_stored_value():
    with pytest.raises(Mismatch, match="is refused by Strict with ValidationError") as refused:
        Annotations().converter(Strict).decode({"at": "1999-01-01"}, KEYS)
    assert "1999" not in str(refused.value)


def test_unknown_key_of_a_typed_dict_is_not_shown():
    converter = Annotations().converter(Options)
    with pytest.raises(Mismatch) as refused:
        converter.encode({"until": date(2026, 7, 1), "secret-4111": 1})
    assert "4111" not in str(refused.value)
    with pytest.raises(Mismatch) as refused:
        converter.decode({"until": "2026-07-01", "secret-4111": 1}, KEYS)
    assert "4111" not in str(refused.value)


def test_decimal_nan_is_stored_as_text():
    one = converter(Decimal)
    assert one.decode(one.encode(Decimal("NaN")), KEYS).is_nan()
