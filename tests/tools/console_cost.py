"""Measure the SQL of every page, list and filter of the console on a large queue: `python -m tests.tools.console_cost`.

The program makes a database of its own (see `large_queue`), follows the links of the console as an administrator, and
prints a table with the slowest address of each page, in milliseconds. It exits with 1 if one needs more than 60 ms of
SQL. `--all` prints every address, and `--slow` the slowest statements.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
NAME: Final = "pgqueue_console_cost"
BOUND_MS: Final = 60.0
ROUNDS: Final = 3
START: Final = "/admin/pgqueue/"
ANY: Final = frozenset({"p", "page", "o", "after", "before", "_changelist_filters"})
"""Names of parameters whose value changes no plan."""
FILTERS: Final = 2
"""How many filters are combined at most."""


class Cost(NamedTuple):
    """What one address costs."""

    route: str
    url: str
    statements: int
    sql_ms: float
    slowest: tuple[str, float]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="print every address")
    parser.add_argument(
        "--slow", action="store_true", help="print the slowest statement of each address that is too slow"
    )
    options = parser.parse_args()
    django.setup()
    from django.db import connection

    from tests.tools.large_queue import EXECUTIONS, large_queue

    with large_queue(connection, NAME, [EXECUTIONS]):
        found = sorted(measure(connection), key=lambda cost: -cost.sql_ms)
    report(found, show_all=options.all)
    above = [cost for cost in found if cost.sql_ms > BOUND_MS]
    if options.slow:
        for cost in above:
            sys.stderr.write(f"\n{cost.url}: {cost.slowest[1]:.1f} ms\n{cost.slowest[0]}\n")
    return bool(above)


def shape_of(url: str) -> str:
    """Return what decides the statements of an address: its route and filters. Queues and tasks are alike."""
    from tests.browser.links import route_of

    given = sorted((name, "" if name in ANY else _kind(value)) for name, value in parse_qsl(urlsplit(url).query))
    filters = [pair for pair in given if pair[0] not in ANY]
    return f"{route_of(url)}?{given}" if len(filters) <= FILTERS else ""


def _kind(value: str) -> str:
    """Return a value without the numbers of our queues and tasks. Tasks without jobs are alike, and times too."""
    if value.startswith("tests."):
        return "no jobs"
    return "time" if value[:2] == "20" and "T" in value else value.rstrip("0123456789")


def measure(connection: Any) -> Iterator[Cost]:
    """Request each address `ROUNDS` times and yield the fastest, because other programs may use the machine."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    from tests.browser.links import crawl, route_of
    from tests.tools.sql_time import sql_time

    settings.ALLOWED_HOSTS = ["testserver"]
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    for url, _ in crawl(client, START, shape_of):
        best = min((sql_time(connection, lambda url=url: client.get(url)) for _ in range(ROUNDS)), key=_seconds)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        slowest = max(best.statements, key=lambda one: one[1])
        yield Cost(route_of(url), url, len(best.statements), 1000 * best.sql_seconds, (slowest[0], 1000 * slowest[1]))


def _seconds(found: Any) -> float:
    return float(found.sql_seconds)


def report(found: list[Cost], *, show_all: bool) -> None:
    """Print a row for each page with its slowest address, or a row for each address. The slowest is the first."""
    sys.stdout.write("| page | slowest address | statements | SQL, ms |\n|---|---|---|---|\n")
    seen: set[str] = set()
    for cost in found:
        if show_all or cost.route not in seen:
            seen.add(cost.route)
            query = urlsplit(cost.url).query
            page = cost.route.removeprefix("admin/pgqueue/") or "index"
            sys.stdout.write(f"| `{page}` | `{query or chr(8211)}` | {cost.statements} | {cost.sql_ms:.1f} |\n")
    above = sum(cost.sql_ms > BOUND_MS for cost in found)
    sys.stderr.write(f"{len(found)} addresses, {above} above {BOUND_MS:.0f} ms\n")


if __name__ == "__main__":
    sys.exit(main())
