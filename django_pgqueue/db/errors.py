"""Classify database errors: whether to retry, whether one row may be the cause, and which text is safe to log.

Every module that runs statements uses it. It protects one rule: an error that a single row can cause must not stop the
work on all other rows.
"""

from __future__ import annotations

from typing import Final

import psycopg
from django.db import Error as DjangoDatabaseError
from psycopg import errors

from django_pgqueue.exceptions import StatementTimeout

TRANSIENT: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
STATES_OF_THE_SERVER: Final = frozenset({"08", "25", "40", "53", "57", "58"})
"""SQLSTATE classes that affect every row alike: lost connection (08), read-only or invalid transaction (25), rollback
(40), missing resources (53), shutdown or cancelled statement (57), system error (58)."""


def is_of_rows(error: BaseException) -> bool:
    """Return whether one row may be the cause of a failed statement. A Django error counts as the psycopg error it
    wraps.

    Any other error may come from a row, because a user's trigger can raise anything. The exceptions are the states that
    affect all rows: a lost connection, a server that is shutting down or read-only, missing resources, a deadlock. The
    caller must check separately whether its connection is lost, because an internal error (class XX) can be either.
    """
    cause = error.__cause__ if isinstance(error, DjangoDatabaseError) else error
    if isinstance(cause, UnicodeError):
        return True
    if not isinstance(cause, psycopg.Error) or isinstance(cause, TRANSIENT):
        return False
    if cause.sqlstate is None:  # raised by psycopg itself: the server was not asked, or did not answer
        return isinstance(cause, psycopg.DataError)
    return cause.sqlstate[:2] not in STATES_OF_THE_SERVER


def is_stale_plan(error: BaseException) -> bool:
    """Return whether a statement failed only because its prepared form is outdated: no row and no table is at fault.

    A migration has changed the type of a column that the statement returns, or somebody has discarded the session's
    prepared statements.
    """
    if isinstance(error, errors.FeatureNotSupported):  # the message is in the language of the server
        return error.diag.source_function == "RevalidateCachedQuery" or "cached plan must not change" in str(error)
    return isinstance(error, errors.InvalidSqlStatementName | errors.DuplicatePreparedStatement)


def is_outage(error: BaseException) -> bool:
    """Return whether a failed statement of an engine connection should be repeated when the database works again.

    A table that another session has locked and a statement that the server has cancelled are no outages: the statements
    on other tables still succeed.
    """
    if isinstance(error, errors.LockNotAvailable | errors.QueryCanceled):
        return False
    return isinstance(error, psycopg.OperationalError | OSError)


def concerns_all_statements(error: BaseException) -> bool:
    """Return whether another statement of an engine connection would fail too: see `STATES_OF_THE_SERVER`.

    So would one on a server that does not answer in time. A deadlock, a locked row or table and a statement that was
    cancelled concern one statement. So does an error that is not of the database: if the connection is lost, the next
    statement says so.
    """
    if isinstance(error, StatementTimeout):
        return True
    if isinstance(error, (*TRANSIENT, errors.QueryCanceled)):
        return False
    return isinstance(error, psycopg.Error) and not is_of_rows(error)


def message_without_detail(error: BaseException) -> str:
    """Return an error's message without the server's detail. The detail can quote the row, with its arguments."""
    cause = error.__cause__ if isinstance(error, DjangoDatabaseError) else error
    primary = cause.diag.message_primary if isinstance(cause, psycopg.Error) else None
    return primary or str(error)
