"""Fixtures for the tests of `stats`: they run in a transaction of Django's connection, and nothing is committed."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection as django_connection

from django_pgqueue.lifecycle import workers


@pytest.fixture
def connection(db: None) -> Any:
    return django_connection


@pytest.fixture
def add_worker(connection: Any) -> Callable[..., int]:
    """Return a function that registers a worker process, and returns its id."""

    def add(queues: str = "", concurrency: int = 2, silent_seconds: float = 0.0) -> int:
        worker_id = workers.register_worker(
            connection, hostname="vm", pid=7, version="1", queue_names=queues, concurrency=concurrency
        )
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pgqueue_worker SET last_heartbeat_at = last_heartbeat_at - make_interval(secs => %s) "
                "WHERE id = %s",
                [silent_seconds, worker_id],
            )
        return worker_id

    return add
