"""A page of the console: its URLs, its template, and what all pages have in common.

A page is a value; its `context` function reads what the template shows. Pages only read. An act is posted to a view of
its own, or to the list of a model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.contrib.auth.decorators import permission_required
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path
from django.utils import translation
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from django_pgqueue.acts import VIEW_JOB
from django_pgqueue.admin import databases
from django_pgqueue.admin.formatting import shortened
from django_pgqueue.admin.navigation import rendered
from django_pgqueue.doctor import Level
from django_pgqueue.stats.unread import unreadable

logger = logging.getLogger("django_pgqueue.admin")


class Banner(NamedTuple):
    """A warning: its level, a sentence, and what to do about it."""

    level: Level
    text: Promise | str
    fix: Promise | str = ""


@dataclass(frozen=True)
class ConsolePage:
    """One page. Its URL is `<admin>/pgqueue/job/<name>/`, and `admin:pgqueue_<name>` is the name of the URL.

    `context` gets the request and the alias of the database. It returns the values for the template, or an answer of
    its own. `document`, if the page has one, gets the same and returns what `<admin>/pgqueue/job/<name>.json` answers.
    """

    name: str
    title: Promise | str
    context: Callable[[HttpRequest, str], dict[str, Any] | HttpResponse]
    document: Callable[[HttpRequest, str], Any] | None = None
    place: str = ""
    """The link that the navigation marks as current, if the navigation does not link this page."""


def unread_banners(figures: Mapping[str, str]) -> list[Banner]:
    """Return a warning for each figure that could not be read."""
    text = _("The figure “%(name)s” cannot be read because of a value in a row: %(reason)s")
    return [
        Banner(Level.ERROR, text % {"name": name, "reason": shortened(reason, 200)}) for name, reason in figures.items()
    ]


def console_urls(site: AdminSite, pages: Sequence[ConsolePage]) -> list[URLPattern]:
    """Return the URLs of the pages, below that of the list of jobs."""
    return [url for page in pages for url in _urls(site, page)]


def _urls(site: AdminSite, page: ConsolePage) -> Iterator[URLPattern]:
    yield path(f"{page.name}/", _view(site, partial(_html, site=site, page=page)), name=f"pgqueue_{page.name}")
    if page.document is not None:
        view = _view(site, partial(_json, document=page.document))
        yield path(f"{page.name}.json", view, name=f"pgqueue_{page.name}_json")


def _view(site: AdminSite, view: Callable[[HttpRequest], HttpResponse]) -> Any:
    return site.admin_view(require_safe(permission_required(VIEW_JOB, raise_exception=True)(view)))


def _html(request: HttpRequest, site: AdminSite, page: ConsolePage) -> HttpResponse:
    request.current_app = site.name
    place, template = page.place or page.name, f"console/{page.name}.html"
    alias = databases.chosen(request)
    try:
        found = page.context(request, alias)
    except Exception as error:
        if (reason := unreadable(error)) is None:
            raise
        if isinstance(error, Error) and connections[alias].in_atomic_block:
            transaction.set_rollback(True, using=alias)  # the failed statement has ended the transaction of the request
        logger.exception("the page %r of the database %r could not be read", page.name, alias)
        template, found = "console/unread.html", {"reason": shortened(reason, 200)}
    if isinstance(found, HttpResponse):
        return found
    return rendered(request, site, template, page.title, found, place=place)


class _Encoder(DjangoJSONEncoder):
    """Writes documents as `manage.py pgqueue --json` does: dataclasses as objects, times as ISO 8601 in UTC."""

    def default(self, o: Any) -> Any:
        if isinstance(o, datetime):
            return o.astimezone(UTC).isoformat()
        return asdict(o) if is_dataclass(o) and not isinstance(o, type) else super().default(o)


def _json(request: HttpRequest, document: Callable[[HttpRequest, str], Any]) -> HttpResponse:
    with translation.override("en"):  # programs read it
        return JsonResponse(document(request, databases.chosen(request)), _Encoder, safe=False)
