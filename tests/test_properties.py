"""Pure functions with arbitrary input: backoffs, durations, arguments, and the text of errors."""

import math
from collections import UserDict
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_pgqueue.declared.retry import MAX_DELAY_SECONDS, delay_after, exponential
from django_pgqueue.encoding.serialization import encode_arguments, encode_result
from django_pgqueue.lifecycle import completions
from django_pgqueue.worker.execution import error_text
from tests import helpers

pytestmark = pytest.mark.slow

EXAMPLES = settings().max_examples // 2
PURE = settings(max_examples=EXAMPLES)
WIDE = st.text(st.characters(), max_size=300)
"""Any text, including NUL, lone surrogates and characters of four bytes."""
LONG = st.builds(lambda one, many, other: one + many * 50 + other, WIDE, st.text(st.characters(), max_size=20), WIDE)


def plain_delay(base: float, factor: float, cap: float, attempt: int) -> float:
    delay = delay_after(exponential(base, factor=factor, cap=cap, jitter=0), attempt, None)
    assert delay is not None
    return delay


# ------------------------------------------------------------------ backoffs


@PURE
@given(
    base=st.floats(0, 1e6),
    factor=st.floats(1, 1e6) | st.integers(1, 10**6),
    cap=st.floats(0, 1e9),
    attempt=st.integers(1, 40) | st.integers(1, 2**31),
)
@example(base=1.0, factor=1000, cap=1e9, attempt=3)
@example(base=0.0, factor=1e6, cap=1.0, attempt=2**31)
@example(base=1e-300, factor=2, cap=1.0, attempt=2**31)
def test_exponential_any_attempt_follows_the_formula(base, factor, cap, attempt):
    """The delay is `base * factor ** (attempt - 1)`, at most the cap. Logarithms avoid an overflow."""
    delay = plain_delay(base, factor, cap, attempt)
    most = min(cap, MAX_DELAY_SECONDS)
    assert 0 <= delay <= most
    assert delay <= plain_delay(base, factor, cap, attempt + 1)
    if base == 0 or cap == 0:
        assert delay == 0
    elif math.log(base) + (attempt - 1) * math.log(factor) > math.log(most) + 1e-6:
        assert delay == most
    else:
        assert math.isclose(delay, base * float(factor) ** (attempt - 1), rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.quick
@PURE
@given(attempt=st.integers(1, 2**31), jitter=st.floats(0, 1), base=st.floats(0, 1e4))
def test_exponential_jitter_adds_at_most_its_share(attempt, jitter, base):
    plain = plain_delay(base, 2, 3600, attempt)
    delay = delay_after(exponential(base, cap=3600, jitter=jitter), attempt, None)
    assert delay is not None
    assert plain <= delay <= plain * (1 + jitter) * (1 + 1e-12)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -1.0, 0.999])
def test_exponential_invalid_factor_is_refused(factor):
    with pytest.raises(ValueError, match="factor"):
        exponential(factor=factor)


@PURE
@given(st.floats() | st.timedeltas() | st.integers() | st.text() | st.none() | st.booleans())
def test_delay_after_any_return_value_is_valid_or_refused(returned):
    try:
        delay = delay_after(lambda attempt, exception: returned, 1, None)
    except (TypeError, ValueError) as refused:
        assert "duration" in str(refused)
    else:
        assert (delay is None) == (returned is None)
        assert delay is None or 0 <= delay <= MAX_DELAY_SECONDS


@PURE
@given(st.timedeltas(timedelta(0), timedelta(days=36500)))
def test_delay_after_any_timedelta_is_within_the_maximum(delay):
    assert 0 <= (delay_after(lambda attempt, exception: delay, 1, None) or 0) <= MAX_DELAY_SECONDS


# ------------------------------------------------------------------ the text of errors


