"""Whether a database is one that a worker can begin on."""

from __future__ import annotations

from django_pgqueue import db

from . import hygiene
from .trouble import in_a_line


def what_is_missing(alias: str) -> str:
    """Return what the database lacks, in words; an empty string if nothing."""
    try:
        missing = db.missing_migrations(alias)
    except Exception as error:  # noqa: BLE001 -- whatever keeps the database from answering
        return f"database {alias!r} does not answer: {in_a_line(error)}"
    finally:
        hygiene.close_for_good()
    return f"run `manage.py migrate`: database {alias!r} lacks {', '.join(missing)}" if missing else ""
