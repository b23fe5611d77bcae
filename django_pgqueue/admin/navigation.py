"""The navigation above all pages of the console: links to the other pages, and a switch between databases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.functional import Promise

from django_pgqueue.db.queue_databases import queue_aliases
from django_pgqueue.models import Job

from . import databases
from .links import PLACES, LinkedPage, address


class ShownLink(NamedTuple):
    """A link as the template shows it."""

    label: Promise | str
    url: str
    is_current: bool


def navigation(request: HttpRequest, site_name: str, current: str) -> dict[str, Any]:
    """Return what the template `pgqueue/admin/navigation.html` needs. `current` is the name of the page's own URL.

    The answer to a form has no switch between databases, because the form's URL may answer no GET request.
    """
    alias = databases.chosen(request)
    choices = _choices() if request.method in {"GET", "HEAD"} else []
    places = [(place, url) for place in PLACES if (url := _url(request, site_name, place))]
    return {
        "pgqueue_places": [ShownLink(place.label, url, place.name == current) for place, url in places],
        "pgqueue_databases": [_switch(request, each, is_current=each == alias) for each in choices],
        "database_query": databases.query(request),
    }


def rendered(
    request: HttpRequest,
    site: AdminSite,
    template: str,
    title: Any,
    context: Mapping[str, Any],
    *,
    opts: Any = Job._meta,
    place: str = "",
) -> TemplateResponse:
    """Return a page below the navigation.

    Args:
        request: The request.
        site: The admin site.
        template: Its name, below `pgqueue/admin/`.
        title: The title. The context may have another one.
        context: The values for the template.
        opts: The options of the model that the breadcrumbs name.
        place: The link that the navigation marks as current. By default it is the list of the model.
    """
    request.current_app = site.name
    base = {
        **site.each_context(request),
        **navigation(request, site.name, place or f"{opts.model_name}_changelist"),
        "title": title,
        "original": str(title),  # themes take other values for a row, also a translation that is not yet text
        "opts": opts,
        "has_view_permission": True,
    }
    return TemplateResponse(request, f"pgqueue/admin/{template}", {**base, **context})


def _url(request: HttpRequest, site_name: str, place: LinkedPage) -> str | None:
    found = address(place.name, site_name=site_name) if request.user.has_perm(place.permission) else ""
    return databases.link(request, found) if found else None


def _choices() -> list[str]:
    """Return the databases to choose from. With one database, there is nothing to choose."""
    found = queue_aliases()
    return found if len(found) > 1 else []


def _switch(request: HttpRequest, alias: str, *, is_current: bool) -> ShownLink:
    """Return a link to this page for another database. Filters are left out: their values belong to one database."""
    parameters = "" if alias == queue_aliases()[0] else f"?{databases.PARAMETER}={alias}"
    return ShownLink(alias, f"{request.path}{parameters}", is_current)
