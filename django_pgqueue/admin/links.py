"""Addresses of pages of the admin, for links between them.

A site need not register every model, so a page can be missing. The link is left out then, and the page that would show
it still works.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse

from . import databases


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
