"""Tasks that leave something behind, change their own rows, or enqueue what they should not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import Error, connection, transaction

from django_pgqueue import TaskContext, task
from django_pgqueue.models import Job
from tests.tools.faults import journal
from tests.tools.faults.app.tasks import body, plain

STATEMENTS = {
    "search_path": "SET search_path = pg_catalog",
    "statement_timeout": "SET statement_timeout = '1ms'",
    "read only": "SET default_transaction_read_only = on",
    "role": "SET ROLE pg_monitor",
    "temporary table": "CREATE TEMPORARY TABLE left_behind (id int)",
    "advisory lock": "SELECT pg_advisory_lock(4711)",
    "listen": "LISTEN left_behind",
    "cursor": "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1",
    "set_config": "SELECT set_config('lock_timeout', '1ms', false)",
    "prepared": "PREPARE left_behind AS SELECT 1",
}


def _aborted() -> None:
    connection.set_autocommit(False)
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def _open() -> None:
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _killed() -> None:
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


SPOILED: dict[str, Callable[[], Any]] = {
    "closed": lambda: connection.close(),  # not bound here: it is another one in each thread
    "killed": _killed,
    "open": _open,
    "aborted": _aborted,
    "no autocommit": lambda: connection.set_autocommit(False),
}


@task(takes_context=True, backoff=0, max_attempts=2)
def spoil(context: TaskContext, what: str, tag: str = "") -> None:
    """Leave this thread's connection in a state of its own."""
    with body(context, "spoil"):
        if what in SPOILED:
            SPOILED[what]()
        else:
            with connection.cursor() as cursor:
                cursor.execute(STATEMENTS[what])


SCAN_LANES = """
SELECT current_setting('search_path'), current_setting('statement_timeout'), current_setting('lock_timeout'),
       current_setting('default_transaction_read_only'), current_user,
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*) FROM pg_class WHERE relname = 'left_behind'),
       (SELECT count(*) FROM pg_cursors WHERE name = 'left_behind'),
       (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_behind'),
       (SELECT count(*) FROM pg_listening_channels())
"""


@task(takes_context=True, backoff=0, max_attempts=1)
def look(context: TaskContext, tag: str = "") -> list[Any]:
    """Return what the job before may have left on this thread's connection."""
    with body(context, "look"):
        with connection.cursor() as cursor:
            cursor.execute(SCAN_LANES)
            [row] = cursor.fetchall()
        return [*row, connection.in_atomic_block, connection.get_autocommit()]


_kept: list[Any] = []


@task(takes_context=True, backoff=0)
def leak(context: TaskContext, tag: str = "") -> int:
    """Leak open files, a thread, memory and a child process, and change what the process shares; count the files."""
    with body(context, "leak"):
        _kept.extend(open(os.devnull, "rb") for _ in range(5))  # noqa: SIM115 -- that is the leak
        _kept.append(bytearray(100_000))
        threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
        subprocess.Popen(["sleep", "0.1"])
        os.umask(0o077)
        os.environ["LEFT_BEHIND"] = "yes"
        os.chdir("/")
    return open_files()


@task(takes_context=True, backoff=0)
def count_files(context: TaskContext, tag: str = "") -> int:
    """Return how many files this process has open."""
    with body(context, "count_files"):
        return open_files()


@task(takes_context=True, backoff=0)
def close_output(context: TaskContext, tag: str = "") -> None:
    """Close what the worker prints to."""
    with body(context, "close_output"):
        sys.stdout.close()
        sys.stderr.close()


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


@task(takes_context=True, backoff=0)
def change_own_row(context: TaskContext, how: str, tag: str = "") -> None:
    """Do something to this very job."""
    with body(context, "change_own_row"):
        own = Job.objects.filter(pk=context.job_id or 0)
        journal.write("operator", act="delete" if "delete" in how else how, jobs=[context.job_id])
        if how == "delete":
            own.get().executions.all()._raw_delete("default")  # `delete()` refuses a running job
            own._raw_delete("default")
        elif how == "delete by sql":
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM pgqueue_job WHERE id = %s", [context.job_id])
        else:
            getattr(own, how)()


@task(takes_context=True, backoff=0)
def multiply(context: TaskContext, children: int, tag: str = "") -> None:
    """Enqueue many children in one transaction, and itself again."""
    with body(context, "multiply"), transaction.atomic():
        plain.using(queue_name="children").enqueue_many([((), {})] * children)
        multiply.using(queue_name="children", run_after=3600).enqueue(children)


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


REFUSED: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "infinity": lambda: {"a": [float("inf")]},
    "nul": lambda: "a\0b",
    "nul in a key": lambda: {"a\0": 1},
    "surrogate": lambda: "\ud800",
    "bytes": lambda: b"x",
    "set": lambda: {1},
    "digits": lambda: 10**5000,
    "depth": lambda: _deep(2000),
    "size": lambda: "x" * 3_000_000,
}


@task(takes_context=True, backoff=0, max_attempts=1)
def enqueue_what_is_refused(context: TaskContext, tag: str = "") -> list[str]:
    """Try to enqueue what cannot be stored; return what was refused before anything was written."""
    refused = []
    with body(context, "enqueue_what_is_refused"):
        for name, value in REFUSED.items():
            try:
                plain.enqueue(tag=value())
            except (TypeError, ValueError):
                refused.append(name)
    return refused
