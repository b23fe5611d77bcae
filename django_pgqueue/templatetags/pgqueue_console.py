"""The tag and the filter for pages that Django renders: the main figures on the index page, and the times of logs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import DatabaseError, transaction
from django.template import Library

from django_pgqueue import stats

register = Library()


@register.inclusion_tag("pgqueue/admin/index_figures.html", takes_context=True)
def pgqueue_figures(context: Mapping[str, Any]) -> dict[str, Any]:
    """Show the figures of all queues, if the user may view jobs. A database that does not answer breaks no page."""
    # Django's checks import all template tags. In a project without the admin, its models cannot be imported.
    from django_pgqueue.admin import databases
    from django_pgqueue.admin.console.overview import tiles
    from django_pgqueue.admin.navigation import allowed_url

    request = context["request"]
    if not request.user.has_perm("pgqueue.view_job"):
        return {}
    alias = databases.chosen(request)
    found: dict[str, Any] = {
        "overview_url": allowed_url(request, "overview"),
        "doctor_url": allowed_url(request, "doctor"),
    }
    try:
        with transaction.atomic(using=alias):
            return {**found, "tiles": list(tiles(request, stats.overview(alias)))}
    except DatabaseError:
        return found


@register.filter
def pgqueue_moment(at: datetime) -> str:
    """Return a moment as all pages of the console show it."""
    from django_pgqueue.admin.formatting import moment

    return moment(at)
