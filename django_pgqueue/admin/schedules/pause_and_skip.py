"""The acts on schedules that ask first: skip the next run, and pause a schedule with an end or a reason.

`schedule_admin` gives them their URLs. The page about a skip names each run that will be skipped, and its form carries
these runs with the revisions of the schedules. A run is skipped only if it is still the next one. Therefore a double
click or a second operator cannot skip two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue import acts
from django_pgqueue.admin import databases, shown
from django_pgqueue.admin.act_view import FORM, act_view, log_change
from django_pgqueue.admin.buttons import text_of
from django_pgqueue.admin.formatting import full_date, seen_at, visible
from django_pgqueue.admin.forms import schedule_run
from django_pgqueue.admin.forms.form_page import form_page, in_future, time_field
from django_pgqueue.admin.forms.limit_pause import LENGTHS
from django_pgqueue.admin.forms.reason_form import REASON_LENGTH
from django_pgqueue.admin.navigation import page_url, redirect_to
from django_pgqueue.display import number
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle import schedules
from django_pgqueue.models import Schedule
from django_pgqueue.schedules import next_ticks, run_and_resume, words
from django_pgqueue.schedules.run_and_resume import RunNotSkippedError

from .past_runs import attach_runs, next_run

MOST: Final = 100
"""Schedules whose next runs one request skips at most."""
IDS: Final = "schedules"
"""The parameter with the ids of the schedules that were selected in the list."""
SWITCH_FIELD: Final = "shown_switch"
"""The hidden input with what the page showed of a schedule and its pause."""
AFTER_PAUSE: Final = {
    "skip": gettext_lazy(
        "If the pause has an end, its runs are not made up for: this is the schedule's rule for missed runs."
    ),
    "latest": gettext_lazy(
        "If the pause has an end, one job is enqueued for all of its runs at the end: this is the schedule's rule for "
        "missed runs."
    ),
    "all": gettext_lazy(
        "If the pause has an end, each of its runs, the last 100 at most, is enqueued at the end: this is the "
        "schedule's rule for missed runs."
    ),
}

Rows = Callable[[HttpRequest], QuerySet[Any]]


def act_urls(site: Any, rows: Rows) -> list[URLPattern]:
    """Return the URLs of the pages. `rows` returns the schedules that the user may see."""
    skip = act_view(site, acts.SKIP_NEXT_RUN, partial(skip_view, site=site, rows=rows), FORM)
    pause = act_view(site, acts.PAUSE_SCHEDULE, partial(pause_view, site=site, rows=rows), FORM)
    return [
        path("skip/", skip, name="pgqueue_schedule_skip_selected"),
        path("<int:object_id>/skip/", skip, name="pgqueue_schedule_skip"),
        path("<int:object_id>/pause_until/", pause, name="pgqueue_schedule_pause_until"),
    ]


def links(request: HttpRequest, schedule: Schedule) -> list[tuple[str, str]]:
    """Return the label and the URL of each page that the user may open for a schedule in its state."""
    found = []
    if url := schedule_run.link(request, schedule):
        found.append((_("Run now with other arguments…"), url))
    if acts.PAUSE_SCHEDULE.is_allowed(request.user):
        found.append((_("Pause with an end or a reason…"), page_url(request, "schedule_pause_until", schedule.pk)))
    if acts.SKIP_NEXT_RUN.is_allowed(request.user) and not why_not_skipped(schedule):
        found.append((_("Skip the next run…"), page_url(request, "schedule_skip", schedule.pk)))
    return found


def skip_selected(request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    """Show the page about the selected schedules."""
    ids = list(queryset.values_list("pk", flat=True)[: MOST + 1])
    if len(ids) > MOST:
        text = _("Only the first %(count)s of the selected schedules are here. Select fewer, and repeat it.")
        messages.warning(request, text % {"count": number(MOST)})
    return redirect_to(request, "schedule_skip_selected", **{IDS: ",".join(map(str, ids[:MOST]))})


# ---------------------------------------------------------------------------- skip the next run


def why_not_skipped(schedule: Schedule) -> str:
    """Return why the next run of a schedule cannot be skipped, "" if it can. Requires `attach_runs()`."""
    if words.problem_of(schedule):
        return _("it cannot run")
    if words.is_paused(schedule, seen_at(schedule)):
        return _("it is paused")
    if schedule.next_run_at <= seen_at(schedule):
        return _("its run is due already")
    found = next_run(schedule)
    return _("its next run is skipped already") if found is None or found.skipped_at is not None else ""


def skip_view(request: HttpRequest, site: Any, rows: Rows, object_id: int | None = None) -> HttpResponseBase:
    """Ask whether to skip the next runs of schedules; after POST, skip those that the page named."""
    ids = [object_id] if object_id is not None else _ids(request.GET.get(IDS, ""))
    found = list(rows(request).filter(pk__in=ids).order_by("name", "pk"))
    attach_runs(found, databases.chosen(request))
    if request.method == "POST":
        _skip(request, found)
        return _back(request, object_id)
    reasons = {schedule.pk: why_not_skipped(schedule) for schedule in found}
    skipped = [schedule for schedule in found if not reasons[schedule.pk]]
    left_out = [_left_out(schedule, reasons[schedule.pk]) for schedule in found if reasons[schedule.pk]]
    if not skipped:
        messages.warning(request, " ".join([_("No run can be skipped."), *left_out]))
        return _back(request, object_id)
    return form_page(
        request,
        site,
        WhyForm(),
        title=_title(skipped),
        submit=ngettext("Yes, skip the run", "Yes, skip the runs", len(skipped)),
        back=page_url(request, "schedule_change", object_id) if object_id else page_url(request, "schedule_changelist"),
        notes=[*map(_question, skipped), *left_out],
        hidden=shown.runs_field(skipped),
        place="schedule_changelist",
    )


class WhyForm(forms.Form):
    """Asks why. Nobody has to say it."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=REASON_LENGTH,
        help_text=gettext_lazy("Optional. The page of the schedule and the audit show it with your name."),
    )


