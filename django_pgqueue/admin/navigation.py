"""The navigation above all pages of the console: links to the other pages, and a switch between databases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.template.response import TemplateResponse

from django_pgqueue.db.queue_databases import queue_aliases
from django_pgqueue.models import Job

from . import databases
from .links import PLACES, allowed_url


def navigation(request: HttpRequest, site: AdminSite, current: str) -> dict[str, Any]:
    """Return what the template `pgqueue/admin/navigation.html` needs. `current` is the name of the page's own URL.

    The answer to a form has no switch between databases, because the form's URL may answer no GET request.
    """
    request.current_app = site.name
    alias = databases.chosen(request)
    choices = queue_aliases() if request.method in {"GET", "HEAD"} else []
    return {
        "pgqueue_places": [
            {"label": place.label, "url": url, "is_current": place.name == current}
            for place in PLACES
            if (url := allowed_url(request, place.name))
        ],
        # Filters are left out: their values belong to one database.
        "pgqueue_databases": [
            {"label": each, "url": databases.link_to(each, request.path), "is_current": each == alias}
            for each in choices
            if len(choices) > 1
        ],
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
    base = {
        **navigation(request, site, place or f"{opts.model_name}_changelist"),
        **site.each_context(request),
        "title": title,
        "original": str(title),  # themes take other values for a row, also a translation that is not yet text
        "opts": opts,
        "has_view_permission": True,
    }
    return TemplateResponse(request, f"pgqueue/admin/{template}", {**base, **context})
