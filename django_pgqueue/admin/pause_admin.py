"""The list of pauses: pause a queue or a task, resume it, or open the preview that cancels the jobs behind it.

All changes of pauses go through `control`, so the admin and the command line do the same. A row that was written by
hand may have a name that `control.pause()` would refuse. Listing and resuming it still works.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue import queues
from django_pgqueue.control.queues import pause_named, resume_named
from django_pgqueue.control.targets import limit_key_problems, mistyped_limit
from django_pgqueue.declared.limits import has_value, name_of
from django_pgqueue.models import Job, Pause
from django_pgqueue.options.validation import NAME, unknown_queue
from django_pgqueue.states import Pausable, State, TransitionName
from django_pgqueue.stats.paused_jobs import JobsBehind, jobs_behind
from django_pgqueue.tasks import registry

from . import bulk_acts, databases, private, shown
from .act_view import log_change
from .formatting import badge, breakable, by_until, moment, moment_ago, seen_at, visible, word_text
from .forms.form_page import in_future
from .navigation import address, allowed_url
from .readonly import DatabaseChangeList, ListOnlyAdmin, column


class PauseForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The target, the end and the reason of a pause. Pausing a paused queue or task replaces its end and reason."""

    database: str
    may_view_keys: bool

    class Meta:
        model = Pause
        fields = ["kind", "name", "paused_until", "reason"]
        widgets = {"reason": forms.Textarea(attrs={"rows": 2})}
        help_texts = {
            "kind": _("All jobs of a queue, a task or a limit. They wait and are not lost. Running jobs continue."),
            "name": _(
                "The name of the queue; of the task as the list of jobs shows it, such as shop.tasks.send_receipt; of "
                "the limit; or one limit key, such as stripe:customer:7."
            ),
            "paused_until": _(
                "The pause ends by itself at this time. Leave it empty to pause until an operator resumes it."
            ),
        }

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if self.cleaned_data.get("kind") == Pausable.LIMIT:
            if has_value(name) and not self.may_view_keys:
                raise forms.ValidationError(private.NO_PERMISSION)
            for problem in limit_key_problems(name):
                raise forms.ValidationError(_("Invalid limit key: %(problem)s") % {"problem": problem})
        elif not NAME.fullmatch(name):
            raise forms.ValidationError(_("Invalid name: use 1 to 100 of the characters A-Z a-z 0-9 _ . : -"))
        return name

    def clean_paused_until(self) -> Any:
        return in_future(self.cleaned_data["paused_until"])

    def clean(self) -> dict[str, Any] | None:
        """Edit the existing pause if there is one; otherwise the unique constraint would refuse the form."""
        if self.cleaned_data.get("kind") == Pausable.QUEUE and "name" in self.cleaned_data:
            for problem in unknown_queue("queue", self.cleaned_data["name"]):
                self.add_error("name", problem)
        target = {"kind": self.cleaned_data.get("kind"), "name": self.cleaned_data.get("name")}
        existing = Pause.objects.using(self.database).filter(**target).first()
        if existing is not None:
            self.instance = existing
        return super().clean()


