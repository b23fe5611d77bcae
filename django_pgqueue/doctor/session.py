"""Run the doctor's statements: read-only, with a time limit, and in a savepoint for each check.

The invariant is that an examination changes nothing: neither rows nor the settings of the session it borrows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.db import connections, transaction

from django_pgqueue.db.statements import Row, execute

if TYPE_CHECKING:
    from django.db.models import Model

STATEMENT_TIMEOUT_SECONDS: Final = 5
LOCK_TIMEOUT_SECONDS: Final = 1
"""A table that a migration has locked keeps the doctor waiting no longer than this."""

READ_ONLY: Final = """/* pgqueue:doctor_read_only */
SET TRANSACTION READ ONLY
"""
LIMITS: Final = """/* pgqueue:doctor_limits */
SELECT set_config('statement_timeout', %(statement_timeout)s, true), set_config('lock_timeout', %(lock_timeout)s, true)
"""
# Sessions of this database whose state this role may not read. Their users are visible, their transactions are not.
HIDDEN_SESSIONS: Final = """/* pgqueue:doctor_hidden_sessions */
SELECT count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND usesysid IS NOT NULL AND query = '<insufficient privilege>'
"""
HAS_TABLES: Final = """/* pgqueue:doctor_has_tables */
SELECT to_regclass('pgqueue_job') IS NOT NULL
"""
ROLE: Final = """/* pgqueue:doctor_role */
SELECT quote_ident(current_user)
"""


class Session:
    """One examination of one database. Checks run their statements here."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.connection = connections[alias]

    def rows(self, statement: str, **params: Any) -> list[Row]:
        """Run a statement and return its rows. Errors of the database pass through."""
        return execute(self.connection, statement, params)

    def row(self, statement: str, **params: Any) -> Row:
        """Run a statement that returns exactly one row."""
        [row] = self.rows(statement, **params)
        return row

    def has_tables(self) -> bool:
        """Return whether the database has this package's tables."""
        return bool(self.row(HAS_TABLES)[0])

    def hidden_sessions(self) -> int:
        """Return the number of sessions of this database that the role of this process cannot see."""
        return int(self.row(HIDDEN_SESSIONS)[0])

    def grant_to_see_sessions(self) -> str:
        """Return the statement that shows all sessions to the role of this process."""
        return f"GRANT pg_read_all_stats TO {self.row(ROLE)[0]};"

    @contextmanager
    def read_only(self, *, statement_timeout_seconds: int = STATEMENT_TIMEOUT_SECONDS) -> Iterator[None]:
        """Open a read-only transaction, inside the caller's if there is one, and roll it back at the end."""
        with transaction.atomic(using=self.alias):
            self.rows(READ_ONLY)
            self.rows(
                LIMITS,
                statement_timeout=f"{statement_timeout_seconds} s",
                lock_timeout=f"{LOCK_TIMEOUT_SECONDS} s",
            )
            try:
                yield
            finally:
                transaction.set_rollback(True, using=self.alias)  # also restores the settings inside a savepoint


def models() -> list[type[Model]]:
    """Return the models of this package that have a table, in the order of their tables' names."""
    found = [model for model in apps.get_app_config("pgqueue").get_models() if not model._meta.proxy]
    return sorted(found, key=lambda model: model._meta.db_table)


def tables() -> list[str]:
    """Return the names of this package's tables."""
    return [model._meta.db_table for model in models()]
