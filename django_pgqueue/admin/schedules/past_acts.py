"""Say who has paused a schedule or skipped its next run, when and why, on the page of the schedule.

`schedule_admin` calls it. The audit has the names and the reasons, as long as it keeps its entries. One statement reads
the latest acts on schedules, so its cost depends neither on the audit nor on the number of schedules.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from django.utils.translation import gettext as _

from django_pgqueue.acts import PAUSE_SCHEDULE, RESUME_SCHEDULE, SKIP_NEXT_RUN
from django_pgqueue.admin.formatting import REASON_SHOWN, by_until, full_date, seen_at, shortened
from django_pgqueue.db.fields import FIRST_INSTANT
from django_pgqueue.models import Schedule
from django_pgqueue.schedules.words import is_paused
from django_pgqueue.stats.past_acts import PastAct, past_acts

from .past_runs import next_run, skipped_before, skipped_in_pause

ACTIONS: Final = (PAUSE_SCHEDULE.name, RESUME_SCHEDULE.name, SKIP_NEXT_RUN.name)


class ActsShown(NamedTuple):
    """The texts about the pause of a schedule and its skipped run. "" if it is not paused, or if no run is skipped."""

    pause: str
    skip: str


def acts_shown(schedule: Schedule) -> ActsShown:
    """Return what the page says of the pause and of the skipped run. Requires `attach_runs()`.

    Runs one statement if the schedule is paused, or if its next run is skipped.
    """
    now, found = seen_at(schedule), next_run(schedule)
    is_in_pause = is_paused(schedule, now)
    if is_in_pause:
        found = skipped_in_pause(schedule)  # it stays skipped after the pause
    is_skipped = found is not None and found.skipped_at is not None
    acts = _acts_on(schedule, now) if is_in_pause or is_skipped else []
    if found is None or not is_skipped:
        return ActsShown(_pause_text(acts) if is_in_pause else "", "")
    skip = next((act for act in acts if _tick_of(act) == found.skipped_at), None)
    return ActsShown(_pause_text(acts) if is_in_pause else "", _with_reason(skipped_before(found), skip))


def _acts_on(schedule: Schedule, now: datetime) -> list[PastAct]:
    """Return the latest acts on a schedule, latest first."""
    found = past_acts(ACTIONS, FIRST_INSTANT, now, database=schedule._state.db)
    return [act for act in reversed(found.acts) if act.chosen.get("schedule_id") == schedule.pk]


def _pause_text(acts: list[PastAct]) -> str:
    """Return who has paused a schedule, if the latest act of the audit is a pause."""
    latest = next((act for act in acts if act.action != SKIP_NEXT_RUN.name), None)
    if latest is None or latest.action != PAUSE_SCHEDULE.name:
        return ""
    words = {"at": full_date(latest.began_at), "who": by_until(latest.done_by, None)}
    return _with_reason(_("at %(at)s%(who)s") % words, latest)


def _with_reason(text: str, act: PastAct | None) -> str:
    return f"{text}: {shortened(act.reason, REASON_SHOWN)}" if act is not None and act.reason else text


def _tick_of(act: PastAct) -> datetime | None:
    """Return the run that an act has skipped. Somebody can have stored any text there."""
    with suppress(ValueError):
        return datetime.fromisoformat(act.text("tick_at"))
    return None