class PauseChangeList(DatabaseChangeList):
    """A page of pauses with the jobs behind them, which at most four statements count."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(cast(Any, self.result_list))
        found = jobs_behind(map(_target_of, rows), databases.chosen(request))
        for pause in rows:
            vars(pause)["behind"] = found[_target_of(pause)]
        self.result_list = cast(Any, rows)


def _behind(pause: Pause) -> JobsBehind:
    found: JobsBehind = vars(pause)["behind"]
    return found


class PauseAdmin(ListOnlyAdmin):
    """Pauses, latest first."""

    form = PauseForm
    add_form_template = "pgqueue/admin/pause_form.html"
    list_display = ["state", "what", "waiting", "running", "since", "until", "by"]
    ordering = ["-paused_at"]
    actions = ["resume_selected"]

    def get_form(self, request: HttpRequest, obj: Any = None, change: Any = False, **kwargs: Any) -> Any:  # noqa: FBT002 -- Django's
        """Return the form for the chosen database and the permissions of the user."""
        form = super().get_form(request, obj, change, **kwargs)
        about = {"database": databases.chosen(request), "may_view_keys": private.may_view(request)}
        return type(form.__name__, (form,), about)

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        """Allow the kind and the name too, which have an index: other pages link a single pause."""
        if lookup == "name" and request is not None and not private.may_view_key(request, str(value)):
            return False
        return lookup in {"kind", "name"} or super().lookup_allowed(lookup, value, request)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return PauseChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return private.with_permission(super().get_queryset(request), request)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Show the reason and the links to the jobs below the target, so that a phone shows them too."""
        preview = address("bulk_preview", site_name=self.admin_site.name)

        @admin.display(description=_("target"))
        def what(pause: Pause) -> SafeString:
            lines = [visible(pause.reason), format_html_join(", ", "{}", _job_links(request, preview, pause))]
            below = format_html_join(
                "", '<div class="pgqueue-last-words">{}</div>', ((line,) for line in lines if line)
            )
            return format_html("{}{}", self.what(pause), below)

        return [what if name == "what" else name for name in super().get_list_display(request)]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may pause. As for each operation, the user must be allowed to see the page too."""
        return request.user.has_perm("pgqueue.pause_queue") and self.has_view_permission(request)

    has_resume_permission = has_add_permission

    def save_model(self, request: HttpRequest, obj: Pause, form: Any, change: bool) -> None:  # noqa: FBT001 -- Django's
        """Pause as the user, and set the primary key that the admin's log entry needs."""
        kind = Pausable(obj.kind)
        if message := _mistyped(kind, obj.name, databases.chosen(request)):
            messages.warning(request, message)
        by = request.user.get_username()
        pause_named(kind, obj.name, databases.chosen(request), until=obj.paused_until, reason=obj.reason, by=by)
        if obj.kind == Pausable.TASK:
            obj.name = registry.names_of(obj.name)[0]
        obj.pk = Pause.objects.using(databases.chosen(request)).get(kind=obj.kind, name=obj.name).pk

    @admin.action(description=_("Resume selected"), permissions=["resume"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Pause]) -> None:
        """End the selected pauses. A pause that is not the one that the page showed stays."""
        alias = databases.chosen(request)
        with transaction.atomic(using=alias):
            for pause in queryset.select_for_update():
                what = _target_text(pause, is_visible=_may_view(request, pause))
                if not shown.is_as_shown(request, pause):
                    text = _("%(what)s was paused again since the page was shown, so it stays paused.")
                    messages.warning(request, text % {"what": what})
                elif resume(request, pause):
                    messages.success(request, _("%(what)s is resumed.") % {"what": what})

    # ---------------------------------------------------------------- columns

    def action_checkbox(self, obj: Pause) -> SafeString:
        """Return Django's checkbox and a hidden field with what this row shows."""
        return format_html("{}{}", super().action_checkbox(obj), shown.pause_field(obj))

    @admin.display(description=_("state"))
    def state(self, pause: Pause) -> SafeString:
        has_ended = pause.paused_until is not None and pause.paused_until <= seen_at(pause)
        return badge("cancelled", _("ended")) if has_ended else badge("paused", _("paused"))

    what = column(_("target"), lambda pause: breakable(_target_text(pause, is_visible=_shows_target(pause))))
    since = column(_("since"), lambda pause: moment_ago(pause.paused_at, pause))
    until = column(_("until"), lambda pause: moment(pause.paused_until) or _("an operator resumes it"))
    by = column(_("by"), lambda pause: breakable(word_text(pause.paused_by)))

    @admin.display(description=_("waiting"))
    def waiting(self, pause: Pause) -> str:
        """Return how many jobs wait behind a pause. No index counts the waiting jobs of a task."""
        count = _behind(pause).waiting
        return "–" if count is None else str(count)

    @admin.display(description=_("still running"))
    def running(self, pause: Pause) -> str:
        """Return how many jobs started before the pause and still run. At 0 it is drained."""
        return str(_behind(pause).running)


def resume(request: HttpRequest, pause: Pause) -> bool:
    """End a pause as the user, and write it into its history; return False if it has ended by itself."""
    is_resumed = resume_named(*_target_of(pause), _alias_of(pause), by=request.user.get_username())
    log_change(request, pause if is_resumed else None, "Resumed.")
    return is_resumed


