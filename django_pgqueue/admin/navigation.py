"""The navigation: the addresses of the console's pages, the links between them, and the row of links above them all.

A site need not register every model, so a page can be missing. The link is left out then, and the page that would show
it still works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from django import VERSION
from django.apps import apps
from django.conf import settings
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import databases, private
from django_pgqueue.db.queue_databases import queue_aliases
from django_pgqueue.declared.limits import name_of
from django_pgqueue.models import Job

from .formatting import breakable, visible
from .sidebar import sidebar


class LinkedPage(NamedTuple):
    """A page that the navigation links: the name of its URL without the prefix, its label, and its permission."""

    name: str
    label: Promise | str
    permission: str


class PageGroup(NamedTuple):
    """Pages that belong together. The first row of the navigation links the first of them that the user may see."""

    label: Promise | str
    pages: tuple[LinkedPage, ...]


GROUPS: Final = (
    PageGroup(_("Overview"), (LinkedPage("overview", _("Overview"), "pgqueue.view_job"),)),
    PageGroup(
        _("Jobs"),
        (
            LinkedPage("job_changelist", _("Jobs"), "pgqueue.view_job"),
            LinkedPage("deadjob_changelist", _("Dead letters"), "pgqueue.view_job"),
            LinkedPage("incidents", _("Incidents"), "pgqueue.view_job"),
            LinkedPage("jobbatch_changelist", _("Batches"), "pgqueue.view_jobbatch"),
        ),
    ),
    PageGroup(
        _("Queues"),
        (
            LinkedPage("queues", _("Queues"), "pgqueue.view_job"),
            LinkedPage("limits", _("Limits"), "pgqueue.view_job"),
            LinkedPage("pause_changelist", _("Pauses"), "pgqueue.view_pause"),
        ),
    ),
    PageGroup(
        _("Tasks"),
        (
            LinkedPage("tasks", _("Tasks"), "pgqueue.view_job"),
            LinkedPage("schedule_changelist", _("Schedules"), "pgqueue.view_schedule"),
        ),
    ),
    PageGroup(
        _("System"),
        (
            LinkedPage("worker_changelist", _("Workers"), "pgqueue.view_worker"),
            LinkedPage("doctor", _("Doctor"), "pgqueue.view_job"),
            LinkedPage("bulk_acts", _("Audit"), "pgqueue.view_job"),
        ),
    ),
)
"""All pages that the navigation links, in its order. It leaves out a page whose model is not registered."""
PLACES: Final = tuple(page for group in GROUPS for page in group.pages)
KEYS: Final = {
    "overview": "o",
    "job_changelist": "j",
    "deadjob_changelist": "d",
    "incidents": "i",
    "jobbatch_changelist": "b",
    "queues": "q",
    "limits": "l",
    "pause_changelist": "p",
    "tasks": "t",
    "schedule_changelist": "s",
    "worker_changelist": "w",
    "doctor": "c",
    "bulk_acts": "a",
}
"""The key that opens each page after "g"."""
PERMISSIONS: Final = {
    **{place.name.removesuffix("list"): place.permission for place in PLACES},
    "search": "pgqueue.view_job",
}
"""The permissions of these pages. The page of a row, such as `job_change`, needs that of its list."""


def address(name: str, *args: Any, site_name: str | None) -> str:
    """Return the address of the page `admin:pgqueue_<name>` on a site, or "" if the site does not have it."""
    try:
        return reverse(f"admin:pgqueue_{name}", args=args, current_app=site_name)
    except NoReverseMatch:
        return ""


def address_for(request: HttpRequest, name: str, *args: Any) -> str:
    """Return the address of a page on the site of the request, or "" if the site does not have it."""
    return address(name, *args, site_name=getattr(request, "current_app", None))


def page_url(request: HttpRequest, name: str, /, *args: Any, **parameters: Any) -> str:
    """Return the URL of a page on the site and of the database of the request, or "" if the site does not have it."""
    found = address_for(request, name, *args)
    return databases.link(request, found, **parameters) if found else ""


def allowed_url(request: HttpRequest, name: str, /, *args: Any, **parameters: Any) -> str:
    """Return the URL of a page as `page_url()` does, or "" if the user may not see it."""
    permission = PERMISSIONS.get(name.removesuffix("list"))
    if permission is not None and not request.user.has_perm(permission):
        return ""
    return page_url(request, name, *args, **parameters)


def redirect_to(request: HttpRequest, name: str, *args: Any, part: str = "", **parameters: Any) -> HttpResponseRedirect:
    """Return a redirect to a page on the site and of the database of the request, or to the part of it with this id."""
    url = databases.link(request, address_for(request, name, *args), **parameters)
    return HttpResponseRedirect(f"{url}#{part}" if part else url)


def limit_url(request: HttpRequest, limit_key: str) -> str:
    """Return the URL of the page of a limit, with one key chosen if the user may see it; "" without the page."""
    key = limit_key.partition(":")[2] if private.may_view_key(request, limit_key) else ""
    return page_url(request, "limit", limit=name_of(limit_key), key=key or None)


def key_link(request: HttpRequest, limit_key: str) -> SafeString | str:
    """Return a limit key as a link to its row, or as text if the site has no page of limits."""
    url, text = limit_url(request, limit_key), private.shown_key(request, limit_key)
    return format_html('<a href="{}">{}</a>', url, breakable(text)) if url else visible(text)


def jobs_url(request: HttpRequest, word: str, **filters: str | None) -> str:
    """Return the URL of the list of jobs in one state, which is a word such as "due"; "" if the user may not see it."""
    if word == "dead":
        return allowed_url(request, "deadjob_changelist", **filters)
    return allowed_url(request, "job_changelist", state=word, **filters)


def key_jobs_url(request: HttpRequest, limit_key: str, word: str) -> str:
    """Return the URL of the list of the jobs of a key or a limit in one state; "" if the user may not see the key."""
    return jobs_url(request, word, limit=limit_key) if private.may_view_key(request, limit_key) else ""


def navigation(request: HttpRequest, site: AdminSite, current: str) -> dict[str, Any]:
    """Return what the template `pgqueue/admin/navigation.html` needs. `current` is the name of the page's own URL.

    The answer to a form has no switch between databases, because the form's URL may answer no GET request.
    """
    request.current_app = site.name
    alias = databases.chosen(request)
    choices = queue_aliases() if request.method in {"GET", "HEAD"} else []
    return {
        **_places(request, current),
        "available_apps": sidebar(request, site.get_app_list(request), pages_of(request, current), alias),
        "pgqueue_keys": [
            (KEYS[place.name], place.label, url) for place in PLACES if (url := allowed_url(request, place.name))
        ],
        "pgqueue_counts_url": allowed_url(request, "overview") and page_url(request, "overview_json"),
        "pgqueue_as_of": f"{timezone.localtime():%H:%M:%S}" if settings.USE_TZ else f"{timezone.now():%H:%M:%S}",
        # Filters are left out: their values belong to one database.
        "pgqueue_databases": [
            {"label": each, "url": databases.link_to(each, request.path), "is_current": each == alias}
            for each in choices
            if len(choices) > 1
        ],
        "database_query": databases.query(request),
        "pgqueue_search": _search(request, alias),
    }


def _search(request: HttpRequest, alias: str) -> dict[str, str]:
    """Return what the search box needs: the URLs of its page and of its suggestions, and the text on that page."""
    if not (url := allowed_url(request, "search")):
        return {"url": ""}
    path = address_for(request, "search")
    return {
        "url": path,
        "json_url": page_url(request, "search_json"),
        "typed": request.GET.get("q", "") if request.path == path else "",
        "alias": alias if "?" in url else "",
    }


def pages_of(request: HttpRequest, current: str = "") -> list[tuple[str, Any, str, bool]]:
    """Return the name, the label and the URL of each page that the user may see, and whether it is the current one."""
    urls = ((place, allowed_url(request, place.name)) for place in PLACES)
    return [(place.name, place.label, url, place.name == current) for place, url in urls if url]


def _path(request: HttpRequest, current: str, title: Any) -> list[dict[str, Any]]:
    """Return the links of the breadcrumbs between the app and the title: the group, and the page if this is below it.

    Two neighbours never have the same label: the page *Queues* of the group *Queues* occurs once.
    """
    found: list[dict[str, Any]] = []
    for group in GROUPS:
        for place in group.pages:
            if place.name == current:
                urls = (allowed_url(request, each.name) for each in group.pages)
                first, url = next(filter(None, urls), ""), allowed_url(request, place.name)
                group_url = "" if first == url else first  # two links to one page would say nothing
                found = [{"label": group.label, "url": group_url}, {"label": place.label, "url": url}]
    labels = [*(str(each["label"]) for each in found), str(title)]
    return [each for each, label, following in zip(found, labels, labels[1:], strict=False) if label != following]


def _places(request: HttpRequest, current: str) -> dict[str, Any]:
    """Return the two rows of links: the groups, and the pages of the current group if it has several."""
    groups: list[dict[str, Any]] = []
    pages: list[dict[str, Any]] = []
    for group in GROUPS:
        found = [
            {"label": place.label, "url": url, "is_current": place.name == current}
            for place in group.pages
            if (url := allowed_url(request, place.name))
        ]
        if found:
            is_current = any(place["is_current"] for place in found)
            label = group.label if len(found) > 1 else found[0]["label"]
            groups.append(
                {"label": label, "url": found[0]["url"], "is_current": is_current, "is_page": len(found) == 1}
            )
            pages = found if is_current and len(found) > 1 else pages
    return {"pgqueue_groups": groups, "pgqueue_places": pages}


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
    current = place or f"{opts.model_name}_changelist"
    base = {
        **site.each_context(request),
        **navigation(request, site, current),
        "pgqueue_path": _path(request, current, context.get("title", title)) if place else [],
        "place_is_named": bool(place),
        "needs_heading": apps.is_installed("unfold"),  # its header names the model only
        "has_list_of_breadcrumbs": VERSION >= (6, 1),
        "title": title,
        "original": str(title),  # themes take other values for a row, also a translation that is not yet text
        "opts": opts,
        "has_view_permission": True,
    }
    return TemplateResponse(request, f"pgqueue/admin/{template}", {**base, **context})
