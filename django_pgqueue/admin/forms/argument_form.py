"""The form of a call: one field for each parameter of a task, made from its signature and its annotations.

`edit_and_retry` shows it with the arguments of a job, and `enqueue_form` without. It checks the values as `enqueue()`
does, each at its field, and writes nothing.
"""

from __future__ import annotations

import inspect
import json
import reprlib
from contextlib import suppress
from enum import Enum
from inspect import Parameter
from typing import Any, Final

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.call_values import CallValues, StoredArguments, call_of, parameters_of, values_of
from django_pgqueue.arguments.converter import PLAIN, Converter, Mismatch
from django_pgqueue.arguments.plan import CallPlan, new_plan
from django_pgqueue.arguments.rows import RowConverter
from django_pgqueue.arguments.scalars import EnumConverter, LiteralConverter, TextConverter
from django_pgqueue.display import shortened, visible
from django_pgqueue.encoding.serialization import plain_arguments
from django_pgqueue.enqueue.new_job import check_fit
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.tasks.redaction import BY_POSITION

from .argument_fields import (
    NOT_PASSED,
    ArgumentField,
    Check,
    ChoiceField,
    JsonField,
    NumberField,
    ScalarField,
    TextField,
    check_of,
    without_none,
)
from .form_page import DatabaseForm

PREFIX: Final = "argument-"
"""Start of the names of the arguments' fields. No other field has it, because `-` is in no name of Python."""
HINTS: Final = {
    "datetime": gettext_lazy("ISO 8601, such as 2030-01-31T08:00:00+01:00."),
    "time": gettext_lazy("Such as 08:30."),
    "timedelta": gettext_lazy("Such as 00:30:00 for half an hour, or P1DT2H for a day and two hours."),
    "bytes": gettext_lazy("Base64."),
}


NO_PLAN: Final = new_plan(lambda: None, 0)
"""The plan of a task whose annotations cannot be used: it has no converters."""


