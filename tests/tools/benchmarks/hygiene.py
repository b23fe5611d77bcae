"""What each measure of hygiene costs a job, in µs: `python -m tests.tools.benchmarks.hygiene`. Not run in CI.

Medians of 15 rounds. The figures in docs/concepts/leaks.md are from here.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import timeit
from collections.abc import Callable

import django
from django.db import connection

from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.slots import leak_detector
from django_pgqueue.worker.slots.inflight import InFlight

ROUNDS = 15
COLUMNS = ", ".join(f'"shop_order"."column_{number}"' for number in range(20))
STATEMENT = f'SELECT {COLUMNS} FROM "shop_order" WHERE "shop_order"."id" = %s'


def show(name: str, call: Callable[[], object], without: Callable[[], object] | None = None, *, times: int) -> None:
    print(f"{cost(call, times) - (cost(without, times) if without else 0):10.2f}  {name}", flush=True)  # noqa: T201 -- what it is for


def cost(call: Callable[[], object], times: int) -> float:
    return statistics.median(timeit.timeit(call, number=times) / times * 1e6 for _ in range(ROUNDS))


def around() -> None:
    django_connections.before_job()
    django_connections.after_job()


def spoil(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
    around()


def plain() -> None:
    spoil("SELECT 1")


def half_read() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    connection._named_cursor_idx += 1  # type: ignore[attr-defined]  # as iterator() does
    around()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    connection.settings_dict["NAME"] = "postgres"
    context = django_connections.clean_context()
    show("a copy of a clean context", lambda: context.copy().run(bool), bool, times=20_000)
    django_connections.watch()
    show("before and after a job, on a thread without a connection", around, times=20_000)
    connection.ensure_connection()
    around()
    show("the same with a connection", around, times=20_000)
    show(
        "each statement: told from those that last (known)",
        lambda: django_connections.verdicts[STATEMENT],
        times=20_000,
    )
    show("the same, seen for the first time", lambda: django_connections.changes_the_session(STATEMENT), times=2_000)
    show("a server-side cursor was used: CLOSE ALL", half_read, plain, times=200)
    show("the session was changed: a new connection", lambda: spoil("SET statement_timeout = 0"), plain, times=20)
    look = leak_detector.LeakDetector(InFlight(10), asyncio.new_event_loop)
    show("a check of the process, once a second", look._check, times=200)


if __name__ == "__main__":
    main()
