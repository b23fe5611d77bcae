"""Store a durable step, also if the database cannot be reached at this moment.

`AttemptSteps` calls it when the function of a step has returned. If the value were dropped because the connection was
lost, the next attempt would call the function again. So the statement is repeated on a new connection. That is safe: it
contains the fence, and storing a step twice is the same as storing it once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import psycopg
from django.db import Error as DjangoDatabaseError

from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.db.errors import is_of_rows
from django_pgqueue.worker.runtime.outages import outage_log

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.lifecycle import ExecutionKey, TransitionStatus
    from django_pgqueue.lifecycle.steps import EndedStep

RECONNECT_SECONDS: Final = 0.2
"""How long to wait before the step is stored again after the connection was lost."""


def store(connection: BaseDatabaseWrapper, key: ExecutionKey, step: EndedStep) -> TransitionStatus:
    """Store a step. If the database cannot be reached, repeat that on new connections for the time of a lease.

    Inside a transaction the error is raised at once, because the connection's loss has rolled it back.
    """
    deadline = time.monotonic() + get_settings().LEASE
    while True:
        try:
            return lifecycle.steps.store_step(connection, key, step)
        except (DjangoDatabaseError, psycopg.Error) as error:
            is_open = connection.in_atomic_block or not connection.autocommit
            if is_open or is_of_rows(error) or time.monotonic() > deadline:
                raise
            outage_log.report("step", error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error)
        connection.close()
        time.sleep(RECONNECT_SECONDS)
