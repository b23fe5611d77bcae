"""Preview the next runs of a schedule on its page, in its time zone and in UTC, with changes of the clock between them.

Called by `schedules`. The ticks are those that the scheduler will fire, because the same functions calculate them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from django_pgqueue.admin.formatting import ago, duration, moment, seen_at
from django_pgqueue.models import Schedule
from django_pgqueue.schedules import next_ticks

SHOWN: Final = 5
FORMAT: Final = "%a %Y-%m-%d %H:%M:%S"


class ShownTick(NamedTuple):
    """One future run, as the page shows it."""

    local: str
    offset: str
    """The offset from UTC and the abbreviation of the time zone, such as "+02:00 CEST"."""
    utc: Any
    distance: str
    note: str
    """Whether clocks change before this run; "" if they do not."""


def shown_ticks(schedule: Schedule) -> list[ShownTick]:
    """Return the next runs; none if the expression or the time zone is invalid."""
    try:
        # An interval has no time zone: its ticks are the same instants everywhere.
        zone = ZoneInfo("UTC" if schedule.expression.startswith("every ") else schedule.time_zone)
        instants = list(islice(_instants(schedule), SHOWN))
        now = seen_at(schedule)
        return [
            _tick(at.astimezone(zone), before.astimezone(zone), now)
            for before, at in zip([now, *instants], instants, strict=False)
        ]
    except (ValueError, OSError, LookupError, ArithmeticError):  # a row may contain any text and any instant
        return []


def _instants(schedule: Schedule) -> Iterator[datetime]:
    yield schedule.next_run_at
    start = max(schedule.next_run_at, seen_at(schedule))  # missed ticks are not previewed
    yield from next_ticks.ticks_after(schedule.expression, schedule.time_zone, start)


def _tick(at: datetime, before: datetime, now: datetime) -> ShownTick:
    offset = at.strftime("%z")
    return ShownTick(
        local=at.strftime(FORMAT),
        offset=f"{offset[:3]}:{offset[3:5]} {at.tzname() or ''}".strip(),
        utc=moment(at, at.astimezone(UTC).strftime(FORMAT)),
        distance=ago(at, now) if at > now else _("due now"),
        note=_change_of_clock(at.utcoffset() or timedelta(), before.utcoffset() or timedelta()),
    )


def _change_of_clock(offset: timedelta, before: timedelta) -> str:
    if offset == before:
        return ""
    forward, back = _("clocks go forward by %(span)s before it"), _("clocks go back by %(span)s before it")
    return (forward if offset > before else back) % {"span": duration(offset - before)}
