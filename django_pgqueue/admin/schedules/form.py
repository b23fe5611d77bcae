"""The form of a schedule that is defined in the admin. Used by `schedules`.

It checks everything that a worker needs to run the schedule, so that an operator sees a mistake when saving and not at
the first run. It writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final
from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_pgqueue.display import in_line, shortened
from django_pgqueue.encoding.serialization import plain_arguments
from django_pgqueue.lifecycle.schedules import Definition
from django_pgqueue.models import Schedule
from django_pgqueue.options.task_options import scheduled_options
from django_pgqueue.schedules import cron_and_every, declarations, next_ticks
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.tasks.redaction import has_sensitive, redacted_call

OPERATION_FIELD: Final = "operation"
"""The name of the buttons in the form that run, pause or resume the schedule instead of saving the form."""
DEFAULTS: dict[str, Any] = {
    "args": [],
    "kwargs": {},
    "enabled": True,
    "missed": "latest",
    "if_running": "overlap",
    "jitter_seconds": 0,
    "queue_name": "",
    "priority": None,
}


class JSONField(forms.JSONField):
    """A JSON field that reports JSON which Python cannot read, such as lists nested 10,000 deep, as a form error."""

    widget = forms.Textarea(attrs={"rows": 3, "cols": 60})

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (RecursionError, ValueError) as error:
            raise ValidationError(_("Invalid JSON: it cannot be read. Check brackets, quotes and commas.")) from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what the form shows again: the text as it was entered if it cannot be read."""
        try:
            return super().bound_data(data, initial)
        except (RecursionError, ValueError):
            return InvalidJSONInput(data)


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The task, its arguments, and when to run it."""

    database: str

    task_name = forms.ChoiceField(label=_("Task"))
    expression = forms.CharField(
        label=_("When"),
        max_length=next_ticks.MAX_LENGTH,
        widget=AdminTextInputWidget,
        help_text=_(
            "A cron expression with five fields (minute hour day month weekday), such as 30 9 * * 1-5; or @hourly, "
            "@daily, @weekly, @monthly, @yearly; or an interval, such as: every 5 minutes."
        ),
    )
    time_zone = forms.CharField(
        label=_("Time zone"),
        max_length=64,
        widget=AdminTextInputWidget,
        help_text=_("Time zone of the cron expression, such as Europe/Paris."),
    )
    args = JSONField(label=_("Arguments"), required=False, help_text=_('A JSON list, such as [1, "a"].'))
    kwargs = JSONField(label=_("Named arguments"), required=False, help_text=_('A JSON object, such as {"days": 7}.'))
    jitter_seconds = forms.FloatField(
        label=_("Jitter"),
        required=False,
        min_value=0,
        max_value=cron_and_every.MAX_JITTER_SECONDS,
        help_text=_("Each run is delayed by a random time of up to this many seconds."),
    )
    queue_name = forms.CharField(
        label=_("Queue"),
        required=False,
        widget=AdminTextInputWidget,
        help_text=_("Queue of the jobs. If it is empty, they go to the queue of the task."),
    )
    priority = forms.IntegerField(
        label=_("Priority"),
        required=False,
        help_text=_("Priority of the jobs, from -100 to 100. If it is empty, they have the priority of the task."),
    )

    class Meta:
        model = Schedule
        fields = [
            "name",
            "task_name",
            "args",
            "kwargs",
            "expression",
            "time_zone",
            "missed",
            "if_running",
            "jitter_seconds",
            "queue_name",
            "priority",
            "enabled",
        ]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = [task.name for task in registry.all_tasks()]
        current = self.instance.task_name
        self.fields["task_name"].choices = [  # type: ignore[attr-defined]  # a ChoiceField, declared above
            (name, name) for name in dict.fromkeys(["", *([current] if current else []), *names])
        ]
        own = dict(DEFAULTS, time_zone=settings.TIME_ZONE)
        if not self.instance._state.adding:
            jitter = self.instance.jitter_seconds
            own = self._shown_call()
            own["jitter_seconds"] = int(jitter) if jitter.is_integer() else jitter
            own["queue_name"] = self.instance.queue_name if self.instance.has_own_queue else ""
            own["priority"] = self.instance.priority if self.instance.has_own_priority else None
        self.initial = {**self.initial, **own}
        self._show_hidden_characters()

    def _show_hidden_characters(self) -> None:
        """Write the stored value below each field whose value has characters that its input does not show.

        The input has the value as it is stored, because an escape in it would be saved as a change. Django shows help
        texts as HTML.
        """
        for name, field in self.fields.items():
            value = field.prepare_value(self.initial.get(name))
            if isinstance(value, str) and in_line(value) != value:
                text = _("The stored value has hidden characters:"), shortened(in_line(value))
                field.help_text = format_html("{} <code>{}</code> ", *text) + str(field.help_text)

    def _shown_call(self) -> dict[str, Any]:
        """Return the stored arguments as the form shows them. If the task has sensitive arguments, they are hidden."""
        given = self.instance.arguments if isinstance(self.instance.arguments, dict) else {}
        args, kwargs = given.get("args", []), given.get("kwargs", {})
        task = registry.get(self.instance.task_name)
        if task is None or not isinstance(args, list) or not isinstance(kwargs, dict):
            return {"args": [], "kwargs": {}}
        args, kwargs = redacted_call(task, args, kwargs)
        return {"args": args, "kwargs": kwargs}

    def clean_name(self) -> str:
        """Refuse an invalid name, and a name that another schedule of the admin has."""
        name: str = self.cleaned_data["name"].strip()
        if not cron_and_every.is_name(name):
            raise ValidationError(_("Invalid name: use printable characters only."))
        others = Schedule.objects.using(self.database).filter(origin="admin", name=name).exclude(pk=self.instance.pk)
        if others.exists():
            raise ValidationError(_("Another schedule has this name. Choose a different one."))
        return name

    def clean_task_name(self) -> str:
        name: str = self.cleaned_data["task_name"]
        if registry.get(name) is None:
            raise ValidationError(_("No task with this name is registered. Choose one from the list."))
        return name

    def clean_time_zone(self) -> str:
        name: str = self.cleaned_data["time_zone"]
        if name not in available_timezones():
            raise ValidationError(_("Unknown time zone. Use a name such as Europe/Paris or UTC."))
        return name

    def clean(self) -> dict[str, Any]:
        """Refuse an invalid expression, arguments that the task does not accept, and operations on unsaved changes."""
        given = super().clean() or self.cleaned_data
        if OPERATION_FIELD in self.data:
            self.add_error(None, _("This form differs from the schedule as it is saved."))
        given["expression"] = " ".join(given.get("expression", "").split())
        args, kwargs = given.get("args") or [], given.get("kwargs") or {}
        given |= {"args": args, "kwargs": kwargs, "jitter_seconds": given.get("jitter_seconds") or 0.0}
        if given["expression"]:
            try:
                next_ticks.check(given["expression"], given.get("time_zone", "UTC"))
            except ValueError as error:
                self.add_error("expression", str(error))
        given["queue_name"] = given.get("queue_name") or None
        task = registry.get(given.get("task_name") or "")
        if task is not None:
            self._check_options(task, given)
        if not isinstance(args, list):
            self.add_error("args", _("Arguments must be a list, such as [1, 2]."))
        elif not isinstance(kwargs, dict):
            self.add_error("kwargs", _('Named arguments must be an object, such as {"days": 7}.'))
        elif task is not None and not self.errors.keys() & {"args", "kwargs"}:
            self._check_call(task, args, kwargs)
        return given

    def _check_call(self, task: TaskDefinition, args: list[Any], kwargs: dict[str, Any]) -> None:
        try:
            declarations.check_arguments(task, args, kwargs)
            if has_sensitive(task, args, kwargs):
                raise ValueError(_("it has sensitive arguments, which belong in the code and not in this form"))
            plain_arguments(args, kwargs)
        except (TypeError, ValueError) as error:
            self.add_error("args", _("The task does not accept these arguments: %(why)s") % {"why": error})

    def _check_options(self, task: TaskDefinition, given: dict[str, Any]) -> None:
        """Refuse a jitter that does not fit the task, and a queue and a priority that `using()` would refuse."""
        checks: dict[str, Callable[[], object]] = {
            "jitter_seconds": partial(declarations.check_jitter, task, given["jitter_seconds"]),
            "queue_name": partial(declarations.as_scheduled, task, given["queue_name"], None),
            "priority": partial(declarations.as_scheduled, task, None, given.get("priority")),
        }
        for field, check in checks.items():
            try:
                check()
            except ValueError as error:
                self.add_error(field, str(error))

    def definition(self) -> Definition:
        """Return the definition that a valid form describes."""
        given = self.cleaned_data
        task = registry.get(given["task_name"])
        assert task is not None, "clean_task_name() has checked it"  # noqa: S101 -- for the type checker
        return Definition(
            name=given["name"],
            task_name=given["task_name"],
            arguments=plain_arguments(given["args"], given["kwargs"]),
            expression=given["expression"],
            time_zone=given["time_zone"],
            missed=given["missed"],
            if_running=given["if_running"],
            jitter_seconds=given["jitter_seconds"],
            options=scheduled_options(declarations.as_scheduled(task, given["queue_name"], given["priority"])),
            is_unique=task.unique_key is not None,
            is_limited=task.has_limit_key,
            has_own_queue=given["queue_name"] is not None,
            has_own_priority=given["priority"] is not None,
        )
