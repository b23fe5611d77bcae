"""The tags and the filter for pages that Django renders: causes, figures, the sidebar, and the times of logs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from django.db import DatabaseError, Error, transaction
from django.http import Http404
from django.template import Context, Library

from django_pgqueue.doctor.session import Session
from django_pgqueue.stats.causes.current import current

register = Library()

STATEMENT_TIMEOUT_SECONDS: Final = 2
CAUSES_SHOWN: Final = 5
"""Causes on Django's index page. The overview has all."""


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
            return {**found, "tiles": tiles(request, current(alias).overview)}
    except DatabaseError:
        return found


@register.inclusion_tag("pgqueue/admin/index_causes.html", takes_context=True)
def pgqueue_causes(context: Mapping[str, Any]) -> dict[str, Any]:
    """Show what is wrong with the queue, if the user may view jobs. A database that does not answer breaks no page."""
    from django_pgqueue.admin import databases
    from django_pgqueue.admin.console.causes import cause_rows, found_causes
    from django_pgqueue.admin.navigation import allowed_url

    request = context.get("request")
    if request is None or not request.user.has_perm("pgqueue.view_job"):
        return {}
    try:
        alias = databases.chosen(request)
        with Session(alias).read_only(statement_timeout_seconds=STATEMENT_TIMEOUT_SECONDS):
            causes = found_causes(request, current(alias), with_keys=False)
    except (Error, Http404):
        return {}
    more = len(causes) - CAUSES_SHOWN
    rows = cause_rows(request, causes[:CAUSES_SHOWN])
    return {"causes": rows, "more": more, "overview_url": allowed_url(request, "overview")}


@register.simple_tag(takes_context=True)
def pgqueue_sidebar(context: Context) -> dict[str, Any]:
    """Return the apps of Django's sidebar with the pages of the console, and the next template of the sidebar.

    Pages of the console have theirs already, with counts. On other pages of the admin, the counts are left out.
    """
    from django_pgqueue.admin.navigation import pages_of
    from django_pgqueue.admin.sidebar import sidebar

    state: Any = context.render_context  # `template` is the one that has this tag, and not the page
    template, _ = state.template.engine.find_template(state.template.name, skip=[state.template.origin])
    apps, request = context.get("available_apps") or [], context.get("request")
    if request is not None and "pgqueue_groups" not in context:
        apps = [{**app, "models": list(app["models"])} for app in apps]
        with suppress(Http404):  # a parameter of the page that names no database of jobs
            apps = sidebar(request, apps, pages_of(request), None)
    return {"apps": apps, "template": template}


@register.filter
def pgqueue_moment(at: datetime) -> str:
    """Return a moment as all pages of the console show it."""
    from django_pgqueue.admin.formatting import moment

    return moment(at)
