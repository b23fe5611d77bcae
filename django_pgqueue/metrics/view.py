"""A protected view that serves the gauges of the queue to Prometheus.

Projects include it in their URLs. It only reads, and each process reads the database at most once in 5 s, so scrapes
cannot load the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from django_pgqueue.ground.prometheus import PLAIN, Fresh, families_of
from django_pgqueue.ground.prometheus import render as render_families
from django_pgqueue.ground.readings import Reading, of_several
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.alias import connection_of

from .gauges import collect

CACHE_SECONDS: Final = 5.0
"""How long a process serves the same figures."""
PERMISSION: Final = "pgqueue.view_job"
REFUSED: Final = (
    'The metrics need the header "Authorization: Bearer TOKEN" with PGQUEUE["METRICS_TOKEN"], '
    "or a staff user who may view jobs.\n"
)


figures: Final[dict[str, Fresh[list[Reading]]]] = {}
"""The figures of each database."""


def render(readings: Iterable[Reading]) -> str:
    """Return gauges in the text format of Prometheus.

    Args:
        readings: What `collect()` returned.
    """
    return render_families(families_of(readings))[0]


def figures_of(alias: str) -> Fresh[list[Reading]]:
    """Return the figures of a database, which all requests of this process share. An outage is kept like them."""
    return figures.setdefault(alias, Fresh(partial(collect, alias), CACHE_SECONDS))  # atomic, so threads share one


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
        readings = figures_of(connection_of(database).alias).get()
    else:
        readings = of_several({alias: figures_of(alias).get() for alias in database})
    return HttpResponse(render(readings), content_type=PLAIN)


def _may_read(request: HttpRequest) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":  # do not read the session for it
        token = get_settings().METRICS_TOKEN
        return token is not None and constant_time_compare(given.strip(), token)
    user = getattr(request, "user", None)
    return bool(user and user.is_active and user.is_staff and user.has_perm(PERMISSION))
