"""The form that overrides a limit, or one of its keys: concurrency, rate, burst and share, with an end and a reason.

`jobs` gives it its URL. The form begins with the values in force. A field with the value that holds without
the override stores nothing, so that a later change of the code applies. The form posts the override that the page
showed; if that is another one by now, nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import acts
from django_pgqueue.admin import databases, private, shown
from django_pgqueue.admin.act_view import FORM, act_view
from django_pgqueue.admin.formatting import shortened
from django_pgqueue.admin.forms.form_page import form_page, in_future, time_field
from django_pgqueue.admin.navigation import limit_url, redirect_to
from django_pgqueue.control import limits as limit_control
from django_pgqueue.declared.limit_policies import KeyPolicy
from django_pgqueue.declared.limits import MAX_NUMBER, name_of
from django_pgqueue.models import LimitOverride
from django_pgqueue.tasks import registry

from .controls import FIELDS, inherited_policy, override_text, overrides_in_force, policy_in_force
from .words import limit_lines

SHOWN_FIELD: Final = "shown_change"
HELP: Final = {
    "concurrency": gettext_lazy("How many jobs of a key run at a time."),
    "rate": gettext_lazy("How many jobs of a key start in a period, such as 100/m, 5/s or 10/30s."),
    "burst": gettext_lazy("How many jobs of a key start at once after a time without starts."),
    "share": gettext_lazy("How many jobs of a key start in one turn."),
}

CHANGED_SINCE: Final = gettext_lazy(
    "Nothing was changed: the limit was changed since the page was shown. Check its values."
)


class LimitForm(forms.Form):
    """The values that shall hold for a limit or a key. An empty field means the value without the override."""

    concurrency = forms.IntegerField(required=False, min_value=1, max_value=MAX_NUMBER)
    rate = forms.CharField(required=False, max_length=20)
    burst = forms.IntegerField(required=False, min_value=1, max_value=MAX_NUMBER)
    share = forms.IntegerField(required=False, min_value=1, max_value=MAX_NUMBER)
    until = time_field(
        gettext_lazy("Until"),
        gettext_lazy("The change ends by itself at this time. If it is empty, it lasts until it is undone."),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=1000,
        help_text=gettext_lazy("The page of the limit and the audit show it."),
    )

    def __init__(self, *args: Any, inherited: KeyPolicy, is_name: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inherited = inherited
        if inherited.is_ordered:
            del self.fields["concurrency"]
        without = _("In the code: %(value)s.") if is_name else _("Without this change: %(value)s.")
        for name in FIELDS.keys() & self.fields.keys():
            value = getattr(inherited, name)
            words = {"value": _("none") if value is None else value}
            self.fields[name].label = str(FIELDS[name])
            self.fields[name].help_text = f"{HELP[name]} {without % words}"

    def clean_until(self) -> datetime | None:
        return in_future(self.cleaned_data["until"])

    def values(self) -> dict[str, Any]:
        """Return the fields of the override. None: the value is that which holds without the override."""
        given = {name: self.cleaned_data[name] or None for name in FIELDS if name in self.fields}
        return {name: None if value == getattr(self.inherited, name) else value for name, value in given.items()}


def form_url(site: AdminSite) -> URLPattern:
    """Return the URL of the form, below that of the list of jobs."""
    view = act_view(site, acts.OVERRIDE_LIMIT, partial(change_view, site=site), FORM)
    return path("limits/change/", view, name="pgqueue_limit_change")


def change_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """Show the form, or change the limit and show its page."""
    limit_key, alias = request.GET.get("key", ""), databases.chosen(request)
    private.check_key(request, limit_key)
    limit = registry.limits().get(name_of(limit_key))
    if limit is None or "\0" in limit_key:
        text = _("No task of this code declares the limit “%(name)s”.") % {"name": shortened(name_of(limit_key))}
        messages.error(request, text)
        return redirect_to(request, "limits")
    with transaction.atomic(using=alias):
        overrides = _overrides(request, alias, limit_key)
        form = _form(request, limit_key, overrides)
        if form.is_bound and form.is_valid() and _change(request, form, limit_key, overrides.get(limit_key)):
            text = _("Limit %(key)s is changed. Workers obey within a second.")
            messages.success(request, text % {"key": shortened(limit_key)})
            return HttpResponseRedirect(limit_url(request, limit_key))
    return _page(request, site, form, limit_key, overrides)


def _overrides(request: HttpRequest, alias: str, limit_key: str) -> dict[str, LimitOverride]:
    """Return the overrides of a key and of its limit. While one is changed, it is locked."""
    rows = overrides_in_force(alias).filter(limit_key__in={limit_key, name_of(limit_key)}).order_by("limit_key")
    return {row.limit_key: row for row in (rows.select_for_update() if request.method == "POST" else rows)}


def _form(request: HttpRequest, limit_key: str, overrides: Mapping[str, LimitOverride]) -> LimitForm:
    """Return the form with the posted values, or with those in force."""
    inherited, in_force = (find(limit_key, overrides) for find in (inherited_policy, policy_in_force))
    own = overrides.get(limit_key)
    values = {name: getattr(in_force, name) for name in FIELDS}
    initial = {**values, "until": own and own.valid_until, "reason": own and own.reason}
    is_name = name_of(limit_key) == limit_key
    return LimitForm(request.POST or None, initial=initial, inherited=cast(KeyPolicy, inherited), is_name=is_name)


def _change(request: HttpRequest, form: LimitForm, limit_key: str, own: LimitOverride | None) -> bool:
    """Change the limit as the valid form says. Otherwise add the reason to the form, and return False."""
    if request.POST.get(SHOWN_FIELD) != str(shown.number(own.changed_at if own else None)):
        form.add_error(None, CHANGED_SINCE)
        return False
    values = form.values()
    if own is None and not any(values.values()):
        form.add_error(None, _("Nothing was changed: the values are those that hold already."))
        return False
    try:
        is_changed = limit_control.override_shown(
            limit_key,
            values,
            until=form.cleaned_data["until"],
            reason=form.cleaned_data["reason"].replace("\0", ""),
            by=request.user.get_username(),
            database=databases.chosen(request),
            only_new=own is None,  # two requests that both saw no override cannot lock one
        )
    except ValueError as error:
        text = str(error)
        field = next((name for name in form.fields if f"{name} " in text), None)
        form.add_error(field, f"{text[:1].upper()}{text[1:]}.")
        return False
    if not is_changed:
        form.add_error(None, CHANGED_SINCE)
    return is_changed


def _page(
    request: HttpRequest, site: AdminSite, form: LimitForm, limit_key: str, overrides: Mapping[str, LimitOverride]
) -> HttpResponse:
    own, inherited = overrides.get(limit_key), inherited_policy(limit_key, overrides)
    limit = registry.limits()[name_of(limit_key)]
    of_all = _("The change applies to all keys of the limit that have no change of their own.")
    return form_page(
        request,
        site,
        form,
        title=_("Change the limit %(key)s") % {"key": shortened(limit_key)},
        submit=_("Change the limit"),
        back=limit_url(request, limit_key),
        notes=[
            _("Without a change: %(lines)s.") % {"lines": ", ".join(limit_lines(limit, form.inherited))},
            "" if own is None else override_text(own, inherited),
            of_all if limit.key is not None and limit_key == limit.name else "",
        ],
        hidden=shown.hidden_input(SHOWN_FIELD, shown.number(own.changed_at if own else None)),
        place="limits",
    )
