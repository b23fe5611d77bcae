"""The list of schedules, the form of those that are made here, and what an operator does to all of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections, router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue import expressions, lifecycle
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.models import Schedule

from .schedule_acts import OPERATIONS, PAUSE, RESUME, RUN, NotDone, Operation, act_on_one, offered
from .schedule_columns import ScheduleColumns, wrong
from .schedule_form import ScheduleForm
from .shown import read_schedule, schedule_field
from .words import dated, seen_at, visible

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

SHOWN = ("task", "shown_arguments", "when", "missed", "if_running", "jitter", "where")
ONE_REQUEST = 1000
"""Schedules that one request acts on at most."""
REASONS_SHOWN = 10


class OriginFilter(admin.SimpleListFilter):
    """Schedules of the code, or of the admin."""

    title = _("origin")
    parameter_name = "origin"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        """Return both."""
        return [("code", _("code")), ("admin", _("admin"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Add the condition."""
        return queryset.filter(origin=self.value()) if self.value() else queryset


class ScheduleAdmin(ScheduleColumns):
    """All schedules by name. Those of the code can be run, paused and resumed; those of the admin edited too."""

    form = ScheduleForm
    change_form_template = "pgqueue/admin/schedule.html"
    list_display = ["title", "state", "when", "next_run", "last_run", "last_result", "where"]
    list_filter = [OriginFilter]
    search_fields = ["name", "task_name"]
    ordering = ["name", "pk"]
    actions = ["run_selected", "pause_selected", "resume_selected"]

    # ---------------------------------------------------------------- who may

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may make schedules: to have any task called with anything."""
        return request.user.has_perm("pgqueue.add_schedule")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say whether the user may edit this one; the code's are the code's to edit."""
        return request.user.has_perm("pgqueue.change_schedule") and (obj is None or obj.origin == "admin")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say whether the user may remove this one; the code's end when no code has them."""
        return request.user.has_perm("pgqueue.delete_schedule") and (obj is None or obj.origin == "admin")

    def has_run_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may have schedules run now."""
        return RUN.is_allowed(request)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may pause and resume schedules."""
        return PAUSE.is_allowed(request)

    # ---------------------------------------------------------------- acts

    @admin.action(description=_("Run selected now"), permissions=["run"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Enqueue a job of each of the selected."""
        self._act_on_many(request, RUN, queryset)

    @admin.action(description=_("Pause selected"), permissions=["pause"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Stop the selected."""
        self._act_on_many(request, PAUSE, queryset)

    @admin.action(description=_("Resume selected"), permissions=["pause"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Go on with the selected."""
        self._act_on_many(request, RESUME, queryset)

    def _act_on_many(self, request: HttpRequest, operation: Operation, queryset: QuerySet[Any]) -> None:
        asked = list(queryset[:ONE_REQUEST])
        done, reasons = 0, []
        for one in asked:
            try:
                done += act_on_one(request, operation, one)
            except NotDone as error:
                reasons.append(str(error))
        if done:
            messages.success(request, operation.done % {"count": done})
        for reason in reasons[:REASONS_SHOWN]:
            messages.warning(request, reason)
        if left := len(asked) - done - len(reasons[:REASONS_SHOWN]):
            text = _("%(count)d left as they are: not as the page showed them, or locked.")
            messages.warning(request, text % {"count": left})

    def get_urls(self) -> list[URLPattern]:
        """Add one URL for each operation on one schedule."""
        own = [
            path(
                f"<int:schedule_id>/{operation.name}/",
                self.admin_site.admin_view(self.act_view),
                {"operation": operation},
                name=f"pgqueue_schedule_{operation.name}",
            )
            for operation in OPERATIONS
        ]
        return own + super().get_urls()

    def act_view(self, request: HttpRequest, schedule_id: int, operation: Operation) -> HttpResponseBase:
        """Do it to one schedule, then show its page; POST only."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not operation.is_allowed(request):
            raise PermissionDenied
        one = self.get_queryset(request).filter(pk=schedule_id).first()
        name = self.admin_site.name
        if one is None:
            messages.warning(request, _("There is no such schedule any more."))
            return HttpResponseRedirect(reverse("admin:pgqueue_schedule_changelist", current_app=name))
        try:
            if act_on_one(request, operation, one):
                messages.success(request, operation.done % {"count": 1})
            else:
                text = _("Nothing was changed: not as the page showed it, or another session holds it.")
                messages.warning(request, text)
        except NotDone as error:
            messages.warning(request, str(error))
        return HttpResponseRedirect(reverse("admin:pgqueue_schedule_change", args=[schedule_id], current_app=name))

    def changeform_view(
        self, request: HttpRequest, object_id: Any = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the form, or what there is to see of one of the code, with its buttons."""
        one = self.get_object(request, object_id) if object_id is not None else None
        shown_here = self._shown_here(request, one) if one else {}
        try:
            return super().changeform_view(request, object_id, form_url, {**shown_here, **(extra_context or {})})
        except JobLocked:
            messages.error(
                request, _("Another session holds this schedule, or has changed it. Nothing was changed; try again.")
            )
            return HttpResponseRedirect(request.get_full_path())

    def _shown_here(self, request: HttpRequest, one: Schedule) -> dict[str, Any]:
        operations = offered(request, one)
        return {"schedule": one, "operations": operations, "facts": self._facts(one), "shown": schedule_field(one)}

    def action_checkbox(self, obj: Any) -> SafeString:
        """Return Django's checkbox, and beside it what this row shows: *Run now* applies to that alone."""
        return format_html("{}{}", super().action_checkbox(obj), schedule_field(obj))

    def _facts(self, one: Schedule) -> list[tuple[Any, Any]]:
        """Return what there is to say about one, by label."""
        now, why = seen_at(one), wrong(one)
        return [
            (_("State"), self.state(one)),
            (_("Problem"), why and format_html('<span class="pgqueue-error">{}</span>', why)),
            (_("Next run"), self.next_run(one) and dated(one.next_run_at, now, with_zone=True)),
            (_("Last run"), dated(one.last_run_at, now, with_zone=True) if one.last_run_at else _("none yet")),
            (_("Last result"), self.last_result(one)),
            (_("Queue"), visible(one.queue_name)),
        ]

    # ---------------------------------------------------------------- one of the code, to look at

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the form's fields, or what is shown where there is nothing to edit."""
        return super().get_fields(request, obj) if self._is_form(request, obj) else SHOWN

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return what is shown where there is nothing to edit."""
        return () if self._is_form(request, obj) else SHOWN

    def get_form(self, request: HttpRequest, obj: Any = None, change: Any = False, **kwargs: Any) -> Any:  # noqa: FBT002 -- Django's
        """Return the form, an empty one where there is nothing to edit."""
        own = {} if self._is_form(request, obj) else {"form": forms.ModelForm}
        return super().get_form(request, obj, change, **{**kwargs, **own})

    def _is_form(self, request: HttpRequest, obj: Any) -> bool:
        return self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)

    # ---------------------------------------------------------------- writing

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        """Write what the form says, by `lifecycle`."""
        connection = connections[router.db_for_write(Schedule, instance=obj)]
        definition = form.definition()
        seen, _rows = lifecycle.schedules(connection)
        next_run_at = expressions.next_after(definition.expression, definition.time_zone, seen)
        if not change:
            enabled = form.cleaned_data["enabled"]
            obj.pk = lifecycle.add_schedule(
                connection, definition, origin="admin", next_run_at=next_run_at, enabled=enabled
            )
            done = obj.pk is not None
        else:
            shown = read_schedule(request, obj.pk)
            revision = shown[0] if shown else obj.revision  # of the form: another editor may have been faster
            done = lifecycle.change_schedule(
                connection, obj.pk, definition, revision=revision, next_run_at=next_run_at, tries=True
            )
        if not done:
            raise JobLocked(f"somebody else has just written the schedule {obj.name}")
        if change and "enabled" in form.changed_data:
            self._switch(connection, obj.pk, next_run_at if form.cleaned_data["enabled"] else None)

    def _switch(self, connection: BaseDatabaseWrapper, schedule_id: int, next_run_at: datetime | None) -> None:
        if next_run_at is None:
            lifecycle.pause_schedule(connection, schedule_id)
        else:
            lifecycle.resume_schedule(connection, schedule_id, next_run_at)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Remove one."""
        self.delete_queryset(request, Schedule.objects.filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Remove those of the admin among the selected, with the record of their ticks."""
        ids = list(queryset.values_list("pk", flat=True))
        lifecycle.remove_schedules(connections[router.db_for_write(Schedule)], ids, lifecycle.VOUCHED_SECONDS)