def _title(skipped: Sequence[Schedule]) -> str:
    if len(skipped) == 1:
        return _("Skip the next run of %(name)s?") % {"name": visible(skipped[0].name)}
    return _("Skip the next runs of %(count)s schedules?") % {"count": len(skipped)}


def _question(schedule: Schedule) -> str:
    following_at = next_ticks.next_after(schedule.expression, schedule.time_zone, schedule.next_run_at)
    about = {
        "name": visible(schedule.name),
        "at": _time_text(schedule.next_run_at),
        "following": _time_text(following_at),
    }
    return _("%(name)s: the run at %(at)s is skipped. The one after it is at %(following)s.") % about


def _left_out(schedule: Schedule, reason: str) -> str:
    return _("%(name)s is left out: %(why)s.") % {"name": visible(schedule.name), "why": reason}


def _time_text(at: datetime) -> str:
    return f"{full_date(at)} {timezone.get_current_timezone_name()}"


def _skip(request: HttpRequest, found: Iterable[Schedule]) -> None:
    seen = shown.read_runs(request)
    if not seen:
        text = _("Nothing was changed: the form did not say which run the page showed. Try again from here.")
        messages.warning(request, text)
    connection = connections[databases.chosen(request)]
    read = {each.schedule_id: each for each in schedules.read_schedules(connection)[1]}
    by, reason = request.user.get_username(), text_of(request, "reason").strip()[:REASON_LENGTH]
    for schedule in found:
        if schedule.pk not in seen or schedule.pk not in read:
            continue
        revision, tick_at = seen[schedule.pk]
        about = {"name": visible(schedule.name), "at": _time_text(tick_at)}
        try:
            as_shown = read[schedule.pk]._replace(revision=revision)
            run_and_resume.skip_run(connection, as_shown, tick_at, by=by, reason=reason, time_text=_time_text)
        except (JobLocked, RunNotSkippedError) as error:
            text = _("The run of %(name)s at %(at)s was not skipped: %(why)s")
            why = str(error) if isinstance(error, RunNotSkippedError) else _("The schedule is locked. Try again.")
            messages.warning(request, text % {**about, "why": why})
        else:
            log_change(request, schedule, f"Skipped the run at {tick_at.isoformat()}.")
            messages.success(request, _("The run of %(name)s at %(at)s is skipped.") % about)


