"""Backoffs are pure functions: they grow, stop at their cap, jitter inside their band, and say what is wrong."""

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
def test_an_exponential_backoff_stays_in_its_band(attempt, base, factor, cap, jitter):
    delay = seconds_of(exponential(base, factor=factor, cap=cap, jitter=jitter), attempt)
    plain = exponential(base, factor=factor, cap=cap, jitter=0)
    assert 0 <= delay <= cap * (1 + jitter)
    assert seconds_of(plain, attempt) <= delay
    assert seconds_of(plain, attempt) <= seconds_of(plain, attempt + 1)


def test_the_default_doubles_from_half_a_minute_to_an_hour_and_lasts_three_hours():
    floors = [30 * 2**n for n in range(7)] + [3600, 3600, 3600]
    for attempt, floor in enumerate(floors, 1):
        delay = delay_after(retry.DEFAULT_BACKOFF, attempt, None)
        assert min(floor, 3600) <= delay <= 1.3 * min(floor, 3600)
    assert 2.9 * 3600 < sum(floors[:9]) < 3.2 * 3600


def test_jitter_differs_between_jobs():
    assert len({retry.DEFAULT_BACKOFF(1, None) for _ in range(20)}) > 1


@pytest.mark.parametrize("delay", [5, 5.0, timedelta(seconds=5)])
def test_a_duration_is_a_fixed_backoff_without_jitter(delay):
    assert as_backoff(delay)(1, None) == as_backoff(delay)(100, None) == 5
    assert fixed(delay)(7, ValueError()) == 5


def test_none_is_the_default_and_a_function_is_itself():
    def own(attempt, exception):
        return None if isinstance(exception, KeyError) else timedelta(seconds=attempt)

    assert as_backoff(None) is retry.DEFAULT_BACKOFF
    assert as_backoff(own) is own
    assert delay_after(own, 3, ValueError()) == 3
    assert delay_after(own, 3, KeyError()) is None


def test_a_delay_of_centuries_is_cut():
    assert delay_after(fixed(50 * 365 * 24 * 3600), 1, None) == MAX_DELAY_SECONDS


@pytest.mark.parametrize(("returned", "error"), [("soon", TypeError), (True, TypeError), (-1, ValueError)])
def test_a_function_that_returns_no_duration_is_told(returned, error):
    with pytest.raises(error, match="duration"):
        delay_after(lambda attempt, exception: returned, 1, None)


def test_what_a_function_raises_passes_through():
    def broken(attempt, exception):
        raise LookupError("its own bug")

    with pytest.raises(LookupError, match="its own bug"):
        delay_after(broken, 1, None)


@pytest.mark.parametrize(
    "options", [{"factor": 0.5}, {"jitter": -0.1}, {"jitter": 1.1}, {"base": -1}, {"cap": float("nan")}]
)
def test_an_impossible_exponential_is_refused_at_once(options):
    with pytest.raises(ValueError, match=r"duration|factor"):
        exponential(**options)