def pauses_of(request: HttpRequest, job: Job) -> list[str]:
    """Return a description of each pause that keeps a job from starting, with a link if the user may view pauses."""
    return pauses_on(request, _alias_of(job), job.queue_name, job.task_name, job.limit_key or "")


def pauses_on(request: HttpRequest, alias: str, queue_name: str, task_name: str, limit_key: str) -> list[str]:
    """Do as `pauses_of()` for the jobs of a task in a queue. The limit key is a name for the keys of a whole limit."""
    names = {
        Pausable.QUEUE: [queue_name],
        Pausable.TASK: registry.names_of(task_name),
        Pausable.LIMIT: [limit_key, name_of(limit_key)],
    }
    pauses = in_force().using(alias).filter(name__in=[name for of_kind in names.values() for name in of_kind])
    return [
        _linked(request, pause, " ".join(filter(None, [_description(request, pause), visible(pause.reason)])))
        for pause in pauses
        if pause.name in names[_target_of(pause)[0]]
    ]


def _linked(request: HttpRequest, pause: Pause, text: str) -> str:
    """Return a text as a link to one pause in the list of pauses, or as it is if the user may not see the list."""
    name = pause.name if _may_view(request, pause) else None
    url = allowed_url(request, "pause_changelist", kind=pause.kind, name=name)
    return format_html('<a href="{}">{}</a>', url, text) if url else text


def _job_links(request: HttpRequest, preview: str, pause: Pause) -> Iterator[tuple[SafeString]]:
    """Yield links to the waiting jobs and to the preview that cancels them, for each name of a paused task."""
    if not _may_view(request, pause):
        return
    kind, name = _target_of(pause)
    parameter, names = ("task", registry.names_of(name)) if kind is Pausable.TASK else (str(kind), (name,))
    may_cancel = preview and bulk_acts.is_allowed(request, TransitionName.CANCEL)
    for each in names:
        waiting = {"state": State.READY, parameter: each}
        links = [(allowed_url(request, "job_changelist", **waiting), _("List waiting jobs"))]
        if may_cancel:
            act = databases.link(request, preview, action=TransitionName.CANCEL, **waiting)
            links.append((act, _("Cancel waiting…")))
        for url, text in links:
            if url:
                yield (format_html('<a href="{}" aria-label="{} {}">{}</a>', url, text, visible(each), text),)


def in_force() -> QuerySet[Pause]:
    """Return the pauses that have not ended."""
    return Pause.objects.filter(Q(paused_until__isnull=True) | Q(paused_until__gt=Now()))


def _may_view(request: HttpRequest, pause: Pause) -> bool:
    """Return whether the user may see what is paused: not a limit key without the permission to view arguments."""
    return pause.kind != Pausable.LIMIT or private.may_view_key(request, pause.name)


def _shows_target(pause: Pause) -> bool:
    """Do as `_may_view()` for a row of the list."""
    return pause.kind != Pausable.LIMIT or not has_value(pause.name) or private.is_visible(pause)


def _target_text(pause: Pause, *, is_visible: bool) -> str:
    """Return what is paused, with the value of a limit key only if it may be seen."""
    return f"{word_text(pause.kind)} {pause.name}" if is_visible else str(pause)


def _description(request: HttpRequest, pause: Pause) -> str:
    target = _target_text(pause, is_visible=_may_view(request, pause))
    text = _("%(what)s, paused") % {"what": visible(target)}
    return f"{text}{by_until(pause.paused_by, pause.paused_until)}{':' if pause.reason else ''}"


def _mistyped(kind: Pausable, name: str, alias: str) -> str:
    """Return a message if a name may be mistyped."""
    if kind is Pausable.QUEUE:
        return queues.mistyped(name, alias)
    return mistyped_limit(name) if kind is Pausable.LIMIT else ""


def _target_of(pause: Pause) -> tuple[Pausable, str]:
    """Return the kind and the name of what a row pauses. An invalid kind counts as a queue."""
    return (Pausable(pause.kind) if pause.kind in set(Pausable) else Pausable.QUEUE), pause.name


def _alias_of(row: Pause | Job) -> str:
    return row._state.db or DEFAULT_DB_ALIAS
