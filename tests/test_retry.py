"""Backoffs: they grow, stop at their cap, keep jitter within its range, and refuse invalid values."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue import retry
from django_pgqueue.retry import MAX_DELAY_SECONDS, as_backoff, delay_after, exponential, fixed

ATTEMPTS = st.integers(1, 1000)


def seconds_of(backoff, attempt) -> float:
    delay = delay_after(backoff, attempt, None)
    assert delay is not None
    return delay


@given(
    attempt=ATTEMPTS,
    base=st.floats(0, 3600),
    factor=st.floats(1, 100),
    cap=st.floats(0, 86400),
    jitter=st.floats(0, 1),
)
def test_exponential_delay_stays_within_its_range(attempt, base, factor, cap, jitter):
    delay = seconds_of(exponential(base, factor=factor, cap=cap, jitter=jitter), attempt)
    plain = exponential(base, factor=factor, cap=cap, jitter=0)
    assert 0 <= delay <= cap * (1 + jitter)
    assert seconds_of(plain, attempt) <= delay
    assert seconds_of(plain, attempt) <= seconds_of(plain, attempt + 1)


def test_default_backoff_doubles_and_lasts_three_hours():
    floors = [30 * 2**n for n in range(7)] + [3600, 3600, 3600]
    for attempt, floor in enumerate(floors, 1):
        delay = delay_after(retry.DEFAULT_BACKOFF, attempt, None)
        assert min(floor, 3600) <= delay <= 1.3 * min(floor, 3600)
    assert 2.9 * 3600 < sum(floors[:9]) < 3.2 * 3600


def test_default_backoff_jitter_differs_between_calls():
    assert len({retry.DEFAULT_BACKOFF(1, None) for _ in range(20)}) > 1


@pytest.mark.parametrize("delay", [5, 5.0, timedelta(seconds=5)])
def test_as_backoff_duration_is_fixed_without_jitter(delay):
    assert as_backoff(delay)(1, None) == as_backoff(delay)(100, None) == 5
    assert fixed(delay)(7, ValueError()) == 5


def test_as_backoff_accepts_none_and_functions():
    def own(attempt, exception):
        return None if isinstance(exception, KeyError) else timedelta(seconds=attempt)

    assert as_backoff(None) is retry.DEFAULT_BACKOFF
    assert as_backoff(own) is own
    assert delay_after(own, 3, ValueError()) == 3
    assert delay_after(own, 3, KeyError()) is None


def test_delay_after_excessive_delay_is_capped():
    assert delay_after(fixed(50 * 365 * 24 * 3600), 1, None) == MAX_DELAY_SECONDS


@pytest.mark.parametrize(("returned", "error"), [("soon", TypeError), (True, TypeError), (-1, ValueError)])
def test_delay_after_invalid_return_value_is_refused(returned, error):
    with pytest.raises(error, match="duration"):
        delay_after(lambda attempt, exception: returned, 1, None)


def test_delay_after_error_of_backoff_is_raised():
    def broken(attempt, exception):
        raise LookupError("its own bug")

    with pytest.raises(LookupError, match="its own bug"):
        delay_after(broken, 1, None)


@pytest.mark.parametrize(
    "options", [{"factor": 0.5}, {"jitter": -0.1}, {"jitter": 1.1}, {"base": -1}, {"cap": float("nan")}]
)
def test_exponential_invalid_options_are_refused(options):
    with pytest.raises(ValueError, match=r"duration|factor"):
        exponential(**options)
