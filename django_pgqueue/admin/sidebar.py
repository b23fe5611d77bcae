"""The pages of the console in the sidebar of Django's admin, each with the count that matters there.

`navigation()` calls it for each page of the console, and the tag `pgqueue_sidebar` for the other pages of the admin,
without the counts. The counts come from the latest reading of this process, if that
is young enough. This module reads nothing, so no page costs a query more. With JavaScript, `live.js` fills in the
counts after the page is shown, from the document of the overview.
"""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue.stats import Count, Overview
from django_pgqueue.stats.causes.current import latest

APP: Final = "pgqueue"
COUNTS: Final[dict[str, tuple[str, Promise | str]]] = {
    "job_changelist": ("due", _("due jobs")),
    "deadjob_changelist": ("dead_24h", _("jobs that died in the last 24 hours")),
    "worker_changelist": ("workers", _("live worker processes")),
    "tasks": ("unknown", _("jobs that workers do not know")),
    "limits": ("held", _("jobs that a limit does not admit now")),
    "pause_changelist": ("paused", _("due jobs of paused queues, tasks and limits")),
}
"""The figure of the overview that each page has in the sidebar, and what it counts."""
OF_JOBS: Final = frozenset({"tasks", "limits", "pause_changelist"})
"""The pages whose figure counts jobs, and not what the page lists. The unit stands behind it."""


def sidebar(
    request: HttpRequest, apps: list[dict[str, Any]], pages: list[tuple[str, Any, str, bool]], alias: str | None
) -> list[dict[str, Any]]:
    """Return the apps of the sidebar, with the pages of the console in place of the models of this app.

    Args:
        request: The request.
        apps: The apps as Django's admin site lists them. They are changed in place.
        pages: The name, the label and the URL of each page, and whether it is the current one.
        alias: The chosen database. None: leave out the counts, because the page has no style and no refresh for them.
    """
    facts = latest(alias) if alias is not None and request.user.has_perm("pgqueue.view_job") else None
    overview = facts.overview if facts else None
    for app in apps:
        if app["app_label"] == APP:
            models = {f"{each['object_name'].lower()}_changelist": each for each in app["models"]}
            app["models"] = [
                {
                    # Django makes an id of the name of the object, and a page has parts with such ids.
                    **models.pop(name, {"object_name": f"{name}_page", "add_url": None, "view_only": True}),
                    "name": str(label) if alias is None else _with_count(request, name, label, overview),
                    "admin_url": url if is_current else _never_current(url),
                }
                for name, label, url, is_current in pages
            ] + list(models.values())
    return apps


def _with_count(request: HttpRequest, name: str, label: Any, overview: Overview | None) -> SafeString | str:
    """Return the label of a page with an element for its count. The element is empty if nobody has counted lately."""
    if name not in COUNTS or not request.user.has_perm("pgqueue.view_job"):
        return str(label)
    figure, title = COUNTS[name]
    text = _text(getattr(overview, figure)) if overview else ""
    unit = format_html(' data-unit="{}"', _("jobs")) if name in OF_JOBS else ""
    return format_html(
        '{} <span class="pgqueue-count" data-count="{}"{} title="{}">{}</span>', label, figure, unit, title, text
    )


def _text(figure: Count | int | None) -> str:
    """Return a figure, or "" if it is 0 or not known."""
    count = figure if isinstance(figure, Count) else Count(figure or 0)
    return str(count) if count.value else ""


def _never_current(url: str) -> str:
    """Return a URL that Django's template does not find in the path of the request, as it would for "…/job/"."""
    return url if "?" in url else f"{url}?"
