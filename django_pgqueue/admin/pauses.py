"""What is paused: a list, a form that pauses, and what ends a pause or clears what waits behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_pgqueue import control, registry
from django_pgqueue.models import Pause
from django_pgqueue.states import Pausable
from django_pgqueue.validation import NAME

from . import shown
from .readonly import ReadOnlyAdmin
from .words import ago, badge, breakable, full_date, moment, seen_at, visible

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Pause]
else:
    ModelForm = forms.ModelForm  # not generic at run time

COUNTED: Final = 10_000
"""Waiting jobs that are counted for the list: 0.65 ms."""


class PauseForm(ModelForm):
    """What to pause, until when, and why. What is paused already is paused anew."""

    class Meta:
        model = Pause
        fields = ["kind", "name", "paused_until", "reason"]
        widgets = {"reason": forms.Textarea(attrs={"rows": 2})}
        help_texts = {
            "kind": _("All jobs of a queue, or all jobs of a task. They wait, and none is lost; what runs goes on."),
            "name": _("The queue's name, or the task's as jobs show it, such as shop.tasks.send_receipt."),
            "paused_until": _("It ends by itself then. Empty: somebody has to end it."),
        }

    def clean_name(self) -> str:
        """Refuse what can be no name."""
        name = str(self.cleaned_data["name"])
        if not NAME.fullmatch(name):
            raise forms.ValidationError(_("1 to 100 of the characters A-Z a-z 0-9 _ . : -"))
        return name

    def clean_paused_until(self) -> Any:
        """Refuse what would end before it begins."""
        until = self.cleaned_data["paused_until"]
        if until is not None and until <= timezone.now():
            raise forms.ValidationError(_("This is past already."))
        return until

    def clean(self) -> dict[str, Any] | None:
        """Let a pause be told anew: then it is that one."""
        target = {"kind": self.cleaned_data.get("kind"), "name": self.cleaned_data.get("name")}
        known = Pause.objects.using(_alias()).filter(**target).first()
        if known is not None:
            self.instance = known
        return super().clean()


class PauseAdmin(ReadOnlyAdmin):
    """Pauses, the latest first."""

    form = PauseForm
    list_display = ["state", "what", "waiting", "running", "since", "until", "by", "why"]
    list_display_links = None
    ordering = ["-paused_at"]
    actions = ["resume_selected", "clear_selected"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pause]:
        """Return the pauses, with the database's clock."""
        pauses: QuerySet[Pause] = super().get_queryset(request)
        return pauses.annotate(seen_at=Now())

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may pause."""
        return request.user.has_perm("pgqueue.pause_queue")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may end pauses."""
        return request.user.has_perm("pgqueue.pause_queue")

    def has_clear_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may cancel what waits."""
        return request.user.has_perms(["pgqueue.pause_queue", "pgqueue.cancel_job"])

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the list: it has all there is to see."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse("admin:pgqueue_pause_changelist", current_app=self.admin_site.name))

    def save_model(self, request: HttpRequest, obj: Pause, form: Any, change: bool) -> None:  # noqa: FBT001 -- Django's
        """Pause, in the name of the user."""
        control.pause(
            **_target(obj), until=obj.paused_until, reason=obj.reason, by=request.user.get_username(), database=_alias()
        )
        if obj.kind == Pausable.TASK:
            obj.name = registry.names_of(obj.name)[0]
        obj.pk = Pause.objects.using(_alias()).get(kind=obj.kind, name=obj.name).pk

    @admin.action(description=_("Resume selected"), permissions=["resume"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Pause]) -> None:
        """End the selected pauses."""
        for pause in queryset:
            if control.resume_named(*_named(pause), _alias()):
                _write_down(request, pause, "Resumed.")
                messages.success(request, _("%(what)s goes on.") % {"what": pause})

    @admin.action(description=_("Cancel what waits in selected"), permissions=["clear"])
    def clear_selected(self, request: HttpRequest, queryset: QuerySet[Pause]) -> HttpResponse | None:
        """Ask, with the numbers; then cancel the jobs that wait behind the selected pauses."""
        if "confirmed" not in request.POST:
            return self._ask(request, queryset)
        for pause in queryset:
            waiting = control.waiting_behind(*_named(pause), _alias()).filter(enqueued_at__lte=shown.page_at(request))
            count = waiting.cancel(running=False)
            _write_down(request, pause, f"Cleared: {count} jobs cancelled.")
            told = ngettext("%(what)s: %(count)s job cancelled.", "%(what)s: %(count)s jobs cancelled.", count)
            messages.success(request, told % {"what": pause, "count": f"{count:,}"})
        return None

    def _ask(self, request: HttpRequest, queryset: QuerySet[Pause]) -> HttpResponse:
        pauses = list(queryset)
        numbers = [(pause, f"{control.waiting_behind(*_named(pause), _alias()).count():,}") for pause in pauses]
        context = {
            **self.admin_site.each_context(request),
            "title": _("Cancel what waits?"),
            "original": _("Cancel what waits?"),
            "opts": self.opts,
            "has_view_permission": True,
            "numbers": numbers,
            "field": shown.TIME_FIELD,
            "shown_at": max((shown.number(seen_at(pause)) for pause in pauses), default=""),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "pgqueue/admin/clear.html", context)

    # ---------------------------------------------------------------- columns

    @admin.display(description=_("state"))
    def state(self, pause: Pause) -> SafeString:
        """Return a badge: paused, or over."""
        over = pause.paused_until is not None and pause.paused_until <= seen_at(pause)
        return badge("cancelled", _("over")) if over else badge("running", _("paused"))

    @admin.display(description=_("what"))
    def what(self, pause: Pause) -> SafeString:
        """Return its kind and name."""
        return breakable(str(pause))

    @admin.display(description=_("waiting"))
    def waiting(self, pause: Pause) -> str:
        """Return how many jobs wait in a queue, as far as that is cheap to say; no index has a task's."""
        if pause.kind != Pausable.QUEUE:
            return "–"
        count = control.waiting_behind(*_named(pause), _alias()).order_by()[: COUNTED + 1].count()
        return f"{COUNTED:,}+" if count > COUNTED else f"{count:,}"

    @admin.display(description=_("still running"))
    def running(self, pause: Pause) -> str:
        """Return how many jobs have begun before the pause and go on: at 0 it is drained."""
        return f"{control.running_behind(*_named(pause), _alias()).count():,}"

    @admin.display(description=_("since"))
    def since(self, pause: Pause) -> Any:
        """Return when it began."""
        return moment(pause.paused_at, ago(pause.paused_at, seen_at(pause), brief=True))

    @admin.display(description=_("until"))
    def until(self, pause: Pause) -> Any:
        """Return when it ends by itself, if it does."""
        return moment(pause.paused_until) if pause.paused_until else _("somebody resumes it")

    @admin.display(description=_("by"))
    def by(self, pause: Pause) -> str:
        """Return who paused it."""
        return visible(pause.paused_by)

    @admin.display(description=_("reason"))
    def why(self, pause: Pause) -> str:
        """Return why."""
        return visible(pause.reason)


