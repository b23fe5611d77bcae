"""A page with one form, for an operation that needs values from the operator.

`move_and_delete`, `edit_and_retry` and `enqueue_form` use it. It works without JavaScript.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from . import databases
from .navigation import rendered


class DatabaseForm(forms.Form):
    """A form about the jobs in one database."""

    def __init__(self, *args: Any, database: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.database = database


class Datalist(forms.TextInput):
    """A text input that offers known values and accepts others."""

    template_name = "pgqueue/admin/datalist.html"

    def __init__(self) -> None:
        super().__init__(attrs={"autocomplete": "off"})
        self.values: list[str] = []

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        identifier = f"{context['widget']['attrs'].get('id', name)}_values"
        context["widget"]["attrs"]["list"] = identifier
        return {**context, "list_id": identifier, "values": self.values}


def form_page(
    request: HttpRequest,
    site: AdminSite,
    form: forms.Form,
    *,
    title: Any,
    submit: Any,
    back: str,
    notes: list[Any],
    hidden: SafeString | str = "",
    is_dangerous: bool = False,
    place: str = "job_changelist",
) -> TemplateResponse:
    """Return the page. `notes` are sentences above the form, `hidden` more inputs, `back` the URL of *Cancel*.

    If `back` has parameters, it names the database itself. `place` is the link that the navigation marks as current.
    """
    context = {
        "form": form,
        "submit": submit,
        "back": back if "?" in back else databases.link(request, back),
        "notes": [note for note in notes if note],
        "hidden": hidden,
        "is_dangerous": is_dangerous,
    }
    return rendered(request, site, "form_page.html", title, context, place=place)
