"""The form fields of a task's arguments: each shows a stored JSON value as text, and reads the text back.

`argument_form` makes one field for each parameter. An annotation decides which one; without an annotation it is JSON.
Two invariants hold: an empty field means that the argument is not passed, and a field that was not edited keeps exactly
the value that the job stores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date
from enum import Enum
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.arguments.converter import PLAIN, UNREADABLE, Converter, Mismatch, PlainConverter
from django_pgqueue.arguments.rows import LoadedRows, RowConverter, RowMissing
from django_pgqueue.display import visible
from django_pgqueue.encoding.serialization import normalise


class NotPassed(Enum):
    """The type of `NOT_PASSED`."""

    NOT_PASSED = "not passed"


NOT_PASSED: Final = NotPassed.NOT_PASSED
"""The value of an argument that a call does not pass, so that the function's default applies."""

Check = Callable[[Any], None]
"""Raises `Mismatch` or `RowMissing` if a stored value does not fit."""


class ArgumentField(forms.CharField):
    """The field of one argument. Subclasses say how a value is shown and read."""

    help: Any = ""
    invalid = gettext_lazy("Invalid JSON. Check brackets, quotes and commas. Put text in double quotes.")

    def __init__(self, *, stored: Any, check: Check, **options: Any) -> None:
        """Create the field.

        Args:
            stored: The value that the job stores, or `NOT_PASSED`.
            check: Called with each value that was read.
            **options: Options of `CharField`.
        """
        self.stored = stored
        self.check = check
        super().__init__(initial="" if stored is NOT_PASSED else self.show(stored), **options)

    def show(self, stored: Any) -> str:
        """Return the text for a stored value."""
        return as_json(stored)

    def read(self, text: str) -> Any:
        """Return the value to store for a text. Raise `ValidationError` if the text has no such value."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ValidationError(self.invalid) from None

    def clean(self, value: Any) -> Any:
        """Return the value to store, or `NOT_PASSED`."""
        text = str(self.to_python(value)).replace("\r\n", "\n")
        if self.stored is not NOT_PASSED and text == self.initial:
            read = self.stored
        else:
            text = super().clean(text)
            if not text:
                return NOT_PASSED
            read = self.read(text)
        self._checked(read)
        return read

    def _checked(self, read: Any) -> None:
        try:
            normalise(read, _("The value"), 1)
            self.check(read)
        except Mismatch as error:
            problem = error.problem.replace(UNREADABLE, "must be")  # nothing is stored yet
            raise ValidationError(_("The value%s.") % f"{error.path} {problem}") from None
        except RowMissing as error:
            name = error.model._meta.verbose_name
            raise ValidationError(_("There is no %(model)s with this primary key.") % {"model": name}) from None
        except (TypeError, ValueError) as error:
            raise ValidationError(visible(str(error))) from None
        except RecursionError:
            raise ValidationError(_("The value is nested too deeply.")) from None


class JsonField(ArgumentField):
    """Any value, as JSON."""

    help = gettext_lazy("JSON.")

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=_textarea(options["stored"], 2), **options)


class NumberField(ArgumentField):
    """An `int` or a `float`."""

    invalid = gettext_lazy("Enter a number.")

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}), **options)


class TextField(ArgumentField):
    """A `str`, as plain text. Text that a form would change is shown as a JSON string."""

    help = gettext_lazy('Text that begins with " is read as JSON, so "" is the empty text.')

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=_textarea(options["stored"], 1), strip=False, **options)

    def show(self, stored: Any) -> str:
        is_plain = isinstance(stored, str) and stored and not stored.startswith('"') and visible(stored) == stored
        return str(stored) if is_plain else as_json(stored)

    def read(self, text: str) -> Any:
        if not text.startswith('"'):
            return text
        return super().read(text)


class ScalarField(ArgumentField):
    """A type that is stored as a string, such as `datetime`, `Decimal` or `UUID`; or the primary key of a row."""

    def __init__(self, *, converter: Converter, **options: Any) -> None:
        self.converter = converter
        super().__init__(widget=forms.TextInput(attrs={"autocomplete": "off"}), **options)
        if converter.expected == "date" and _is_day(self.initial):
            self.widget.input_type = "date"

    def show(self, stored: Any) -> str:
        return stored if isinstance(stored, str) and visible(stored) == stored else as_json(stored)

    def read(self, text: str) -> Any:
        if isinstance(self.converter, RowConverter):
            try:
                return self.converter.encode(text)
            except Mismatch:
                raise ValidationError(_("This is not a primary key of %s.") % self.converter.model.__name__) from None
        return text


class ChoiceField(ArgumentField):
    """One of a few values: a `bool`, the members of an enum, or a `Literal`."""

    def __init__(self, *, choices: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.texts = {"": "---------", **choices}
        if self.initial:
            self.texts.setdefault(self.initial, visible(self.initial))
        self.widget = forms.Select(choices=list(self.texts.items()))
        self.widget.is_required = self.required

    def show(self, stored: Any) -> str:
        return json.dumps(stored)

    def read(self, text: str) -> Any:
        if text not in self.texts:
            raise ValidationError(_("Choose one of the values."))
        return super().read(text)


def as_json(value: Any) -> str:
    """Return a value as JSON for a form. Hidden characters are escapes, so that the operator sees them."""
    text = json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict | list) else None)
    if "\r" in text or visible(text) != text:
        text = json.dumps(value, indent=2 if isinstance(value, dict | list) else None)
    return text


def check_of(converter: Converter | None, database: str) -> Check:
    """Return the check of a converter, as the worker and `enqueue()` read and check a value."""

    def check(stored: Any) -> None:
        if converter is not None:
            rows = LoadedRows(database, converter.references(stored))
            converter.encode(converter.decode(stored, rows))

    return check


def without_none(converter: Converter | None) -> Converter | None:
    """Return the converter of `T` for one of `T | None`. An empty field stands for the default None."""
    if isinstance(converter, PlainConverter):
        return next((each for each in PLAIN.values() if {*converter.types} == {*each.types, type(None)}), converter)
    members = [each for each in getattr(converter, "members", ()) if each is not PLAIN[type(None)]]
    return members[0] if len(members) == 1 else converter


def _textarea(stored: Any, rows: int) -> forms.Textarea:
    lines = 0 if stored is NOT_PASSED else as_json(stored).count("\n") + str(stored).count("\n") + 1
    return forms.Textarea(attrs={"rows": min(max(rows, lines), 15), "cols": 60, "spellcheck": "false"})


def _is_day(text: str) -> bool:
    """Return whether a browser's date picker can show a text. It would show any other text as empty."""
    if not text:
        return True
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
