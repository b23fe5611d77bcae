"""When a schedule is due: cron expressions, intervals, and days on which the clock changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_pgqueue.schedules import expressions

pytestmark = pytest.mark.slow

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # its clock changed at midnight
    "Africa/Casablanca",  # two more changes a year, around Ramadan
    "Australia/Lord_Howe",  # changes by half an hour
    "Asia/Beirut",
    "Pacific/Apia",  # skipped a day in 2011
    "Asia/Kathmandu",
]


def ticks(expression, zone, start, count):
    return list(islice(expressions.ticks_after(expression, zone, start), count))


def local(zone, *fields):
    return datetime(*fields, tzinfo=ZoneInfo(zone)).astimezone(UTC)


# ------------------------------------------------------------------ clock changes


def test_ticks_daily_job_in_spring_gap_runs_right_after_it():
    start = local("Europe/Berlin", 2026, 3, 28, 12)
    assert ticks("30 2 * * *", "Europe/Berlin", start, 2) == [
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),  # 3:00 in Berlin, where there is no 2:30 on that day
        local("Europe/Berlin", 2026, 3, 30, 2, 30),
    ]


def test_ticks_daily_job_in_repeated_hour_runs_once():
    start = local("Europe/Berlin", 2026, 10, 24, 12)
    assert ticks("30 2 * * *", "Europe/Berlin", start, 2) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        local("Europe/Berlin", 2026, 10, 26, 2, 30),
    ]


@pytest.mark.parametrize("minutes", [31, 59, 61, 75, 91, 119])
def test_next_after_start_in_repeated_hour_is_the_next_day(minutes):
    """A worker can start in the repeated hour, or a definition can change in it."""
    begun = datetime(2026, 10, 25, tzinfo=UTC) + timedelta(minutes=minutes)
    assert expressions.next_after("30 2 * * *", "Europe/Berlin", begun) == local("Europe/Berlin", 2026, 10, 26, 2, 30)


def test_ticks_all_day_expression_follows_elapsed_time():
    start = local("Europe/Berlin", 2026, 10, 25, 1)
    found = ticks("*/15 * * * *", "Europe/Berlin", start, 20)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=15)}


@pytest.mark.quick
@pytest.mark.promise("tick-clock-change-days")
@given(
    zone=st.sampled_from(ZONES), day=st.dates(date(1990, 1, 1), date(2037, 12, 1)),
    hour=st.integers(0, 23), minute=st.integers(0, 59),
)  # fmt: skip
@example(zone="America/Sao_Paulo", day=date(2018, 11, 3), hour=0, minute=0)
@example(zone="Australia/Lord_Howe", day=date(2026, 4, 4), hour=1, minute=45)
@example(zone="Europe/Berlin", day=date(2026, 10, 24), hour=2, minute=0)
def test_ticks_daily_job_runs_once_on_each_existing_day(zone, day, hour, minute):
    assume(zone != "Pacific/Apia" or abs(day - date(2011, 12, 30)) > timedelta(days=6))
    start = local(zone, day.year, day.month, day.day, 12)
    found = ticks(f"{minute} {hour} * * *", zone, start, 5)
    days = [tick.astimezone(ZoneInfo(zone)).date() for tick in found]
    first = day if found[0].astimezone(ZoneInfo(zone)).date() == day else day + timedelta(days=1)
    assert days == [first + timedelta(days=n) for n in range(5)]


@given(
    zone=st.sampled_from(ZONES),
    expression=st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 */5 * * *", "15 1,2,3 * * 0"]),
    minutes=st.integers(0, 48 * 365 * 24 * 60),
    skipped=st.integers(0, 3),
)
def test_ticks_from_any_start_are_the_same(zone, expression, minutes, skipped):
    """A process that starts later, or that computes past ticks, gets the same instants as the first process."""
    start = datetime(1990, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    assume(zone != "Pacific/Apia" or abs(start.year - 2011) > 1)
    found = ticks(expression, zone, start, 8)
    assert found == sorted(set(found))
    assert found[0] > start
    later = found[skipped]
    assert ticks(expression, zone, later, 7 - skipped) == found[skipped + 1 :]
    until = found[5] + timedelta(seconds=1)
    assert expressions.last_between(expression, zone, start, until, 3) == found[3:6]
    assert expressions.last_between(expression, zone, start, until, 100) == found[:6]


def test_last_between_long_range_returns_the_last_ticks():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = expressions.last_between("every 1 second", "UTC", now - timedelta(days=3000), now, 100)
    assert found == [now - timedelta(seconds=n) for n in reversed(range(100))]


# ------------------------------------------------------------------ intervals


def test_ticks_of_interval_are_multiples_from_any_start():
    start = datetime(2026, 5, 5, 9, 3, 7, 123, tzinfo=UTC)
    assert ticks("every 5 minutes", "UTC", start, 2) == [
        datetime(2026, 5, 5, 9, 5, tzinfo=UTC),
        datetime(2026, 5, 5, 9, 10, tzinfo=UTC),
    ]
    on_time = datetime(2026, 5, 5, 9, 5, tzinfo=UTC)
    assert expressions.next_after("every 5 minutes", "UTC", on_time) == on_time + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("duration", "wanted"),
    [(1, "every 1 second"), (90, "every 90 seconds"), (300, "every 5 minutes"), (timedelta(days=14), "every 2 weeks")],
)
def test_interval_duration_is_written_in_its_largest_unit(duration, wanted):
    assert expressions.interval(duration) == wanted
    expressions.check(wanted, "UTC")


@pytest.mark.parametrize("duration", [0, 0.5, 1.5, timedelta(days=400)])
def test_interval_out_of_bounds_is_refused(duration):
    with pytest.raises(ValueError, match="whole seconds"):
        expressions.interval(duration)


# ------------------------------------------------------------------ texts of expressions


@pytest.mark.parametrize(
    ("expression", "zone", "wanted"),
    [
        ("", "UTC", "five fields"),
        ("* * * *", "UTC", "five fields"),
        ("0 * * * * *", "UTC", "five fields"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("@reboot", "UTC", "five fields"),
        ("0 0 30 2 *", "UTC", "Bad day"),
        ("* * * * MON#6", "UTC", "invalid cron expression"),
        ("every 0 seconds", "UTC", "1 second"),
        ("every 400 days", "UTC", "366 days"),
        ("every five minutes", "UTC", "five fields"),
        ("1," * 200, "UTC", "five fields"),
        ("0 9 * * *", "Europe/Atlantis", "invalid time zone"),
        ("0 9 * * *", "../../etc/passwd", "invalid time zone"),
        ("0 9 * * *", "", "invalid time zone"),
    ],
)
def test_check_invalid_expression_or_time_zone_is_refused(expression, zone, wanted):
    with pytest.raises(ValueError, match=wanted):
        expressions.check(expression, zone)


@given(st.text("0123456789*/,-#LW @everyminutsMONDAYJAN\u0663\x00", max_size=30))
def test_check_any_text_is_accepted_or_refused(text):
    for expression in (text, f"{text} {text} * * *", f"* * {text} * {text}"):
        expressions.in_words(expression)
        try:
            expressions.check(expression, "UTC")
        except ValueError:
            continue
        assert len(ticks(expression, "UTC", datetime(2026, 1, 1, tzinfo=UTC), 3)) == 3


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * 1-5", "At 09:00 on Monday through Friday"),
        ("every 5 minutes", "Every 5 minutes"),
        ("@daily", "At 00:00"),
        ("what?", "what?"),
    ],
)
def test_in_words_describes_the_expression(expression, words):
    assert words in expressions.in_words(expression)


@pytest.mark.parametrize("name", expressions.NAMED)
def test_check_named_expression_is_accepted(name):
    expressions.check(name, "UTC")
