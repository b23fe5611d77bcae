"""What an error of the database says: whether to try again, whether one row may be its cause, and its text for a log.

Used by everything that runs statements. It protects a rule: no error that one row can cause may stop all the others.
"""

from __future__ import annotations

from typing import Final

import psycopg
from django.db import Error as DjangoDatabaseError
from psycopg import errors

TRANSIENT: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
STATES_OF_THE_SERVER: Final = frozenset({"08", "25", "40", "53", "57", "58"})
"""Classes of SQLSTATE that concern every row alike: no connection, a transaction that may not write, a rollback, no
resources, a shutdown or a cancelled statement, an error of the system."""


def is_of_rows(error: BaseException) -> bool:
    """Return whether one row may be the cause of a failed statement; Django's errors count as psycopg's inside them.

    Any error may come from a row, because a user's trigger may raise any. The exceptions are the states that concern
    all rows: a lost connection, a server that is shutting down or read-only, missing resources, a deadlock. A caller
    whose connection is lost has to check that itself, because an internal error (class XX) can be either.
    """
    cause = error.__cause__ if isinstance(error, DjangoDatabaseError) else error
    if isinstance(cause, UnicodeError):
        return True
    if not isinstance(cause, psycopg.Error) or isinstance(cause, TRANSIENT):
        return False
    if cause.sqlstate is None:  # psycopg's own: the server was not asked, or did not answer
        return isinstance(cause, psycopg.DataError)
    return cause.sqlstate[:2] not in STATES_OF_THE_SERVER


def told(error: Exception) -> str:
    """Return what an error says, without the server's detail, which may quote the row: arguments belong in no log."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error)
