"""Backoffs: they grow, stop at their cap, keep jitter within its range, and refuse invalid values."""

from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue import TaskTimeout
from django_pgqueue.declared import retry
from django_pgqueue.declared.retry import (
    MAX_DELAY_SECONDS,
    as_backoff,
    check_backoff,
    delay_after,
    exponential,
    fixed,
    takes_task_result,
)
from django_pgqueue.exceptions import TaskTimedOut, WorkerLost

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
def test_as_backoff_duration_has_the_jitter_of_the_default(delay):
    delays = {seconds_of(as_backoff(delay), attempt) for attempt in (1, 2, 100) for _ in range(50)}
    assert all(5 <= each <= 5 * 1.3 for each in delays)
    assert len(delays) > 100
    assert max(delays) - min(delays) > 0.5
    assert fixed(delay)(7, ValueError()) == 5
    assert seconds_of(as_backoff(0), 1) == 0


def test_exponential_full_jitter_spreads_over_the_whole_delay():
    backoff = exponential(100, cap=400, jitter="full")
    for attempt, longest in [(1, 100), (2, 200), (5, 400)]:
        delays = [seconds_of(backoff, attempt) for _ in range(300)]
        assert 0 <= min(delays) < 0.1 * longest
        assert 0.9 * longest < max(delays) <= longest


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
    "options",
    [
        *({"factor": 0.5}, {"base": -1}, {"cap": float("nan")}),
        *({"jitter": each} for each in (-0.1, 1.1, True, "half", None)),
    ],
)
def test_exponential_invalid_options_are_refused(options):
    with pytest.raises(ValueError, match=r"duration|factor|jitter must be"):
        exponential(**options)


# ------------------------------------------------------------------ the parameters of a backoff function


class OfAttempt:
    """A backoff that is an object."""

    def __call__(self, attempt, exception):
        return attempt


class OfResult:
    """The same with the parameters that Django plans."""

    def __call__(self, exception, task_result):
        return task_result.attempts


def of_attempt(attempt, exception):
    return attempt


def of_result(exception, task_result):
    return task_result.attempts


def of_both(factor, exception, task_result):
    return factor * task_result.attempts


@pytest.mark.parametrize(
    ("backoff", "takes"),
    [
        (of_attempt, False),
        (OfAttempt(), False),
        (lambda n, e: n, False),
        (lambda *args: args[0], False),
        (lambda attempt, exception, scale=1: attempt, False),
        (lambda attempt, exception, *, task_result=None: attempt, False),
        (max, False),
        (of_result, True),
        (OfResult(), True),
        (partial(of_both, 1), True),
        (lambda error, task_result: task_result.attempts, True),
        (lambda exception, task_result, scale=1: task_result.attempts, True),
    ],
    ids=range(12),
)
def test_takes_task_result_is_decided_by_the_second_parameter(backoff, takes):
    assert takes_task_result(backoff) is takes


@pytest.mark.parametrize(
    "backoff",
    [
        lambda: 1,
        lambda attempt: 1,
        lambda exception: 1,
        lambda a, b, c: 1,
        lambda attempt, *, exception: 1,
        lambda task_result, exception: 1,
        lambda exception, attempt: 1,
        lambda exception, result: 1,
    ],
    ids=range(8),
)
def test_backoff_with_other_parameters_is_refused(backoff):
    with pytest.raises(TypeError, match=r"must be \(attempt, exception\) or \(exception, task_result\), not \("):
        check_backoff(backoff)


def test_delay_after_passes_what_the_parameters_ask_for():
    seen = []
    error = ValueError()
    assert (
        delay_after(lambda exception, task_result: seen.append((exception, task_result)), 2, error, lambda: "r") is None
    )
    assert delay_after(lambda attempt, exception: seen.append((attempt, exception)), 2, error, lambda: 1 / 0) is None
    assert seen == [(error, "r"), (2, error)]


def test_delay_after_names_timeouts_and_lost_workers_like_results():
    seen: list[BaseException] = []
    for exception in (TaskTimeout("too long"), None):
        delay_after(lambda exception, task_result: seen.append(exception), 1, exception)
    timed_out, lost = seen
    assert isinstance(timed_out, TimeoutError)
    assert (type(timed_out), str(timed_out)) == (TaskTimedOut, "too long")
    assert isinstance(timed_out.__cause__, TaskTimeout)
    assert type(lost) is WorkerLost
