"""Choose the database whose jobs a function of `stats` describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections, router

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def connection_of(database: str | None) -> BaseDatabaseWrapper:
    """Return Django's connection to this database, or to the one that the routers choose for reading jobs."""
    from django_pgqueue.models import Job  # modules with tasks import this package before models can be imported

    return connections[database or router.db_for_read(Job)]
