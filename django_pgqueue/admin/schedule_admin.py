"""The list and the pages of schedules: edit those of the admin; run, pause and resume all.

Registered in `__init__`. Schedules that code defines are read-only here, because workers write them from the code. All
writes go through `lifecycle`. An edit applies only to the revision that the form was made from.
"""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_pgqueue import queues
from django_pgqueue.display import number
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle import schedules
from django_pgqueue.models import Job, Schedule
from django_pgqueue.schedules import job_options, next_ticks, run_and_resume, words

from . import databases
from .act_view import check, forget_counts
from .formatting import dated, seen_at, visible
from .forms.new_jobs import say_paused
from .navigation import allowed_url, redirect_to
from .private import may_view
from .readonly import DatabaseChangeList
from .row_operations import selected_action
from .schedules.actions import OPERATIONS, PAUSE, RESUME, RUN, NotDone, ScheduleOperation, act_on_one, offered
from .schedules.columns import ScheduleColumns, problem_of, shown_ticks
from .schedules.form import OPERATION_FIELD, ScheduleForm
from .schedules.past_acts import acts_shown
from .schedules.past_runs import attach_runs, may_view_attempts, next_run, shown_runs
from .schedules.pause_and_skip import act_urls, links, skip_selected
from .shown import read_schedule, same_schedule_field, schedule_field

SHOWN = ("task", "shown_arguments", "when", "missed", "if_running", "jitter", "where")
ONE_REQUEST = 1000
"""Schedules that one request changes at most."""
UNSAVED = _("Nothing was done: the form has changes that are not saved. Save them first, or load the page again.")
REASONS_SHOWN = 10
"""Refusals that are shown one by one; further ones are only counted."""


