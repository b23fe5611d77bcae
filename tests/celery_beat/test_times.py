"""Crontabs and intervals of Celery as expressions: every expression comes due when beat would send the task."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_pgqueue.management import celery_times
from django_pgqueue.management.celery_times import CannotMove, numbers, times_of
from django_pgqueue.schedules import next_ticks

from .standins import Crontab, Every, Solar


def ticks_of_celery(crontab, start, count):
    """Yield the times at which all five fields match, as Celery's documentation of `crontab` says."""
    day, found = start.replace(hour=0, minute=0), 0
    while found < count:
        if (
            day.month in crontab.month_of_year
            and day.day in crontab.day_of_month
            and day.isoweekday() % 7 in crontab.day_of_week
        ):
            for hour in sorted(crontab.hour):
                for minute in sorted(crontab.minute):
                    tick = day.replace(hour=hour, minute=minute)
                    if tick > start:
                        found += 1
                        yield tick
        day += timedelta(days=1)


def some(low, high):
    """Return a strategy for the sets of a field, among them those that have a short form."""
    everything = set(range(low, high + 1))
    steps = st.integers(1, high).map(lambda step: set(range(low, high + 1, step)))
    spans = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda ends: set(range(min(ends), max(ends) + 1))
    )
    return st.one_of(st.just(everything), steps, spans, st.sets(st.integers(low, high), min_size=1, max_size=5))


@given(
    minute=some(0, 59),
    hour=some(0, 23),
    day_of_month=st.one_of(some(1, 28), st.sampled_from([set(range(8, 15)), set(range(1, 8)), set(range(22, 29))])),
    month_of_year=some(1, 12),
    day_of_week=some(0, 6),
)
def test_crontab_any_sets_come_due_when_celery_does(**fields):
    crontab = Crontab(**fields)
    try:
        times = times_of(crontab, "UTC")
    except CannotMove as reason:
        assert "must both match" in str(reason)
        assume(False)
    start = datetime(2026, 2, 27, 12, 30, tzinfo=UTC)
    ours = list(islice(next_ticks.ticks_after(times.expression, "UTC", start), 15))
    assert ours == list(islice(ticks_of_celery(crontab, start, 15), 15))


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ({}, "* * * * *"),
        ({"minute": {0}}, "0 * * * *"),
        ({"minute": {0, 15, 30, 45}}, "*/15 * * * *"),
        ({"minute": {30}, "hour": {7}, "day_of_week": {1, 2, 3, 4, 5}}, "30 7 * * 1-5"),
        ({"minute": {0}, "hour": {0, 12}, "day_of_month": {1}}, "0 0,12 1 * *"),
        ({"minute": {0}, "hour": {6}, "month_of_year": {1, 4, 7, 10}}, "0 6 * */3 *"),
        ({"minute": {0}, "hour": {9}, "day_of_month": set(range(1, 8)), "day_of_week": {1}}, "0 9 * * 1#1"),
        ({"minute": {0}, "hour": {9}, "day_of_month": set(range(22, 29)), "day_of_week": {1, 5}}, "0 9 * * 1#4,5#4"),
        ({"minute": {0}, "hour": {9}, "day_of_month": set(range(1, 32, 2)), "day_of_week": {1}}, "0 9 */2 * 1"),
    ],
)
def test_crontab_becomes_short_expression(fields, expression):
    assert times_of(Crontab(**fields), "Europe/Paris") == (expression, "Europe/Paris")


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("minute", "*/15", {0, 15, 30, 45}),
        ("minute", "1,13,30-35,50-59/2", {1, 13, *range(30, 36), 50, 52, 54, 56, 58}),
        ("minute", " 5, 10 ", {5, 10}),
        ("minute", "55-5/5", {55, 0, 5}),
        ("hour", "22-2", {22, 23, 0, 1, 2}),
        ("day_of_week", "mon-fri", {1, 2, 3, 4, 5}),
        ("day_of_week", "Sunday,SAT", {0, 6}),
        ("day_of_week", "fri-mon", {5, 6, 0, 1}),
        ("day_of_week", "*/2", {0, 2, 4, 6}),
        ("day_of_month", "*/10", {1, 11, 21, 31}),
        ("month_of_year", "*/3", {1, 4, 7, 10}),
        ("month_of_year", "nov-jan", {11, 12, 1}),
        ("month_of_year", "2-12/2", {2, 4, 6, 8, 10, 12}),
    ],
)
def test_numbers_of_text_follow_the_grammar_of_celery(field, text, expected):
    assert numbers(text, getattr(celery_times, field.upper().replace("_OF_YEAR", ""))) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("MINUTE", "60"),
        ("MINUTE", "5/10"),
        ("MINUTE", "*/0"),
        ("MINUTE", "*/x"),
        ("MINUTE", ""),
        ("MINUTE", "1,,2"),
        ("MINUTE", "-5"),
        ("MINUTE", "jan"),
        ("MINUTE", {61}),
        ("MINUTE", set()),
        ("MINUTE", None),
        ("DAY_OF_WEEK", "7"),
        ("DAY_OF_WEEK", "1#2"),
        ("DAY_OF_MONTH", "0"),
        ("DAY_OF_MONTH", "L"),
        ("MONTH", {"jan"}),
    ],
)
def test_numbers_outside_the_grammar_are_refused(field, value):
    with pytest.raises(CannotMove, match=getattr(celery_times, field).name):
        numbers(value, getattr(celery_times, field))


def test_numbers_of_a_single_number_are_that_number():
    assert numbers(7, celery_times.HOUR) == {7}


@pytest.mark.parametrize(
    ("schedule", "expression"),
    [
        (30, "every 30 seconds"),
        (90.0, "every 90 seconds"),
        (timedelta(minutes=5), "every 5 minutes"),
        (Every(timedelta(days=2)), "every 2 days"),
    ],
)
def test_interval_becomes_expression_without_zone(schedule, expression):
    assert times_of(schedule, None) == (expression, None)


class Clocked:
    clocked_time = "2030-01-01 00:00"


@pytest.mark.parametrize(
    ("schedule", "time_zone", "reason"),
    [
        (0.5, "UTC", "whole seconds"),
        (timedelta(days=400), "UTC", "366 days"),
        (Solar("sunset", 48.8, 2.3), "UTC", "a solar schedule has no equivalent"),
        (Clocked(), "UTC", "runs only once: .* 2030-01-01"),
        (None, "UTC", "unknown type: NoneType"),
        (Crontab(nowfun=datetime.now), "UTC", "nowfun="),
        (Crontab(), None, "pass --time-zone"),
        (Crontab(), "Mars/Base", "invalid time zone 'Mars/Base'"),
        (Crontab(day_of_month={30}, month_of_year={2}), "UTC", "never comes due|Bad day-of-month"),
        (Crontab(day_of_month={13}, day_of_week={5}), "UTC", "day_of_month 13 and day_of_week 5 must both match"),
    ],
)
def test_times_without_equivalent_are_refused_with_the_reason(schedule, time_zone, reason):
    with pytest.raises(CannotMove, match=reason):
        times_of(schedule, time_zone)