def _ids(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each.isascii() and each.isdigit() and len(each) < 19][:MOST]


def _back(request: HttpRequest, object_id: int | None) -> HttpResponse:
    if object_id is None:
        return redirect_to(request, "schedule_changelist")
    return redirect_to(request, "schedule_change", object_id)


# ---------------------------------------------------------------------------- pause with an end or a reason


class SchedulePauseForm(WhyForm):
    """The length or the end of a pause, and why it begins. Each can be left out."""

    length = forms.ChoiceField(label=gettext_lazy("Paused"), required=False, choices=LENGTHS)
    until = time_field(gettext_lazy("Until"), "")
    field_order = ("length", "until", "reason")

    def __init__(self, *args: Any, now: datetime, **options: Any) -> None:
        super().__init__(*args, **options)
        self._now = now
        text = _("Another time, in the time zone %(zone)s. The schedule goes on by itself then.")
        self.fields["until"].help_text = text % {"zone": timezone.get_current_timezone_name()}

    def clean_until(self) -> datetime | None:
        return in_future(self.cleaned_data["until"])

    def clean(self) -> dict[str, Any]:
        """Turn the length into the end of the pause. Refuse a length together with a time."""
        given = super().clean() or self.cleaned_data
        if length := given.pop("length", ""):
            if given.get("until") is not None:
                self.add_error("until", _("Choose a length or a time, not both."))
            given["until"] = self._now + timedelta(seconds=int(length))
        return given


def pause_view(request: HttpRequest, object_id: int, site: Any, rows: Rows) -> HttpResponseBase:
    """Ask for the end of a pause and its reason; after POST, pause the schedule."""
    schedule = rows(request).filter(pk=object_id).first()
    if schedule is None:
        messages.warning(request, _("This schedule does not exist any more."))
        return redirect_to(request, "schedule_changelist")
    form = SchedulePauseForm(request.POST if request.method == "POST" else None, now=seen_at(schedule))
    if form.is_bound and form.is_valid():
        if request.POST.get(SWITCH_FIELD) == _switch_of(schedule):
            _pause(request, schedule, **form.cleaned_data)
            return redirect_to(request, "schedule_change", object_id)
        text = _("Nothing was changed: the schedule was changed, paused or resumed since the page was shown.")
        messages.warning(request, text)
    return form_page(
        request,
        site,
        form,
        title=_("Pause %(name)s") % {"name": visible(schedule.name)},
        submit=_("Pause"),
        back=page_url(request, "schedule_change", object_id),
        hidden=shown.hidden_input(SWITCH_FIELD, _switch_of(schedule)),
        notes=[
            "" if schedule.enabled else _("The schedule is paused without an end now. You can give the pause an end."),
            _("No run happens during the pause. Jobs that are enqueued already run all the same."),
            AFTER_PAUSE.get(schedule.missed, ""),
            _("If you resume the schedule, the runs of the pause are skipped."),
        ],
        place="schedule_changelist",
    )


def _switch_of(schedule: Schedule) -> str:
    """Return the definition of a schedule and its pause as text, to compare them with what the page showed."""
    return f"{schedule.revision}:{schedule.enabled}:{shown.number(schedule.paused_until)}"


def _pause(request: HttpRequest, schedule: Schedule, until: datetime | None, reason: str) -> None:
    connection, by = connections[databases.chosen(request)], request.user.get_username()
    try:
        is_paused = run_and_resume.pause(connection, schedule.pk, schedule.name, until=until, by=by, reason=reason)
    except (JobLocked, ValueError) as error:
        why = _("The schedule is locked. Try again.") if isinstance(error, JobLocked) else visible(str(error))
        messages.warning(request, _("Nothing was changed: %(why)s") % {"why": why})
        return
    if is_paused:
        end = f" until {until.isoformat()}" if until else ""
        log_change(request, schedule, f"Paused{end}: {reason}" if reason else f"Paused{end}.")
    if until is None and not is_paused:
        messages.warning(request, _("Nothing was changed: the schedule is paused already."))
    elif until is None:
        messages.success(request, _("The schedule is paused."))
    else:
        messages.success(request, _("The schedule is paused until %(at)s.") % {"at": _time_text(until)})
