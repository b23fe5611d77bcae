"""Us with other ways to wake workers, for the benchmark only: what the package does was chosen among these.

Ours is a statement of its own after the commit, at most one in 5 ms. `notify-inside` is part of the INSERT's own
transaction, at most one in 50 ms for each process; what was left out is told at the end of that time. `notify-never`
is the package with NOTIFY switched off: workers poll.
"""

from tests.tools.benchmarks.systems import django, ours

INSIDE = """

import atexit
import threading
import time

import psycopg

from django_pgqueue import reactions, sql
from django_pgqueue.lifecycle import enqueueing

ENQUEUE_AND_NOTIFY = sql.enqueueing.ENQUEUE.rstrip() + ", pg_notify('pgqueue', '')"
INTERVAL_SECONDS = 0.05
execute = enqueueing.execute
notified_at = 0.0
left_out = threading.Event()


def execute_and_notify(connection, statement, params):
    global notified_at
    if statement is not sql.enqueueing.ENQUEUE:
        return execute(connection, statement, params)
    now = time.monotonic()
    if now - notified_at < INTERVAL_SECONDS:
        rows = execute(connection, statement, params)
        on_commit(left_out.set)
        return rows
    notified_at = now
    return [row[:3] for row in execute(connection, ENQUEUE_AND_NOTIFY, params)]


def notify_at_last():
    global notified_at
    with psycopg.connect(autocommit=True) as connection:
        while True:
            left_out.wait()
            time.sleep(max(0.0, notified_at + INTERVAL_SECONDS - time.monotonic()))
            left_out.clear()
            notified_at = time.monotonic()
            connection.execute("NOTIFY pgqueue")


def notify_at_exit():
    if left_out.is_set():
        with psycopg.connect(autocommit=True) as connection:
            connection.execute("NOTIFY pgqueue")


enqueueing.execute = execute_and_notify
reactions.wake_workers_after_commit = lambda connection: None
threading.Thread(target=notify_at_last, daemon=True).start()
atexit.register(notify_at_exit)
"""

WITHIN = ours.SYSTEM._replace(
    name="notify-inside",
    files=django.project("django_pgqueue", "django_pgqueue", ours.ADAPTER + INSIDE),
    tasks=frozenset(),
    settings="NOTIFY in the transaction, one in 50 ms for each process, and one for what was left out",
)
NEVER = ours.SYSTEM._replace(
    name="notify-never",
    files=django.project("django_pgqueue", "django_pgqueue", ours.ADAPTER, '\nPGQUEUE = {"NOTIFY": False}\n'),
    tasks=frozenset(),
    settings='PGQUEUE = {"NOTIFY": False}',
)
