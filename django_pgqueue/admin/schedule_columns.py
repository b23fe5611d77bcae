"""The columns of the list of schedules: what each says, in words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Left, Now
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue import expressions
from django_pgqueue.lifecycle import VOUCHED_SECONDS
from django_pgqueue.models import Job, Schedule

from .page import TEXT_LIMIT
from .readonly import ReadOnlyAdmin
from .words import ago, badge, breakable, duration, moment, pretty_json, seen_at, shortened, visible


class ScheduleColumns(ReadOnlyAdmin):
    """Columns that the list of schedules and their pages show."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the schedules, with the database's clock; arguments are not read for a list."""
        last_job = Job.objects.filter(pk=OuterRef("last_job_id")).values("state")[:1]
        found: QuerySet[Any] = super().get_queryset(request)
        shown: QuerySet[Any] = found.defer("arguments").annotate(seen_at=Now(), last_state=Subquery(last_job))
        return shown

    @admin.display(description=_("schedule"))
    def title(self, one: Schedule) -> SafeString:
        """Return the name, and below it the task where that is another, and what is wrong."""
        task = "" if one.name.partition(":")[0] == one.task_name else breakable(one.task_name)
        parts = [breakable(one.name)]
        if task:
            parts.append(format_html('<div class="pgqueue-quiet">{}</div>', task))
        if why := wrong(one):
            parts.append(format_html('<div class="pgqueue-last-error">{}</div>', shortened(why)))
        return format_html_join("", "{}", ((part,) for part in parts))

    @admin.display(description=_("state"))
    def state(self, one: Schedule) -> SafeString:
        """Return a badge: on, paused, in no code, or wrong."""
        if wrong(one):
            return badge("dead", _("wrong"))
        if not one.enabled:
            return badge("cancelled", _("paused"))
        if one.vouched_at is not None and (seen_at(one) - one.vouched_at).total_seconds() > VOUCHED_SECONDS:
            return badge("cancelled", _("in no worker's code"))
        return badge("succeeded", _("on"))

    @admin.display(description=_("task"))
    def task(self, one: Schedule) -> SafeString:
        """Return the task's name."""
        return breakable(one.task_name)

    @admin.display(description=_("when"))
    def when(self, one: Schedule) -> SafeString:
        """Return in words when it runs, and the expression that says so, with its time zone."""
        words = visible(expressions.in_words(one.expression))
        if one.expression.startswith("every "):  # an interval says it itself, and knows no time zone
            return format_html("{}", words)
        shown = words, visible(one.expression), visible(one.time_zone)
        return format_html('{}<div class="pgqueue-quiet"><code>{}</code> {}</div>', *shown)

    @admin.display(description=_("next run"), empty_value="")
    def next_run(self, one: Schedule) -> Any:
        """Return when it runs next, in words."""
        if not one.enabled or wrong(one):
            return ""
        is_due = one.next_run_at <= seen_at(one)
        return moment(one.next_run_at, str(_("due now")) if is_due else ago(one.next_run_at, seen_at(one), brief=True))

    @admin.display(description=_("last run"), empty_value="")
    def last_run(self, one: Schedule) -> Any:
        """Return when it ran last, in words."""
        return one.last_run_at and moment(one.last_run_at, ago(one.last_run_at, seen_at(one), brief=True))

    @admin.display(description=_("last result"), empty_value="")
    def last_result(self, one: Schedule) -> Any:
        """Return the state of the last job, which leads to it; it may be gone by now."""
        state = vars(one).get("last_state")
        if one.last_job_id is None or state is None:
            return "" if one.last_job_id is None else _("removed")
        url = reverse("admin:pgqueue_job_change", args=[one.last_job_id], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, badge(state, state))

    @admin.display(description=_("jitter"))
    def jitter(self, one: Schedule) -> str:
        """Return by how much each start is put off at most."""
        return duration(timedelta(seconds=one.jitter_seconds)) if one.jitter_seconds else str(_("none"))

    @admin.display(description=_("defined in"))
    def where(self, one: Schedule) -> str:
        """Return where it is defined."""
        return one.get_origin_display()

    @admin.display(description=_("arguments"))
    def shown_arguments(self, one: Schedule) -> SafeString:
        """Return the arguments as text, which can be shown whatever they are."""
        text = Schedule.objects.filter(pk=one.pk).values_list(Left(Cast("arguments", TextField()), TEXT_LIMIT)).first()
        return format_html('<pre class="pgqueue-text">{}</pre>', pretty_json(text[0] if text else ""))


def wrong(one: Schedule) -> str:
    """Return why a schedule cannot run, "" if it can: as a worker has noted, or as anybody can see."""
    try:
        expressions.check(one.expression, one.time_zone)
    except ValueError as error:
        return visible(str(error))
    return visible(one.problem)
