"""Links to the page of a limit, and to the jobs of a limit key."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_pgqueue.limits import name_of

from . import databases
from .formatting import breakable, visible
from .links import address_for


def limit_url(request: HttpRequest, limit_key: str) -> str:
    """Return the URL of the page of a limit, with one key chosen if it is not the limit's name; "" without the page."""
    found, name = address_for(request, "limit"), name_of(limit_key)
    key = limit_key.partition(":")[2]
    return databases.link(request, found, limit=name, key=key or None) if found else ""


def key_link(request: HttpRequest, limit_key: str) -> SafeString | str:
    """Return a limit key as a link to its row, or as text if the site has no page of limits."""
    url = limit_url(request, limit_key)
    return format_html('<a href="{}">{}</a>', url, breakable(limit_key)) if url else visible(limit_key)


def jobs_url(request: HttpRequest, limit_key: str, state: str) -> str:
    """Return the URL of the list of the jobs of a key, or of all keys of a limit, in one state; "" without the list."""
    name = "deadjob_changelist" if state == "dead" else "job_changelist"
    found = address_for(request, name)
    parameters = {} if state == "dead" else {"state": state}
    return databases.link(request, found, **parameters, limit=limit_key) if found else ""
