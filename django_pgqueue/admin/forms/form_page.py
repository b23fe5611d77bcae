"""A page with one form, for an operation that needs values from the operator, and the fields of a queue and a priority.

`job.actions`, `edit_and_retry` and `enqueue_form` use it. It works without JavaScript.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.db import connections
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue import queues, stats
from django_pgqueue.admin.navigation import rendered
from django_pgqueue.db.fields import aware
from django_pgqueue.options.task_options import OPTIONS
from django_pgqueue.options.validation import unknown_queue
from django_pgqueue.tasks import registry


class DatabaseForm(forms.Form):
    """A form about the jobs in one database."""

    def __init__(self, *args: Any, database: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.database = database


def time_field(label: Any, help_text: Any) -> forms.DateTimeField:
    """Return the field of an optional time, in the time zone of the admin."""
    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")
    return forms.DateTimeField(label=label, required=False, widget=widget, help_text=help_text)


def in_future(given: datetime | None) -> datetime | None:
    """Return the time of an optional field with its time zone. Raise `ValidationError` if it is in the past."""
    at = None if given is None else aware(given)
    if at is not None and at <= datetime.now(UTC):
        raise ValidationError(_("This time is in the past. Choose a later one, or leave it empty."))
    return at


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
    """Return the page. `notes` are sentences above the form, `hidden` more inputs, `back` the URL of *Back*
    with its database.

    `place` is the link that the navigation marks as current.
    """
    context = {
        "form": form,
        "submit": submit,
        "back": back,
        "notes": [note for note in notes if note],
        "hidden": hidden,
        "is_dangerous": is_dangerous,
    }
    return rendered(request, site, "form_page.html", title, context, place=place)


class PlaceForm(DatabaseForm):
    """A queue and a priority. An empty field leaves the value of the job, or that of the task, as it is.

    `job.actions` and `enqueue_form` use it.
    """

    queue_name = forms.CharField(label=_("Queue"), required=False, max_length=100, widget=Datalist)
    anyway = forms.BooleanField(label=_("Use this queue all the same"), required=False)
    priority = forms.IntegerField(
        label=_("Priority"),
        required=False,
        min_value=-100,
        max_value=100,
        help_text=_("From -100 to 100. Higher priorities run first."),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["queue_name"].widget.values = sorted(
            {*stats.names(connections[self.database]).queues, *(task.queue_name for task in registry.all_tasks())}
        )
        self._is_asked = False

    def clean_queue_name(self) -> str | None:
        """Refuse an invalid name, and a name that is not in `PGQUEUE["QUEUES"]`."""
        name: str = self.cleaned_data["queue_name"]
        if not name:
            return None
        check = OPTIONS["queue_name"].check
        for problem in [*(check("the queue", name) if check else ()), *unknown_queue("queue", name)]:
            raise ValidationError(f"{problem[:1].upper()}{problem[1:]}.")
        return name

    def clean(self) -> dict[str, Any]:
        """Ask about a queue that nothing uses if a queue with a similar name is used."""
        given = super().clean() or self.cleaned_data
        name = given.get("queue_name")
        if name and not given.get("anyway") and (message := queues.mistyped(name, self.database)):
            self.add_error("queue_name", f"{message[:1].upper()}{message[1:]}")
            self._is_asked = True
        return given

    def visible_fields(self) -> list[Any]:
        """Return the fields to show: the question about the name only if it was asked."""
        is_asked = self._is_asked or "anyway" in self.data
        return [field for field in super().visible_fields() if field.name != "anyway" or is_asked]
