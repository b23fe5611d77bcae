"""Addresses of pages of the admin, for links between them.

A site need not register every model, so a page can be missing. The link is left out then, and the page that would show
it still works.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_pgqueue.admin import databases, private
from django_pgqueue.declared.limits import name_of

from .formatting import breakable, visible


def address(name: str, *args: Any, site_name: str | None) -> str:
    """Return the address of the page `admin:pgqueue_<name>` on a site, or "" if the site does not have it."""
    try:
        return reverse(f"admin:pgqueue_{name}", args=args, current_app=site_name)
    except NoReverseMatch:
        return ""


def address_for(request: HttpRequest, name: str, *args: Any) -> str:
    """Return the address of a page on the site of the request, or "" if the site does not have it."""
    return address(name, *args, site_name=getattr(request, "current_app", None))


def redirect_to(request: HttpRequest, name: str, *args: Any, part: str = "", **parameters: Any) -> HttpResponseRedirect:
    """Return a redirect to a page on the site and of the database of the request, or to the part of it with this id."""
    url = databases.link(request, address_for(request, name, *args), **parameters)
    return HttpResponseRedirect(f"{url}#{part}" if part else url)


def limit_url(request: HttpRequest, limit_key: str) -> str:
    """Return the URL of the page of a limit, with one key chosen if the user may see it; "" without the page."""
    found, name = address_for(request, "limit"), name_of(limit_key)
    key = limit_key.partition(":")[2] if private.may_view_key(request, limit_key) else ""
    return databases.link(request, found, limit=name, key=key or None) if found else ""


def key_link(request: HttpRequest, limit_key: str) -> SafeString | str:
    """Return a limit key as a link to its row, or as text if the site has no page of limits."""
    url, text = limit_url(request, limit_key), private.shown_key(request, limit_key)
    return format_html('<a href="{}">{}</a>', url, breakable(text)) if url else visible(text)


def jobs_url(request: HttpRequest, limit_key: str, state: str) -> str:
    """Return the URL of the list of the jobs of a key, or of all keys of a limit, in one state.

    Return "" if the site has no such list, or if the user may not see the key.
    """
    if not private.may_view_key(request, limit_key):
        return ""
    name = "deadjob_changelist" if state == "dead" else "job_changelist"
    found = address_for(request, name)
    parameters = {} if state == "dead" else {"state": state}
    return databases.link(request, found, **parameters, limit=limit_key) if found else ""
