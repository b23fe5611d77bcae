"""Choose the database that a page of the admin shows: the parameter `database` of its URL, or the routers' choice.

The choice is a part of the URL, so two tabs can show two databases, and a form that a page posts to its own URL changes
the database that the page showed. Django's own links, such as *Add* and *Delete*, carry the parameters of the list in
one parameter, which can contain the choice too.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.db import router
from django.http import Http404, HttpRequest, QueryDict
from django.utils.translation import gettext as _

from django_pgqueue.db.queue_databases import queue_aliases
from django_pgqueue.models import Job

PARAMETER: Final = "database"
LIST_PARAMETER: Final = "_changelist_filters"
"""The parameter by which Django's pages of one row remember the parameters of the list."""


def chosen(request: HttpRequest) -> str:
    """Return the alias of the database that a request is about. Raise `Http404` if its URL names an unknown one."""
    first = router.db_for_write(Job)
    of_list = QueryDict(request.GET.get(LIST_PARAMETER, ""))
    alias = request.GET.get(PARAMETER, of_list.get(PARAMETER, first))
    if alias != first and alias not in queue_aliases():
        raise Http404(_("No database with the alias “%(alias)s” contains jobs.") % {"alias": alias})
    return alias


def list_parameters(request: HttpRequest, preserved: str) -> str:
    """Return the parameters that Django appends to its own links and redirects, with the chosen database.

    Args:
        request: The request.
        preserved: The parameters that Django would append: those of the list, inside one parameter.
    """
    of_list = QueryDict(QueryDict(preserved).get(LIST_PARAMETER, ""), mutable=True)
    of_list.pop(PARAMETER, None)
    if (alias := chosen(request)) != router.db_for_write(Job):
        of_list[PARAMETER] = alias
    return urlencode({LIST_PARAMETER: of_list.urlencode()}) if of_list else ""


def query(request: HttpRequest) -> str:
    """Return what a link to another page of the same database appends to its URL: "", or "?database=…"."""
    return link(request, "")


def link(request: HttpRequest, url: str, /, **parameters: Any) -> str:
    """Return a URL with parameters that keeps the database of the request. It leaves out parameters of None."""
    return link_to(chosen(request), url, **parameters)


def link_to(alias: str | None, url: str, /, **parameters: Any) -> str:
    """Return a URL with parameters, for this database. None means the routers' choice."""
    own = {} if alias in {None, router.db_for_write(Job)} else {PARAMETER: alias}
    given = {name: value for name, value in parameters.items() if value is not None}
    text = urlencode({**own, **given})
    return f"{url}?{text}" if text else url
