"""The values that a job may carry: accepted values come back equal from PostgreSQL, and all others are refused.

"Equal" means after Django's own normalisation: mappings become dicts with string keys, sequences become lists, and
subclasses become their plain type. Floats, big integers and the order of keys are exact.
"""

import json
import math
from collections import OrderedDict, UserDict, deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from django_pgqueue.encoding.serialization import MAX_DEPTH, decode_arguments, encode_arguments, encode_result
from django_pgqueue.models import Worker
from tests import helpers
from tests.app.tasks import noop

pytestmark = pytest.mark.slow

EXAMPLES = settings().max_examples // 2
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**4000), 10**4000) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(TEXT, inner) | st.lists(inner).map(deque),
    max_leaves=20,
)
ANYTHING = st.recursive(
    SCALARS | st.text() | st.floats() | st.binary() | st.decimals() | st.dates() | st.sets(st.integers()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none() | st.floats(), inner),
    max_leaves=10,
)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 7


def normalised(value):
    if isinstance(value, dict):
        return {key: normalised(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [normalised(item) for item in value]
    return value


def identical(left, right):
    """Return whether two values are equal, also in their types and in the sign of zero."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(identical, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(identical(left[key], right[key]) for key in left)
    return left == right and (not isinstance(left, float) or math.copysign(1, left) == math.copysign(1, right))


@pytest.fixture
def stored(engine):
    """Return a function that encodes and inserts a call, and returns the arguments as a worker claims them."""

    def stored(args, kwargs):
        helpers.clear_tables(engine)
        helpers.make_job(engine, arguments=[encode_arguments(args, kwargs)])
        return decode_arguments(helpers.claim_one(engine).arguments)

    return stored


@settings(max_examples=EXAMPLES)
@given(args=st.lists(VALUES, max_size=3), kwargs=st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), VALUES))
def test_encode_arguments_accepted_call_comes_back_equal(stored, args, kwargs):
    for back, given_ in zip(stored(args, kwargs), (normalised(args), normalised(kwargs)), strict=True):
        assert identical(back, given_)


@settings(max_examples=EXAMPLES)
@given(value=ANYTHING)
def test_encode_arguments_any_value_is_stored_or_refused(stored, value):
    try:
        encode_arguments([value], {})
    except (TypeError, ValueError) as refused:
        assert not isinstance(refused, UnicodeError)
        assert "argument 1" in str(refused) or "bytes of JSON" in str(refused)
        assert ":" in str(refused)
    else:
        [back], _ = stored([value], {})
        assert json.loads(json.dumps(back)) == back


@pytest.mark.quick
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ((1, (2,)), [1, [2]]),
        (deque([1]), [1]),
        (range(3), [0, 1, 2]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (UserDict({"a": 1}), {"a": 1}),
        ({1: "a", None: "b", 1.5: "d"}, {"1": "a", "null": "b", "1.5": "d"}),
        ({True: "c", False: "e"}, {"true": "c", "false": "e"}),
        (Colour.RED, "red"),
        ({Colour.RED: Size.BIG}, {"red": 7}),
        (10**4000, 10**4000),
        (-0.0, -0.0),
        (1e308, 1e308),
        (5e-324, 5e-324),
        (1e16, 1e16),
        ("\x01\x7f\u2028\U0001f600", "\x01\x7f\u2028\U0001f600"),
    ],
)  # fmt: skip
def test_encode_arguments_normalises_as_django_does(stored, value, wanted):
    [back], _ = stored([value], {})
    assert identical(back, wanted)


class Explodes:
    def __repr__(self):
        raise RuntimeError


def nested(depth):
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


BAD = {
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), TypeError, "isoformat"),
    "date": (date(2026, 1, 1), TypeError, "isoformat"),
    "time": (time(1), TypeError, "isoformat"),
    "timedelta": (timedelta(1), TypeError, "total_seconds"),
    "Decimal": (Decimal(1), TypeError, "str"),
    "UUID": (UUID(int=1), TypeError, "str"),
    "bytes": (b"x", TypeError, "base64"),
    "bytearray": (bytearray(b"x"), TypeError, "base64"),
    "memoryview": (memoryview(b"x"), TypeError, "base64"),
    "set": ({1}, TypeError, "sorted"),
    "frozenset": (frozenset({1}), TypeError, "sorted"),
    "exception": (ValueError("x"), TypeError, "str"),
    "model": (Worker(pk=1), TypeError, "pk"),
    "object": (object(), TypeError, "plain"),
    "no repr": (Explodes(), TypeError, "plain"),
    "function": (noop, TypeError, "plain"),
    "generator": (iter("ab"), TypeError, "plain"),
    "complex": (1j, TypeError, "plain"),
    "nan": (math.nan, ValueError, "None or a string"),
    "infinity": (math.inf, ValueError, "None or a string"),
    "minus infinity": (-math.inf, ValueError, "None or a string"),
    "NUL": ("a\x00b", ValueError, "remove"),
    "NUL in a key": ({"a\x00b": 1}, ValueError, "remove"),
    "surrogate": ("\ud800", ValueError, "errors='replace'"),
    "surrogate in a key": ({"\ud800": 1}, ValueError, "errors='replace'"),
    "huge integer": (10**5000, ValueError, "hex"),
    "huge key": ({10**5000: 1}, ValueError, "hex"),
    "nan key": ({math.nan: 1}, ValueError, "string"),
    "tuple key": ({(1, 2): 1}, TypeError, "strings"),
    "keys that meet": ({1: "a", "1": "b"}, ValueError, "differ"),
    "too deep": (nested(MAX_DEPTH + 1), ValueError, "store"),
    "deep": (nested(100_000), ValueError, "store"),
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("place", ["positional", "named", "inside"])
@pytest.mark.django_db
def test_enqueue_unstorable_value_fails_before_any_query(django_assert_num_queries, kind, place):
    value, error, remedy = BAD[kind]
    args, kwargs, named = {
        "positional": ([1, value], {}, "argument 2"),
        "named": ([], {"extra": value}, "argument 'extra'"),
        "inside": ([], {"extra": {"list": [0, value]}}, "argument 'extra'['list'][1]"),
    }[place]
    with django_assert_num_queries(0), pytest.raises(error) as refused:
        noop.enqueue(*args, **kwargs)
    assert named in str(refused.value)
    assert remedy in str(refused.value)


def test_encode_arguments_cycle_is_too_deep():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        encode_arguments([loop], {})


def test_encode_arguments_deepest_value_comes_back(stored):
    assert stored([nested(MAX_DEPTH)], {}) == ([nested(MAX_DEPTH)], {})


@pytest.mark.parametrize("name", ["\x00", "\ud800"])
def test_encode_arguments_unstorable_keyword_is_refused(name):
    with pytest.raises(ValueError, match=r"remove|errors='replace'"):
        encode_arguments([], {name: 1})


@override_settings(PGQUEUE={"MAX_ARGUMENTS_BYTES": 100, "MAX_RESULT_BYTES": 50})
def test_encode_too_large_value_names_limit_and_setting():
    encode_arguments(["x" * 70], {})
    with pytest.raises(ValueError, match=r"MAX_ARGUMENTS_BYTES.*100.*pass its id"):
        encode_arguments(["x" * 100], {})
    with pytest.raises(ValueError, match="MAX_ARGUMENTS_BYTES"):
        encode_arguments(["é" * 45], {})
    with pytest.raises(ValueError, match=r"MAX_RESULT_BYTES.*50.*return its id"):
        encode_result("x" * 50)


def test_encode_result_error_names_the_return_value():
    assert encode_result({"a": (1,)}) == '{"a":[1]}'
    with pytest.raises(TypeError, match="the return value"):
        encode_result(object())


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "null", '{"args":[]}', '{"args":{},"kwargs":{}}', '{"args":[],"kwargs":[]}', "[" * 100_000]
)
def test_decode_arguments_wrong_shape_is_refused(text):
    with pytest.raises(ValueError, match="cannot be read"):
        decode_arguments(text)


def test_decode_arguments_excessive_integer_is_refused():
    with pytest.raises(ValueError, match="cannot be read"):
        decode_arguments('{"args":[' + "1" * 5000 + '],"kwargs":{}}')
