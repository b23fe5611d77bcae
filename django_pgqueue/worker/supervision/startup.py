"""Wait until the database is ready for a worker. Check its queues.

It is ready if it answers, has all migrations, accepts writes, and belongs to this installation. Called by the
supervisor before it forks the first worker process, and when the database has become that of another installation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from django.db import DEFAULT_DB_ALIAS

from django_pgqueue import queues
from django_pgqueue.db import server
from django_pgqueue.db.reconnects import pause_seconds
from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.clone_guard import clone_guard
from django_pgqueue.worker.runtime.outages import in_a_line

logger = logging.getLogger("django_pgqueue.worker")

RETRY_SECONDS: Final = 2.0
"""The longest pause between two checks, without the jitter of 30 %. The first pauses are shorter."""


def missing_requirement(alias: str) -> str:
    """Return why a worker cannot use the database, as text, or an empty string if it can."""
    clone_guard.is_foreign = False  # not known before the database answers
    try:
        missing = server.missing_migrations(alias)
        read_only = server.is_read_only(alias)
    except Exception as error:  # noqa: BLE001 -- any error means that the database cannot be used now
        return f"database {alias!r} does not answer: {in_a_line(error)}"
    finally:
        django_connections.close_for_good()
    if missing:
        option = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
        return f"database {alias!r} lacks the migrations {', '.join(missing)}: run `manage.py migrate{option}`"
    if read_only:
        return f"database {alias!r} is read-only: if it is a standby, connect the worker to the primary"
    return ""


def wait_until_ready(options: Options, should_wait: Callable[[], bool], sleep: Callable[[float], None]) -> None:
    """Wait until the database is ready, and log each new reason for waiting. Then warn about unknown queues.

    From then on, engine connections to a standby are refused.

    Args:
        options: The worker's options.
        should_wait: Returns whether to continue waiting. Called before each check.
        sleep: Sleeps for this many seconds between two checks.
    """
    logged, checks = "", 0
    while should_wait():
        reason = missing_requirement(options.database) or _obstacle(options.database)
        if not reason:
            server.refuse_standbys()
            _warn_about_queues(options)
            return
        if reason != logged and not clone_guard.is_foreign:  # the guard logs that once a minute
            logger.warning("waiting for the database: %s", reason, extra=event("database_awaited", reason=reason))
            logged = reason
        checks += 1
        sleep(pause_seconds(checks, RETRY_SECONDS))


def _obstacle(alias: str) -> str:
    """Return how the database belongs to another installation, or why that cannot be read."""
    try:
        return clone_guard.reason_to_wait(alias)
    except Exception as error:  # noqa: BLE001 -- as in `missing_requirement()`
        return f"database {alias!r} does not answer: {in_a_line(error)}"


def _warn_about_queues(options: Options) -> None:
    """Log each queue in `--queues` or `--queue` whose name may be mistyped."""
    option = "--queue" if options.queue_concurrency else "--queues"
    try:
        for name in options.served.named:
            if message := queues.mistyped(name, options.database):
                logger.warning("%s: %s", option, message, extra=event("queue_unused"))
    except Exception as error:  # noqa: BLE001 -- the database may be lost again, and this is only advice
        logger.debug("could not check the queues: %s", in_a_line(error))
    finally:
        django_connections.close_for_good()
