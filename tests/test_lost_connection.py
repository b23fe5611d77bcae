"""Test what a script that enqueues sees after its connection was lost, and that the advice of the error works."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, close_old_connections, connection, connections, transaction

from tests import helpers
from tests.app import tasks

CALLS = {
    "enqueue": tasks.noop.enqueue,
    "unique": lambda: tasks.noop.using(unique_key="a").enqueue(),
    "unique many": lambda: tasks.noop.using(unique_key="a").enqueue_many([((), {})]),
    "enqueue_many": lambda: tasks.noop.enqueue_many([((), {})] * 3),
}


@pytest.fixture
def lost(committing, engine):
    """Let the server end the session of Django's connection, and let a first statement notice it."""
    connection.ensure_connection()
    engine.execute("SELECT pg_terminate_backend(%s)", (connection.connection.info.backend_pid,))
    with pytest.raises(OperationalError) as first:
        tasks.noop.enqueue()
    yield first.value
    connection.close()


def notes(error):
    return getattr(error, "__notes__", [])


def test_enqueue_that_notices_the_loss_names_the_remedy(lost):
    assert len(notes(lost)) == 1
    assert "is lost" in notes(lost)[0]
    assert "django.db.connections['default'].close()" in notes(lost)[0]


@pytest.mark.parametrize("name", CALLS)
def test_call_on_a_lost_connection_names_the_remedy(lost, name):
    for _ in range(2):
        with pytest.raises((OperationalError, InterfaceError)) as error:
            CALLS[name]()
        assert len(notes(error.value)) == 1, "Django keeps the connection"
    connection.close()
    assert CALLS[name]()


def test_close_old_connections_after_a_loss_is_enough(lost):
    close_old_connections()
    assert tasks.noop.enqueue().pk


END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def test_coroutine_on_a_lost_connection_names_the_remedy(committing, engine):
    async def lose_and_enqueue():
        await tasks.noop.aenqueue()
        engine.execute(END_SESSIONS)
        try:
            with pytest.raises(OperationalError) as error:
                await tasks.noop.aenqueue()
            return error.value
        finally:
            await sync_to_async(connections.close_all)()

    assert len(notes(asyncio.run(lose_and_enqueue()))) == 1
    connection.close()


def test_transaction_that_loses_its_connection_needs_no_remedy(committing, engine):
    """Django closes the connection at the end of the transaction."""
    with pytest.raises(OperationalError) as error, transaction.atomic():
        tasks.noop.enqueue()
        engine.execute("SELECT pg_terminate_backend(%s)", (connection.connection.info.backend_pid,))
        tasks.noop.enqueue()
    assert notes(error.value) == []
    assert tasks.noop.enqueue().pk


def test_error_on_an_intact_connection_has_no_note(committing, engine):
    with helpers.users_trigger(engine, "true", "57014", event="INSERT"), pytest.raises(OperationalError) as error:
        tasks.noop.enqueue()
    assert notes(error.value) == []