class ArgumentForm(DatabaseForm):
    """The arguments of a call of `task`. A valid form has the call, as a job stores it, in `cleaned_call`."""

    def __init__(self, *args: Any, task: TaskDefinition, stored: StoredArguments | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.task = task
        self.stored = CallValues() if stored is None else values_of(task, stored)
        self.cleaned_call = StoredArguments((), {})
        self.fields = {**self._argument_fields(_plan_of(task)), **self.fields}

    def clean(self) -> dict[str, Any]:
        """Check the call as a whole: its form, and its size."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        by_name = {
            name.removeprefix(PREFIX): value
            for name, value in given.items()
            if name.startswith(PREFIX) and value is not NOT_PASSED
        }
        if not any(name.startswith(PREFIX) for name in self.errors):
            try:
                self.cleaned_call = call_of(self.task, CallValues(by_name, self.stored.by_position))
                check_fit(self.task, *self.cleaned_call)
                plain_arguments(*self.cleaned_call)
            except (TypeError, ValueError) as error:
                self.add_error(None, visible(str(error)))
        return given

    def _argument_fields(self, plan: CallPlan) -> dict[str, ArgumentField]:
        """Return the fields by name, in the order of the parameters."""
        places = iter(plan.positional)
        fields = {}
        for parameter in parameters_of(self.task):
            named = plan.named.get(parameter.name)
            converter = next(places, (None, None))[1] if parameter.kind in BY_POSITION else named
            fields[f"{PREFIX}{parameter.name}"] = self._field(parameter, converter, plan)
        return fields

    def _field(self, parameter: Parameter, converter: Converter | None, plan: CallPlan) -> ArgumentField:
        is_sensitive = parameter.name in self.task.sensitive
        options: dict[str, Any] = {
            "stored": self.stored.by_name.get(parameter.name, NOT_PASSED),
            "label": label_of(parameter),
            "required": parameter.default is Parameter.empty and parameter.kind not in MORE,
        }
        kind = without_none(converter) if parameter.default is None else converter
        if parameter.kind in MORE:
            field: ArgumentField = JsonField(check=_check_of_more(parameter.kind, plan, self.database), **options)
        else:
            field = field_for(kind, check=check_of(converter, self.database), **options)
        field.help_text = _help(parameter, field, kind, is_sensitive=is_sensitive)
        if is_sensitive:
            field.widget = forms.PasswordInput(attrs={"autocomplete": "new-password"})
        return field


MORE: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _check_of_more(kind: Any, plan: CallPlan, database: str) -> Check:
    """Return the check of the list for `*args`, or of the object for `**kwargs`."""

    def check(stored: Any) -> None:
        if not isinstance(stored, list if kind is Parameter.VAR_POSITIONAL else dict):
            wanted = "a JSON list" if kind is Parameter.VAR_POSITIONAL else "a JSON object"
            raise Mismatch(f"must be {wanted}")
        if isinstance(stored, list):
            for index, item in enumerate(stored):
                _check_item(plan.more_positional, item, f"[{index}]", database)
            return
        for name, item in stored.items():
            _check_item(plan.named.get(name, plan.more_named), item, f".{name}", database)

    return check


def field_for(kind: Converter | None, **options: Any) -> ArgumentField:
    """Return the field for the values of an annotation."""
    if isinstance(kind, EnumConverter):
        members = {json.dumps(kind.encode(each)): _name_of(each, kind.encode(each)) for each in kind.enum_class}
        return ChoiceField(choices=members, **options)
    if isinstance(kind, LiteralConverter):
        return ChoiceField(choices={json.dumps(each): str(each) for each in kind.options}, **options)
    if kind is PLAIN[bool]:
        return ChoiceField(choices={"true": "True", "false": "False"}, **options)
    if kind is PLAIN[int] or kind is PLAIN[float]:
        return NumberField(**options)
    if kind is PLAIN[str]:
        return TextField(**options)
    if isinstance(kind, TextConverter | RowConverter):
        return ScalarField(converter=kind, **options)
    return JsonField(**options)


def label_of(parameter: Parameter) -> str:
    """Return a parameter's name and annotation as in the source, such as `*days: date`."""
    stars = "*" * (MORE.index(parameter.kind) + 1) if parameter.kind in MORE else ""
    if parameter.annotation is Parameter.empty:
        return f"{stars}{parameter.name}"
    written = parameter.annotation
    text = written if isinstance(written, str) else inspect.formatannotation(written)
    return visible(f"{stars}{parameter.name}: {text}")


def _help(parameter: Parameter, field: ArgumentField, kind: Converter | None, *, is_sensitive: bool) -> str:
    """Return how to write a value, and what an empty field means."""
    parts = [field.help or HINTS.get(kind.expected if kind else "", "")]
    if isinstance(kind, RowConverter):
        parts = [_("Primary key of %s.") % kind.model._meta.label]
    if parameter.kind in MORE:
        parts = [_("A JSON list.") if parameter.kind is Parameter.VAR_POSITIONAL else _("A JSON object.")]
    elif is_sensitive:
        parts.append(_("Sensitive: it is not shown."))
    elif parameter.default is not Parameter.empty:
        parts.append(_("Leave it empty for the default: %s.") % visible(_repr(parameter.default)))
    return " ".join(str(part) for part in parts if part)


def _repr(default: Any) -> str:
    """Return a default as the operator would write it: a tuple is a list in JSON, as in the field."""
    if isinstance(default, list | tuple | dict):
        with suppress(TypeError, ValueError, RecursionError):
            return shortened(json.dumps(default, ensure_ascii=False))
    return default.name if isinstance(default, Enum) else reprlib.repr(default)


def _name_of(member: Any, stored: Any) -> str:
    name = str(getattr(member, "label", member.name))
    return name if name == stored else f"{name} ({stored})"


def _check_item(converter: Converter | None, item: Any, step: str, database: str) -> None:
    try:
        check_of(converter, database)(item)
    except Mismatch as error:
        raise error.within(step) from None


def _plan_of(task: TaskDefinition) -> CallPlan:
    """Return the converters of a task's parameters, or none if its annotations cannot be used.

    The values of tasks of another framework stay plain JSON, so their annotations do not describe what is stored.
    """
    if task.adapter is not None:
        return NO_PLAN
    try:
        return new_plan(task.func, int(task.takes_context))
    except InvalidTask:
        return NO_PLAN
