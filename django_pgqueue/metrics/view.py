"""A protected view that serves the gauges of the queue to Prometheus.

Projects include it in their URLs. It only reads, and each process reads the database at most once in 5 s, so scrapes
cannot load the database.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock
from typing import Final

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from django_pgqueue.conf import get_settings
from django_pgqueue.readings import of_several
from django_pgqueue.stats.alias import connection_of

from .gauges import collect
from .text import CONTENT_TYPE, render

CACHE_SECONDS: Final = 5.0
"""How long a process serves the same figures."""
PERMISSION: Final = "pgqueue.view_job"
REFUSED: Final = (
    'The metrics need the header "Authorization: Bearer TOKEN" with PGQUEUE["METRICS_TOKEN"], '
    "or a staff user who may view jobs.\n"
)


class PageCache:
    """The last page of each choice of databases. Requests that come while it is read wait for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pages: dict[str | tuple[str, ...], tuple[float, str]] = {}

    def page(self, aliases: str | tuple[str, ...]) -> str:
        """Return the page of one database or of several, at most `CACHE_SECONDS` old. An outage is cached too."""
        with self._lock:
            expires_at, text = self._pages.get(aliases, (float("-inf"), ""))
            if time.monotonic() >= expires_at:
                if isinstance(aliases, str):
                    readings = collect(aliases)
                else:
                    readings = of_several({alias: collect(alias) for alias in aliases})
                text = render(readings)
                self._pages[aliases] = (time.monotonic() + CACHE_SECONDS, text)
            return text

    def clear(self) -> None:
        """Forget all pages."""
        with self._lock:
            self._pages.clear()


cache: Final = PageCache()


@transaction.non_atomic_requests  # otherwise an outage would fail the request before the view can say so
@cache_control(no_store=True)
@require_safe
def metrics_view(request: HttpRequest, database: str | Sequence[str] | None = None) -> HttpResponse:
    """Return the gauges of the queue in the text format of Prometheus.

    The status is 401 unless the request has the header `Authorization: Bearer TOKEN` with `PGQUEUE["METRICS_TOKEN"]`,
    or comes from an active staff user with the permission to view jobs. Without that setting, no token is accepted.

    The figures are at most 5 s old. If the database cannot be read, the page has only `pgqueue_database_up 0`.

    Args:
        request: A GET or HEAD request.
        database: Alias of the database of the jobs, or a list of aliases: then all metrics have the label `database`.
            Set it in the URL configuration. By default the database routers choose it.

    Example::

        path("metrics/queue", metrics_view)
    """
    if not _may_read(request):
        return HttpResponse(REFUSED, status=401, content_type="text/plain", headers={"WWW-Authenticate": "Bearer"})
    if database is None or isinstance(database, str):
        page = cache.page(connection_of(database).alias)
    else:
        page = cache.page(tuple(database))
    return HttpResponse(page, content_type=CONTENT_TYPE)


def _may_read(request: HttpRequest) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":  # do not read the session for it
        token = get_settings().METRICS_TOKEN
        return token is not None and constant_time_compare(given.strip(), token)
    user = getattr(request, "user", None)
    return bool(user and user.is_active and user.is_staff and user.has_perm(PERMISSION))
