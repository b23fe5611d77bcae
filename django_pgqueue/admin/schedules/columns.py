"""Columns of the list of schedules, and the read-only values and next runs on the page of one. Used by `schedules`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils import dateformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import databases
from django_pgqueue.admin.formatting import (
    ago,
    breakable,
    duration,
    moment,
    moment_ago,
    seen_at,
    shortened,
    visible,
    word_badge,
)
from django_pgqueue.admin.navigation import address
from django_pgqueue.admin.private import TEXT_LIMIT, as_html, with_permission
from django_pgqueue.admin.private import shown_arguments as shown_call
from django_pgqueue.admin.readonly import column
from django_pgqueue.admin.row_operations import OperationsAdmin
from django_pgqueue.db.fields import statement_time
from django_pgqueue.display import full_date_form
from django_pgqueue.models import Job, Schedule
from django_pgqueue.models.schedules import Origin
from django_pgqueue.schedules import job_options, next_ticks, words
from django_pgqueue.stats.causes.facts import late_limit_seconds

from .expression_text import expression_text
from .past_runs import next_run, skipped_text, state_badge, waits_for

TICKS_SHOWN: Final = 5


class ScheduleColumns(OperationsAdmin):
    """Columns of the list and of the pages of schedules."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the schedules with the database's clock and the last job's state, without their arguments."""
        last_job = Job.objects.filter(pk=OuterRef("last_job_id")).values("state")[:1]
        found: QuerySet[Any] = super().get_queryset(request)
        found = found.defer("arguments").annotate(seen_at=statement_time(), last_state=Subquery(last_job))
        return with_permission(found, request)

    @admin.display(description=_("schedule"))
    def title(self, schedule: Schedule) -> SafeString:
        """Return the name; below it the task if the name does not say it, the admin as origin, and the problem."""
        task = "" if schedule.name.partition(":")[0] == schedule.task_name else breakable(schedule.task_name)
        parts = [breakable(schedule.name)]
        if task:
            parts.append(format_html('<div class="pgqueue-quiet">{}</div>', task))
        if schedule.origin == Origin.ADMIN:
            parts.append(format_html('<div class="pgqueue-quiet">{}</div>', _("defined in the admin")))
        if problem := problem_of(schedule):
            parts.append(format_html('<div class="pgqueue-last-error">{}</div>', shortened(problem)))
        return format_html_join("", "{}", ((part,) for part in parts))

    state = column(_("state"), state_badge)
    task = column(_("task"), lambda schedule: breakable(schedule.task_name))
    where = column(_("defined in"), lambda schedule: schedule.get_origin_display())

    @admin.display(description=_("last run"), empty_value="")
    def last(self, schedule: Schedule) -> SafeString | str:
        """Return the time of the last run; below it, the state of its job."""
        if schedule.last_run_at is None:
            return ""
        return format_html("{}<div>{}</div>", moment_ago(schedule.last_run_at, schedule), self.last_result(schedule))

    @admin.display(description=_("when"))
    def when(self, schedule: Schedule) -> SafeString:
        """Return a description of when it runs, and the expression with its time zone."""
        text = visible(expression_text(schedule.expression))
        if schedule.expression.startswith("every "):  # the text of an interval says it all, and time zones do not apply
            return format_html("{}", text)
        shown = text, visible(schedule.expression), visible(schedule.time_zone)
        if text == schedule.expression:
            return format_html("<code>{1}</code> {2}", *shown)
        return format_html('{}<div class="pgqueue-quiet"><code>{}</code> {}</div>', *shown)

    @admin.display(description=_("next run"), empty_value="")
    def next_run(self, schedule: Schedule) -> Any:
        """Return the next run that will happen; below it, a skipped one, and the job for which the run waits."""
        found = next_run(schedule)
        if found is None:
            return ""
        past = seen_at(schedule) - found.at
        is_due = past >= timedelta()
        lines = [moment(found.at, _due_text(past)) if is_due else moment_ago(found.at, schedule)]
        if found.skipped_at is not None:
            note = _("one is %(skipped)s") % {"skipped": skipped_text(found.skipped_by)}
            lines.append(format_html('<div class="pgqueue-quiet">{}</div>', moment(found.skipped_at, note)))
        if is_due and (job_id := waits_for(schedule)) is not None:
            lines.append(format_html('<div class="pgqueue-quiet">{} {}</div>', _("waits for the end of"), f"#{job_id}"))
        return format_html_join("", "{}", ((line,) for line in lines))

    @admin.display(description=_("last result"), empty_value="")
    def last_result(self, schedule: Schedule) -> Any:
        """Return the state of the last job, as a link to it; "removed" if the job has been pruned."""
        state = vars(schedule).get("last_state")
        if schedule.last_job_id is None or state is None:
            return "" if schedule.last_job_id is None else _("removed")
        if not (found := address("job_change", schedule.last_job_id, site_name=self.admin_site.name)):
            return word_badge(state)
        return format_html('<a href="{}">{}</a>', databases.link_to(schedule._state.db, found), word_badge(state))

    queue = column(_("queue"), lambda schedule: breakable(job_options.current(schedule, "queue_name")))

    @admin.display(description=_("jitter"))
    def jitter(self, schedule: Schedule) -> str:
        return (
            duration(timedelta(seconds=schedule.jitter_seconds))
            if schedule.jitter_seconds
            else pgettext("jitter", "none")
        )

    @admin.display(description=_("arguments"))
    def shown_arguments(self, schedule: Schedule) -> SafeString:
        """Return the arguments as text, because Python cannot decode every value that a row can contain."""
        text = (
            Schedule.objects.using(schedule._state.db)
            .filter(pk=schedule.pk)
            .values_list(Left(Cast("arguments", TextField()), TEXT_LIMIT))
            .first()
        )
        return as_html(shown_call(schedule, text[0] if text else ""))


