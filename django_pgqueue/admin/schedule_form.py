"""The form of a schedule that is made in the admin: everything is checked before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext_lazy as _

from django_pgqueue import expressions, registry, timetable
from django_pgqueue.arguments import encode_arguments
from django_pgqueue.lifecycle import Definition
from django_pgqueue.models import Schedule

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Schedule]
else:
    ModelForm = forms.ModelForm  # not generic at run time


DEFAULTS: dict[str, Any] = {
    "args": [],
    "kwargs": {},
    "enabled": True,
    "missed": "latest",
    "if_running": "overlap",
    "jitter_seconds": 0,
}


class JSONField(forms.JSONField):
    """Django's, that refuses what Python cannot read, as nested 10,000 deep, instead of failing."""

    widget = forms.Textarea(attrs={"rows": 3, "cols": 60})

    def to_python(self, value: Any) -> Any:
        """Return what the JSON says."""
        try:
            return super().to_python(value)
        except (RecursionError, ValueError) as error:
            raise ValidationError(_("This cannot be read as JSON.")) from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what is shown again, as it was given if it cannot be read."""
        try:
            return super().bound_data(data, initial)
        except (RecursionError, ValueError):
            return InvalidJSONInput(data)


class ScheduleForm(ModelForm):
    """What, when, with what."""

    task_name = forms.ChoiceField(label=_("Task"))
    expression = forms.CharField(
        label=_("When"),
        max_length=expressions.MAX_LENGTH,
        widget=AdminTextInputWidget,
        help_text=_(
            "A cron expression of five fields, minute hour day month weekday, as in 30 9 * * 1-5; @hourly, @daily, "
            "@weekly, @monthly or @yearly; or an interval, as in: every 5 minutes."
        ),
    )
    time_zone = forms.CharField(
        label=_("Time zone"),
        max_length=64,
        widget=AdminTextInputWidget,
        help_text=_("That a cron expression is read in, as in Europe/Paris."),
    )
    args = JSONField(label=_("Arguments"), required=False, help_text=_('A list in JSON, as in [1, "a"].'))
    kwargs = JSONField(label=_("Named arguments"), required=False, help_text=_('An object in JSON, as in {"days": 7}.'))
    jitter_seconds = forms.FloatField(
        label=_("Jitter"),
        required=False,
        min_value=0,
        max_value=timetable.MAX_JITTER_SECONDS,
        help_text=_("Seconds up to which each start is put off at random."),
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
            "enabled",
        ]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = [task.name for task in registry.all_tasks()]
        former = self.instance.task_name
        self.fields["task_name"].choices = [  # type: ignore[attr-defined]  # it is a ChoiceField, said above
            (name, name) for name in dict.fromkeys(["", *([former] if former else []), *names])
        ]
        own = dict(DEFAULTS, time_zone=settings.TIME_ZONE)
        if not self.instance._state.adding:
            given = self.instance.arguments if isinstance(self.instance.arguments, dict) else {}
            jitter = self.instance.jitter_seconds
            own = {"args": given.get("args", []), "kwargs": given.get("kwargs", {})}
            own["jitter_seconds"] = int(jitter) if jitter.is_integer() else jitter
        self.initial = {**self.initial, **own}

    def clean_name(self) -> str:
        """Refuse a name that another schedule of the admin has, or that cannot be one."""
        name: str = self.cleaned_data["name"].strip()
        if not timetable.is_name(name):
            raise ValidationError(_("A name is of printable characters."))
        if Schedule.objects.filter(origin="admin", name=name).exclude(pk=self.instance.pk).exists():
            raise ValidationError(_("There is a schedule of this name."))
        return name

    def clean_task_name(self) -> str:
        """Refuse a task that is not known here."""
        name: str = self.cleaned_data["task_name"]
        if registry.get(name) is None:
            raise ValidationError(_("No task of this name is known here."))
        return name

    def clean_time_zone(self) -> str:
        """Refuse a time zone that is none."""
        name: str = self.cleaned_data["time_zone"]
        if name not in available_timezones():
            raise ValidationError(_("No time zone has this name; one is named as in Europe/Paris, or UTC."))
        return name

    def clean(self) -> dict[str, Any]:
        """Refuse an expression that is none, and arguments that the task does not take."""
        given = super().clean() or self.cleaned_data
        given["expression"] = " ".join(given.get("expression", "").split())
        args, kwargs = given.get("args") or [], given.get("kwargs") or {}
        given |= {"args": args, "kwargs": kwargs, "jitter_seconds": given.get("jitter_seconds") or 0.0}
        if given["expression"]:
            try:
                expressions.check(given["expression"], given.get("time_zone", "UTC"))
            except ValueError as error:
                self.add_error("expression", str(error))
        self._check_jitter(given.get("task_name"), given["jitter_seconds"])
        if not isinstance(args, list):
            self.add_error("args", _("It must be a list, as in [1, 2]."))
        elif not isinstance(kwargs, dict):
            self.add_error("kwargs", _('It must be an object, as in {"days": 7}.'))
        elif not self.errors.keys() & {"task_name", "args", "kwargs"}:
            self._check_call(given["task_name"], args, kwargs)
        return given

    def _check_call(self, task_name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        task = registry.get(task_name)
        try:
            if task is not None:
                timetable.check_arguments(task, args, kwargs)
            encode_arguments(args, kwargs)
        except (TypeError, ValueError) as error:
            self.add_error("args", _("The task cannot be called with these: %(why)s") % {"why": error})

    def _check_jitter(self, task_name: str | None, jitter_seconds: float) -> None:
        task = registry.get(task_name) if task_name else None
        try:
            if task is not None:
                timetable.check_jitter(task, jitter_seconds)
        except ValueError as error:
            self.add_error("jitter_seconds", str(error))

    def definition(self) -> Definition:
        """Return what a valid form says."""
        given = self.cleaned_data
        task = registry.get(given["task_name"])
        assert task is not None, "clean_task_name() has seen to it"  # noqa: S101 -- for the type checker
        return Definition(
            name=given["name"],
            task_name=given["task_name"],
            arguments=encode_arguments(given["args"], given["kwargs"]),
            expression=given["expression"],
            time_zone=given["time_zone"],
            missed=given["missed"],
            if_running=given["if_running"],
            jitter_seconds=given["jitter_seconds"],
            **timetable.task_options(task),
        )
