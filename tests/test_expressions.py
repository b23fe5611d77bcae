"""When a schedule is due: cron expressions, intervals, and days on which the clock changes."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter_range  # type: ignore[import-untyped]
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_pgqueue.schedules import next_ticks

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
    return list(islice(next_ticks.ticks_after(expression, zone, start), count))


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
    assert next_ticks.next_after("30 2 * * *", "Europe/Berlin", begun) == local("Europe/Berlin", 2026, 10, 26, 2, 30)


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
    assert next_ticks.last_between(expression, zone, start, until, 3) == found[3:6]
    assert next_ticks.last_between(expression, zone, start, until, 100) == found[:6]


def test_last_between_long_range_returns_the_last_ticks():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = next_ticks.last_between("every 1 second", "UTC", now - timedelta(days=3000), now, 100)
    assert found == [now - timedelta(seconds=n) for n in reversed(range(100))]


def test_ticks_after_change_by_30_minutes_lose_no_tick():
    """At 15:30 UTC the clock of Lord Howe Island goes from 2:00 to 2:30. At 15:00 UTC it goes back to 1:30 in April."""
    zone = "Australia/Lord_Howe"
    spring = ticks("5 * * * *", zone, datetime(2026, 10, 3, 14, 0, tzinfo=UTC), 4)
    assert [tick.strftime("%H:%M") for tick in spring] == ["14:35", "16:05", "17:05", "18:05"]
    autumn = ticks("40 * * * *", zone, datetime(2026, 4, 4, 13, 30, tzinfo=UTC), 4)
    assert [tick.strftime("%H:%M") for tick in autumn] == ["13:40", "14:40", "15:10", "16:10"]


class Change(NamedTuple):
    """A change of a zone's offset, in seconds."""

    instant: int
    before: int
    after: int


def offset_of(zone: ZoneInfo, instant: int) -> int:
    """Return the offset of a zone in seconds."""
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def zone_names() -> list[str]:
    """Return the name of each zone, without the other names of the same zone."""
    samples: dict[tuple[int, ...], str] = {}
    for name in sorted(zoneinfo.available_timezones()):
        zone = ZoneInfo(name)
        samples.setdefault(tuple(offset_of(zone, instant) for instant in range(-(2**31), 2**31, 2**24)), name)
    return list(samples.values())


def odd_changes(first_year: int, step_seconds: int) -> dict[Change, str]:
    """Return all changes by other than one hour, each with one of the zones that has it."""
    found: dict[Change, str] = {}
    start, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (first_year, 2038))
    for name in zone_names():
        zone = ZoneInfo(name)
        offsets = [offset_of(zone, instant) for instant in range(start, end, step_seconds)]
        for place, (before, after) in enumerate(pairwise(offsets)):
            if before == after or abs(after - before) == 3600:
                continue
            low, high = start + place * step_seconds, start + (place + 1) * step_seconds
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_of(zone, middle) == before else (low, middle)
            found.setdefault(Change(high, before, offset_of(zone, high)), name)
    return found


@cache
def minutes_of_day(expression: str) -> set[int]:
    """Return the minutes of the day that match, by a second library that knows nothing of time zones here."""
    day = datetime(2026, 1, 1, tzinfo=UTC)
    return {at.hour * 60 + at.minute for at in croniter_range(day, day + timedelta(minutes=1439), expression)}


def around(change: Change) -> tuple[int, int]:
    """Return three hours before and after the times that a change skips or repeats. Elsewhere it has no effect."""
    seconds = 3 * 3600 + abs(change.after - change.before)
    return change.instant - seconds, change.instant + seconds