@PURE
@given(text=WIDE | LONG, limit=st.integers(0, 2000))
@example(text="\x00\ud800" * 100, limit=40)
@example(text="\U0001f600" * 100, limit=101)
def test_storable_any_text_fits_the_limit_and_is_stable(text, limit):
    stored = error_text.storable(text, limit)
    assert "\x00" not in stored
    data = stored.encode()
    assert len(data) <= limit
    assert error_text.storable(stored, limit) == stored
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if len(clean.encode()) <= limit:
        assert stored == clean
    elif limit < error_text.MIN_CUT_BYTES:
        assert clean.startswith(stored)
    else:
        head, _, rest = stored.partition("\n[… ")
        assert clean.startswith(head)
        assert clean.endswith(rest.partition("…]\n")[2])


@settings(max_examples=EXAMPLES // 4)
@given(text=WIDE | LONG)
def test_error_text_of_any_exception_can_be_stored(engine, text):
    exception = type("Odd", (Exception,), {"__module__": text[:50], "__str__": lambda self: text})()
    written = error_text.class_path(exception), error_text.message(exception), error_text.traceback_text(exception)
    helpers.clear_tables(engine)
    helpers.make_job(engine)
    failed = helpers.failed(helpers.claim_one(engine).key, None)[0]._replace(
        exception_class=written[0], error=written[1], traceback=written[2]
    )
    [result] = completions.fail(engine, [failed]).values()
    assert result.status.value == "done"
    row = helpers.execution_row(engine, failed.key.execution_id)
    assert (row["exception_class"], row["error"], row["traceback"]) == written


# ------------------------------------------------------------------ arguments


class Liar(int):
    """An integer whose conversions return other values."""

    def __int__(self) -> int:
        return 7

    def __str__(self) -> str:
        return "\x00"

    __repr__ = __str__


class Shouting(str):
    def __str__(self) -> str:
        return "\x00"


class Endless(UserDict[str, Any]):
    """A mapping that contains itself at every depth."""

    def __getitem__(self, key: str) -> Any:
        return self


HOSTILE = st.builds(lambda: 10**4300) | st.sampled_from(
    [
        *(
            "a\x00b",
            "\ud800",
            "\udfff tail",
            math.nan,
            math.inf,
            -math.inf,
            b"x",
            bytearray(b"x"),
        ),
        *(
            memoryview(b"x"),
            {1, 2},
            1j,
            object(),
            {"\x00": 1},
            {"\ud800": 1},
            {(1, 2): 3},
            {math.nan: 1},
            {1: 1, "1": 2},
        ),
        *(Endless(a=1), iter(()), lambda: None, int, NotImplemented, ...),
    ]
)
SPOILT = st.recursive(
    HOSTILE,
    lambda inner: (
        st.lists(st.none() | inner, min_size=1, max_size=3).filter(lambda items: items != [None] * len(items))
        | st.dictionaries(st.text("abc", max_size=3) | st.integers(), inner, min_size=1, max_size=3)
        | st.tuples(st.just("fine"), inner)
    ),
    max_leaves=5,
)


@PURE
@given(value=SPOILT, by_name=st.booleans())
def test_encode_arguments_hostile_value_is_refused(value, by_name):
    args, kwargs = ([], {"extra": value}) if by_name else ([1, value], {})
    with pytest.raises((TypeError, ValueError)) as refused:
        encode_arguments(args, kwargs)
    message = str(refused.value)
    assert "argument 'extra'" in message if by_name else "argument 2" in message
    message.encode()  # the message can be logged
    with pytest.raises((TypeError, ValueError)):
        encode_result(value)


def test_encode_arguments_subclasses_become_plain_types():
    assert encode_arguments([Shouting("fine")], {}) == '{"args":["fine"],"kwargs":{}}'
    assert encode_arguments([{Shouting("fine"): Liar(3)}], {}) == '{"args":[{"fine":7}],"kwargs":{}}'


@PURE
@given(st.integers(1, 20), st.integers(1, 20))
def test_encode_arguments_cycle_of_any_length_is_refused(length, width):
    first: list[Any] = []
    last = first
    for _ in range(length):
        last.append([0] * width)
        last = last[-1]
    last.append(first)
    with pytest.raises(ValueError, match="nested"):
        encode_arguments([first], {})
