"""Tasks that leave behind all that can be left behind, and tasks that look for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, Permission
from django.core.cache import cache
from django.db import connection, transaction
from django.utils import timezone, translation

from django_pgqueue import task

variable: ContextVar[str] = ContextVar("variable", default="clean")
half_read: list[Iterator[Any]] = []
statements: list[str] = []
SESSION = (
    "SET statement_timeout = '7s'",
    "/* why */ SET lock_timeout = '7s'",
    "SELECT 1; SET work_mem = '7MB'",
    "CREATE TEMP TABLE left_behind (a int)",
    "select 1 as a into temp left_behind_too",
    "SELECT pg_advisory_lock(42)",
    "LISTEN left_behind",
)


def spy(execute: Callable[..., Any], sql: str, params: Any, many: Any, context: Any) -> Any:
    """Note a statement: an execute wrapper that a task forgets."""
    statements.append(sql)
    return execute(sql, params, many, context)


def spoil_context() -> None:
    timezone.activate("Asia/Tokyo")
    translation.activate("fi")
    variable.set("dirty")


def spoil_connection() -> None:
    """Leave a read behind that closing the session would end, without a reason to close it, and then much else."""
    connection.ensure_connection()
    connection.force_debug_cursor = True
    connection.execute_wrappers.append(spy)
    half_read.append(Permission.objects.order_by("pk").iterator(chunk_size=2))
    next(half_read[-1])


def spoil_session() -> None:
    with connection.cursor() as cursor:
        for statement in SESSION:
            cursor.execute(statement)


def spoil_transaction() -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name="never committed")


def findings_of_connection() -> dict[str, Any]:
    """Return what is found on this thread's connection, by name."""
    seen = len(statements)
    found: dict[str, Any] = {
        "wrappers": spy in connection.execute_wrappers,
        "queries": len(connection.queries_log),
        "debug": connection.force_debug_cursor,
        "atomic": connection.in_atomic_block,
    }
    with connection.cursor() as cursor:
        for name, query in {
            "settings": "SELECT count(*) FROM pg_settings WHERE source = 'session' AND setting LIKE '7%'",
            "tables": "SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relname LIKE 'left%'",
            "locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
            "channels": "SELECT count(*) FROM pg_listening_channels()",
            "cursors": "SELECT count(*) FROM pg_cursors WHERE is_holdable",
        }.items():
            cursor.execute(query)
            found[name] = cursor.fetchone()[0]
    return found | {"seen": len(statements) - seen}


def findings_of_context() -> dict[str, Any]:
    return {
        "time zone": timezone.get_current_timezone_name(),
        "language": translation.get_language(),
        "variable": variable.get(),
    }


@task
def leave(kind: str) -> str:
    """Leave behind what a kind says, on a thread."""
    spoil_context()
    {"connection": spoil_connection, "session": spoil_session, "transaction": spoil_transaction}[kind]()
    return threading.current_thread().name


@task(atomic=True)
def leave_from_atomic() -> None:
    """The same from within the job's transaction."""
    spoil_context()
    spoil_connection()
    spoil_session()


@task
async def leave_from_coroutine() -> None:
    """The same from the event loop, and on the asynchronous ORM's thread."""
    spoil_context()
    await sync_to_async(spoil_connection)()
    await sync_to_async(spoil_session)()


@task
def find() -> list[Any]:
    """Return what is found on a thread."""
    return [threading.current_thread().name, findings_of_context(), findings_of_connection()]


@task(atomic=True)
def find_from_atomic() -> list[Any]:
    """Return what is found in a job's transaction."""
    return [threading.current_thread().name, findings_of_context(), findings_of_connection()]


@task
async def find_from_coroutine() -> list[Any]:
    """Return what is found on the event loop, and on the asynchronous ORM's thread."""
    return ["", findings_of_context(), await sync_to_async(findings_of_connection)()]


@task
def the_cache() -> int:
    """Return which object the cache is: a new one would connect anew."""
    return id(cache._connections[cache._alias])  # type: ignore[attr-defined]  # a proxy's own


@task
def wander(directory: str) -> int:
    """Change what belongs to the whole process."""
    os.chdir(directory)
    os.umask(0o007)
    return os.getpid()


@task
def where() -> list[Any]:
    """Return the working directory and the process."""
    return [os.getcwd(), os.getpid()]