def ticks_around(expression: str, zone: ZoneInfo, change: Change) -> list[int]:
    """Return the ticks around a change, by looking at each minute."""
    begin, end = around(change)
    minute, hour = expression.split()[:2]
    minutes = minutes_of_day(expression)
    if minute.startswith("*") or hour.startswith("*"):  # each instant whose local time matches
        sides = [(begin, change.instant, change.before), (change.instant, end, change.after)]
        return [
            instant
            for start, stop, offset in sides
            for instant in range(start + -(start + offset) % 60, stop, 60)
            if (instant + offset) // 60 % 1440 in minutes
        ]
    found = set()  # each local time once: the first of two, or the first minute after those that the clock skips
    for local in range((begin + change.before - 86_400) // 60 * 60, end + max(change.before, change.after), 60):
        if local // 60 % 1440 in minutes:
            if local - change.before < change.instant:
                found.add(local - change.before)
            elif local - change.after >= change.instant:
                found.add(local - change.after)
            else:
                local_start = change.instant + change.after
                found.add(local_start + -local_start % 60 - change.after)
    return sorted(tick for tick in found if begin <= tick < end)


EXPRESSIONS = ["20 * * * *", "*/7 1-3 * * *", "* 2,23 * * *", "5,35 */2 * * *", "45 0,1,2 * * *", "0 0 * * *"]


@pytest.mark.promise("tick-clock-change-days")
@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.timeout(600)
def test_ticks_beside_odd_changes_are_those_of_each_minute(expression):
    """Compare with all changes of all zones by other than one hour since 1900, by 10 s to a day."""
    changes = odd_changes_since_1900()
    assert len(changes) > 500
    assert {abs(change.after - change.before) for change in changes} >= {1200, 1800, 7200, 86_400}
    for change, name in changes.items():
        zone = ZoneInfo(name)
        wanted = ticks_around(expression, zone, change)
        begin, end = (datetime.fromtimestamp(instant, UTC) for instant in around(change))
        found = next_ticks.ticks_after(expression, name, begin - timedelta(seconds=1))
        ours = [int(tick.timestamp()) for tick in takewhile(lambda tick, end=end: tick < end, found)]
        assert ours == wanted, (name, change)


@cache
def odd_changes_since_1900() -> dict[Change, str]:
    """Return the changes without those that have another change within two days, which the comparison excludes."""
    day = 86_400
    return {
        change: name
        for change, name in odd_changes(1900, 20 * day).items()
        if offset_of(ZoneInfo(name), change.instant - 2 * day) == change.before
        and offset_of(ZoneInfo(name), change.instant + 2 * day) == change.after
    }


# ------------------------------------------------------------------ intervals


def test_ticks_of_interval_are_multiples_from_any_start():
    start = datetime(2026, 5, 5, 9, 3, 7, 123, tzinfo=UTC)
    assert ticks("every 5 minutes", "UTC", start, 2) == [
        datetime(2026, 5, 5, 9, 5, tzinfo=UTC),
        datetime(2026, 5, 5, 9, 10, tzinfo=UTC),
    ]
    on_time = datetime(2026, 5, 5, 9, 5, tzinfo=UTC)
    assert next_ticks.next_after("every 5 minutes", "UTC", on_time) == on_time + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("duration", "wanted"),
    [(1, "every 1 second"), (90, "every 90 seconds"), (300, "every 5 minutes"), (timedelta(days=14), "every 2 weeks")],
)
def test_interval_duration_is_written_in_its_largest_unit(duration, wanted):
    assert next_ticks.interval(duration) == wanted
    next_ticks.check(wanted, "UTC")


@pytest.mark.parametrize("duration", [0, 0.5, 1.5, timedelta(days=400)])
def test_interval_out_of_bounds_is_refused(duration):
    with pytest.raises(ValueError, match="whole seconds"):
        next_ticks.interval(duration)


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
        ("*/61 * * * *", "UTC", "the step /61 is longer than the 60 values of the minute"),
        ("0 1-5/25 * * *", "UTC", "the step /25 is longer than the 24 values of the hour"),
        ("0 0 1,*/32 * *", "UTC", "32 is longer than the 31 values of the day"),
        ("0 0 * */13 *", "UTC", "13 is longer than the 12 values of the month"),
        ("0 0 * * */8", "UTC", "8 is longer than the 7 values of the weekday"),
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
        next_ticks.check(expression, zone)


@given(st.text("0123456789*/,-#LW @everyminutsMONDAYJAN\u0663\x00", max_size=30))
def test_check_any_text_is_accepted_or_refused(text):
    for expression in (text, f"{text} {text} * * *", f"* * {text} * {text}"):
        next_ticks.in_words(expression)
        try:
            next_ticks.check(expression, "UTC")
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
    assert words in next_ticks.in_words(expression)


@pytest.mark.parametrize("name", next_ticks.NAMED)
def test_check_named_expression_is_accepted(name):
    next_ticks.check(name, "UTC")
