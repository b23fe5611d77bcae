"""Whether a database is one that a worker can begin on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from django_pgqueue import server

from . import hygiene
from .trouble import in_a_line

logger = logging.getLogger("django_pgqueue.worker")

PAUSE_SECONDS: Final = 2.0


def what_is_missing(alias: str) -> str:
    """Return what the database lacks, in words; an empty string if nothing."""
    try:
        missing = server.missing_migrations(alias)
        read_only = server.is_read_only(alias)
    except Exception as error:  # noqa: BLE001 -- whatever keeps the database from answering
        return f"database {alias!r} does not answer: {in_a_line(error)}"
    finally:
        hygiene.close_for_good()
    if missing:
        return f"run `manage.py migrate`: database {alias!r} lacks {', '.join(missing)}"
    return f"database {alias!r} is read-only: is it a standby?" if read_only else ""


def wait_until_ready(alias: str, waits: Callable[[], bool], pause: Callable[[float], None]) -> None:
    """Wait until the database is there and migrated, and log what it waits for; `waits` says whether to go on."""
    logged = ""
    while waits():
        missing = what_is_missing(alias)
        if not missing:
            return
        if missing != logged:
            logger.warning("waiting: %s", missing)
            logged = missing
        pause(PAUSE_SECONDS)