def problem_of(schedule: Schedule) -> str:
    """Return why a schedule cannot run, as the pages show it; "" if it can."""
    return visible(words.problem_of(schedule))


# ---------------------------------------------------------------------------- next runs


def shown_ticks(schedule: Schedule) -> list[dict[str, Any]]:
    """Return the next runs in the time zones of the schedule and of the page, with changes of the clock between them.

    If the expression or the time zone is invalid, the list is empty. The ticks are those that the scheduler will fire,
    because the same functions calculate them.
    """
    try:
        # An interval has no time zone: its ticks are the same instants everywhere.
        zone = ZoneInfo("UTC" if schedule.expression.startswith("every ") else schedule.time_zone)
        instants = list(islice(_instants(schedule), TICKS_SHOWN))
        now = seen_at(schedule)
        shown = [
            _tick(at.astimezone(zone), before.astimezone(zone), now)
            for before, at in zip([now, *instants], instants, strict=False)
        ]
        if (found := next_run(schedule)) is not None and found.skipped_at is not None:
            shown[0]["note"] = ", ".join(filter(None, [skipped_text(found.skipped_by), shown[0]["note"]]))
        return shown
    except (ValueError, OSError, LookupError, ArithmeticError):  # a row may contain any text and any instant
        return []


def _instants(schedule: Schedule) -> Iterator[datetime]:
    if schedule.enabled and words.is_paused(schedule, seen_at(schedule)):
        start = cast(datetime, schedule.paused_until) - timedelta(
            microseconds=1
        )  # a run at the end is not in the pause
    else:
        yield schedule.next_run_at
        start = max(schedule.next_run_at, seen_at(schedule))  # missed ticks are not previewed
    yield from next_ticks.ticks_after(schedule.expression, schedule.time_zone, start)


def _due_text(past: timedelta) -> str:
    """Return that a run is due, or by how much it is late."""
    is_late = past.total_seconds() >= late_limit_seconds()
    return gettext("late by %(span)s") % {"span": duration(past)} if is_late else gettext("due now")


def _tick(at: datetime, before: datetime, now: datetime) -> dict[str, Any]:
    """Return one run, with its offset from UTC as "+02:00 CEST", and whether clocks change before it."""
    offset = at.strftime("%z")
    return {
        "local": dateformat.format(at, f"D {full_date_form()}"),
        "offset": f"{offset[:3]}:{offset[3:5]} {at.tzname() or ''}".strip(),
        "here": moment(at),
        "distance": ago(at, now) if at > now else _due_text(now - at),
        "note": _change_of_clock(at.utcoffset() or timedelta(), before.utcoffset() or timedelta()),
    }


def _change_of_clock(offset: timedelta, before: timedelta) -> str:
    if offset == before:
        return ""
    forward, back = gettext("clocks go forward by %(span)s before it"), gettext("clocks go back by %(span)s before it")
    return (forward if offset > before else back) % {"span": duration(offset - before)}
