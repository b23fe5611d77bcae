"""Whether a database is one that a worker can begin on."""

from __future__ import annotations

from django_pgqueue import server

from . import hygiene
from .trouble import in_a_line


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