class OriginFilter(admin.SimpleListFilter):
    """Schedules defined in code, or in the admin."""

    title = _("origin")
    parameter_name = "origin"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("code", _("code")), ("admin", _("admin"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(origin=self.value()) if self.value() else queryset


class ScheduleChangeList(DatabaseChangeList):
    """A page of schedules with their latest runs, which one statement reads."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(cast(Any, self.result_list))
        attach_runs(rows, databases.chosen(request))
        self.result_list = cast(Any, rows)


class ScheduleAdmin(ScheduleColumns):
    """All schedules by name. All can be run, paused and resumed; those defined in the admin can also be edited."""

    form = ScheduleForm
    change_form_template = "pgqueue/admin/schedule.html"
    list_display = ["title", "state", "when", "next_run", "last", "queue"]
    list_filter = [OriginFilter]
    search_fields = ["name", "task_name"]
    ordering = ["name", "pk"]
    actions = ["run_selected", "skip_selected", "pause_selected", "resume_selected"]
    operations = OPERATIONS
    shown_fields = staticmethod(schedule_field)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ScheduleChangeList

    # ---------------------------------------------------------------- permissions

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may add schedules. This allows calling any task with any arguments.

        As for each operation, the user must be allowed to see the list too.
        """
        return request.user.has_perm("pgqueue.add_schedule") and self.has_view_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may edit this schedule. One that is defined in code is edited there.

        The form shows the arguments, so the user also needs the permission to see them.
        """
        is_allowed = request.user.has_perm("pgqueue.change_schedule")
        return is_allowed and (obj is None or (obj.origin == "admin" and may_view(request)))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may remove this schedule. One that is defined in code ends when the code drops it."""
        is_allowed = request.user.has_perm("pgqueue.delete_schedule") and self.has_view_permission(request)
        return is_allowed and (obj is None or obj.origin == "admin")

    has_run_permission = RUN.is_allowed
    has_pause_permission = PAUSE.is_allowed

    # ---------------------------------------------------------------- operations

    run_selected = selected_action(_("Run selected now"), RUN, "run")
    pause_selected = selected_action(_("Pause selected"), PAUSE, "pause")
    resume_selected = selected_action(_("Resume selected"), RESUME, "pause")

    @admin.action(description=_("Skip the next run of selected…"), permissions=["pause"])
    def skip_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        """Show the page that names the runs, and asks."""
        return skip_selected(request, queryset)

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of the acts that ask first."""
        return [*act_urls(self.admin_site, self.get_queryset), *super().get_urls()]

    def act_on_selected(self, request: HttpRequest, operation: ScheduleOperation, queryset: QuerySet[Any]) -> None:
        selected, count = list(queryset[:ONE_REQUEST]), queryset.count()
        done, reasons = 0, []
        for schedule in selected:
            try:
                done += bool(act_on_one(request, operation, schedule))
            except NotDone as error:
                reasons.append(str(error))
        if done:
            messages.success(request, operation.done % {"count": done})
        for reason in reasons[:REASONS_SHOWN]:
            messages.warning(request, reason)
        if count > len(selected):
            text = _("Only the first %(most)s of %(count)s selected schedules were processed. Select fewer at once.")
            messages.warning(request, text % {"most": number(len(selected)), "count": number(count)})
        if unchanged := len(selected) - done - len(reasons[:REASONS_SHOWN]):
            text = _("Not changed: %(count)d. They have changed since the page showed them, or they are locked.")
            messages.warning(request, text % {"count": unchanged})

    def run_operation(self, request: HttpRequest, object_id: int, operation: ScheduleOperation) -> HttpResponse:
        schedule = self.get_queryset(request).filter(pk=object_id).first()
        if schedule is None:
            messages.warning(request, _("This schedule does not exist any more."))
            return redirect_to(request, "schedule_changelist")
        try:
            if found := act_on_one(request, operation, schedule):
                self._say_done(request, operation, found)
            else:
                text = _(
                    "Nothing was changed: the schedule has changed since the page showed it or is locked. Try again."
                )
                messages.warning(request, text)
        except NotDone as error:
            messages.warning(request, str(error))
        return redirect_to(request, "schedule_change", object_id)

    def _say_done(self, request: HttpRequest, operation: ScheduleOperation, found: int) -> None:
        """Show the message after an operation. After *Run now*, it links the job to a user who may view it."""
        text = operation.done % {"count": 1}
        url = allowed_url(request, "job_change", found) if operation is RUN else ""
        if not url:
            messages.success(request, text)
            return
        messages.success(request, format_html('{} <a href="{}">{}</a>', text, url, _("Job #%s") % found))
        for job in Job.objects.using(databases.chosen(request)).defer("arguments", "result").filter(pk=found):
            say_paused(request, job)

    def changeform_view(
        self, request: HttpRequest, object_id: Any = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the form, or the read-only page of a schedule that is defined in code, with the operations' buttons."""
        request.current_app = self.admin_site.name  # for the links to jobs
        schedule = self.get_object(request, object_id) if object_id is not None else None
        if schedule is not None and (operation := self._pressed(request, schedule)):
            if not self._has_changes(request, schedule):
                return self.run_operation(request, schedule.pk, operation)
            messages.warning(request, UNSAVED)
        own_context = self._own_context(request, schedule) if schedule else {}
        try:
            return super().changeform_view(
                request, object_id, form_url, {**own_context, **self.navigation(request), **(extra_context or {})}
            )
        except JobLocked:
            text = _("Nothing was changed: another session has locked this schedule or has changed it. Try again.")
            messages.error(request, text)
            return HttpResponseRedirect(request.get_full_path())

    def _pressed(self, request: HttpRequest, schedule: Schedule) -> ScheduleOperation | None:
        """Return the operation whose button in the form was pressed. Raise `PermissionDenied` if the user may not."""
        name = request.POST.get(OPERATION_FIELD)
        operation = next((each for each in OPERATIONS if each.name == name), None)
        if operation is not None:
            check(request, operation.act)
        return operation if self.has_change_permission(request, schedule) else None

    def _has_changes(self, request: HttpRequest, schedule: Schedule) -> bool:
        """Return whether the posted form differs from the schedule as it is saved."""
        form = self.get_form(request, schedule, change=True)(request.POST, instance=schedule)
        return bool(form.has_changed())

    def _own_context(self, request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
        attach_runs([schedule], databases.chosen(request), with_attempts=may_view_attempts(request))
        return {
            "schedule": schedule,
            "operations": offered(request, schedule),
            "links": links(request, schedule),
            "is_paused": words.is_paused(schedule, seen_at(schedule)),
            "facts": self._facts(schedule),
            "ticks": shown_ticks(schedule),
            "past": shown_runs(request, schedule),
            "is_form": self.has_change_permission(request, schedule),
            "operation_field": OPERATION_FIELD,
            "shown": same_schedule_field(request, schedule),
        }

    def _facts(self, schedule: Schedule) -> list[tuple[Any, Any]]:
        """Return the facts about a schedule as pairs of label and value."""
        problem, found, acts = problem_of(schedule), next_run(schedule), acts_shown(schedule)
        return [
            (_("State"), self.state(schedule)),
            (_("Problem"), problem and format_html('<span class="pgqueue-error">{}</span>', problem)),
            (_("Next run"), found and dated(found.at, schedule, with_zone=True)),
            (_("Paused"), acts.pause),
            (_("Skipped run"), acts.skip),
            (_("Last run"), dated(schedule.last_run_at, schedule, with_zone=True) or _("none yet")),
            (_("Last result"), self.last_result(schedule)),
            (_("Queue"), visible(job_options.current(schedule, "queue_name"))),
            (_("Priority"), str(job_options.current(schedule, "priority"))),
        ]

    # ---------------------------------------------------------------- the read-only page

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the form's fields, or the read-only ones if the user may not edit the schedule."""
        return super().get_fields(request, obj) if self._is_form(request, obj) else SHOWN

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return () if self._is_form(request, obj) else SHOWN

    def get_form(self, request: HttpRequest, obj: Any = None, change: Any = False, **kwargs: Any) -> Any:  # noqa: FBT002 -- Django's
        """Return the form for the chosen database, or an empty one if the user may not edit the schedule."""
        if not self._is_form(request, obj):
            return super().get_form(request, obj, change, **{**kwargs, "form": forms.ModelForm})
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"database": databases.chosen(request)})

    def _is_form(self, request: HttpRequest, obj: Any) -> bool:
        return self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)

    # ---------------------------------------------------------------- writing

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        """Add or change the schedule through `lifecycle`. Raise `JobLocked` if another session got there first."""
        connection = connections[databases.chosen(request)]
        definition = form.definition()
        if definition.has_own_queue and (message := queues.mistyped(definition.options.queue_name, connection.alias)):
            messages.warning(request, message)
        now, _rows = schedules.read_schedules(connection)
        next_run_at = next_ticks.next_after(definition.expression, definition.time_zone, now)
        if not change:
            enabled = form.cleaned_data["enabled"]
            obj.pk = schedules.add_schedule(
                connection, definition, origin="admin", next_run_at=next_run_at, enabled=enabled
            )
            is_written = obj.pk is not None
        else:
            shown = read_schedule(request, obj.pk)
            revision = shown[0] if shown else obj.revision  # the form's: another editor's change is not overwritten
            is_written = schedules.change_schedule(
                connection, obj.pk, definition, revision=revision, next_run_at=next_run_at, tries=True
            )
        if not is_written:
            raise JobLocked(f"another session has just changed the schedule {obj.name}")
        if change and "enabled" in form.changed_data:
            by = request.user.get_username()
            if form.cleaned_data["enabled"]:
                run_and_resume.resume(connection, obj.pk, by=by)
            else:
                run_and_resume.pause(connection, obj.pk, definition.name, by=by)

    def delete_view(self, request: HttpRequest, *args: Any, **named: Any) -> Any:
        """Answer as Django does. A deleted schedule is no cause any more."""
        answer = super().delete_view(request, *args, **named)
        forget_counts(request)
        return answer

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.delete_queryset(request, self.get_queryset(request).filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Remove the selected schedules with the records of their runs. Schedules that workers' code defines stay."""
        connection = connections[databases.chosen(request)]
        run_and_resume.remove(connection, dict(queryset.values_list("pk", "name")), by=request.user.get_username())