def held_back_by(queue_name: str, task_name: str, database: str | None) -> list[str]:
    """Return in words the pauses that a job waits behind."""
    pauses = in_force().using(database).filter(name__in=[queue_name, *registry.names_of(task_name)])
    return [
        " ".join(filter(None, [_told(pause), visible(pause.reason)]))
        for pause in pauses
        if pause.kind != Pausable.QUEUE or pause.name == queue_name
    ]


def in_force() -> QuerySet[Pause]:
    """Return the pauses that are not over."""
    return Pause.objects.filter(Q(paused_until__isnull=True) | Q(paused_until__gt=Now()))


def _told(pause: Pause) -> str:
    by = _(" by %(who)s") % {"who": visible(pause.paused_by)} if pause.paused_by else ""
    until = _(" until %(at)s") % {"at": full_date(pause.paused_until)} if pause.paused_until else ""
    told = _("%(what)s, paused%(by)s%(until)s") % {"what": visible(str(pause)), "by": by, "until": until}
    return f"{told}:" if pause.reason else str(told)


def _target(pause: Pause) -> dict[str, str]:
    return {"queue_name" if pause.kind == Pausable.QUEUE else "task": pause.name}


def _named(pause: Pause) -> tuple[Pausable, str]:
    """Return what a row pauses. An invalid kind counts as a queue."""
    return (Pausable.TASK if pause.kind == Pausable.TASK else Pausable.QUEUE), pause.name


def _alias() -> str:
    return control.alias(None)


def _write_down(request: HttpRequest, pause: Pause, what: str) -> None:
    LogEntry.objects.log_actions(request.user.pk, [pause], CHANGE, what)  # type: ignore[arg-type]  # it has a user
