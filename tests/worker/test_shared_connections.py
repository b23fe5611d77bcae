"""Test which connection each service of a worker process uses, and when connections are opened and closed."""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import ExitStack

import psycopg
import pytest

from django_pgqueue.db.engine_connection import is_lost
from django_pgqueue.worker.runtime import connection as connection_module
from django_pgqueue.worker.runtime import shared_connections as module
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_connections import ConnectionInUse, Preference, SharedConnections
from tests import helpers

FETCHER, COMPLETER, OTHER = Preference.FIRST, Preference.SECOND, Preference.OPEN


@pytest.fixture
def connections(committing):
    connections = SharedConnections("default", ("fetcher", "completer"))
    yield connections
    connections.close()


@pytest.fixture
def background(connections):
    """What maintenance and schedules use."""
    return [connections.share(OTHER, is_background=True) for _ in range(2)]


def name_of(connection):
    return connection.execute("SHOW application_name").fetchone()[0].removeprefix("pgqueue:")


def used_by(share):
    """Return the name of the connection that a service uses now."""
    with share.use() as connection:
        return name_of(connection)


def waiting_for(connections, share, taken):
    """Start a thread that takes a connection, appends its name to `taken`, and waits for it to be taken away."""
    count = len(connections._waiting)

    def take():
        with share.use() as connection:
            taken.append((share.preference, name_of(connection)))

    thread = helpers.Background(take)
    helpers.wait_until(lambda: len(connections._waiting) > count)
    return thread


@pytest.mark.parametrize(
    ("preference", "before", "after"),
    [(FETCHER, "fetcher", "fetcher"), (OTHER, "fetcher", "completer"), (COMPLETER, "completer", "completer")],
)
def test_service_uses_its_connection_before_and_after_the_second_is_open(connections, preference, before, after):
    assert used_by(connections.share(preference)) == before
    used_by(connections.share(COMPLETER))
    assert used_by(connections.share(preference)) == after


@pytest.mark.parametrize(
    ("preference", "other"), [(FETCHER, "completer"), (OTHER, "completer"), (COMPLETER, "fetcher")]
)
def test_service_takes_the_other_connection_if_its_own_is_in_use(connections, preference, other):
    taker = connections.share(FETCHER if other == "completer" else COMPLETER)
    with taker.use():
        assert used_by(connections.share(preference)) == other


def test_waiting_services_get_the_connections_in_turn(connections):
    """A thread that returns a connection and asks again at once must not overtake a waiting one."""
    taken, fetcher, completer = [], connections.share(FETCHER), connections.share(COMPLETER)
    with completer.use():
        with fetcher.use():
            waiting = [waiting_for(connections, share, taken) for share in (completer, connections.share(OTHER))]
        with fetcher.use():
            for thread in waiting:
                thread.result()
    assert taken == [(COMPLETER, "fetcher"), (OTHER, "fetcher")]


@pytest.mark.parametrize("is_granted", [True, False])
def test_connection_of_a_service_that_is_interrupted_while_it_waits_is_passed_on(connections, is_granted):
    """A job can raise an exception in any thread. It is raised when the thread has stopped waiting."""
    only_first = connections.share(Preference.ONLY_FIRST)
    with only_first.use():
        waiting = waiting_for(connections, only_first, [])
        [turn] = connections._waiting
        interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
        interrupt(ctypes.c_ulong(waiting.thread.ident), ctypes.py_object(SystemExit))
        if not is_granted:
            turn.granted.put(connections._first)  # it wakes without its turn
            waiting.thread.join(10)
    with pytest.raises(SystemExit):
        waiting.result()
    assert (connections._waiting, connections._used) == ([], [])
    assert used_by(only_first) == "fetcher"


def test_use_if_free_raises_instead_of_waiting_and_leaves_nothing_in_use(connections):
    only_second = connections.share(Preference.ONLY_SECOND)
    with only_second.use():
        with pytest.raises(ConnectionInUse), only_second.use_if_free():
            pytest.fail("the second connection is in use")
        assert (connections._waiting, len(connections._used)) == ([], 1)
    with only_second.use_if_free() as connection:
        assert name_of(connection) == "completer"
    assert (connections._waiting, connections._used) == ([], [])


def test_background_services_use_one_connection_together(connections, background):
    """The fetcher and the completer always have the other one, whatever a slow statement does."""
    taken = []
    with background[0].use():
        waiting = waiting_for(connections, background[1], taken)
        for preference in (FETCHER, COMPLETER, OTHER):
            assert used_by(connections.share(preference)) == "completer"
        assert not taken
    waiting.result()
    assert taken == [(OTHER, "completer")]


def test_background_service_waits_for_a_connection_behind_others(connections, background):
    taken = []
    with ExitStack() as used:
        used.enter_context(connections.share(FETCHER).use())
        with connections.share(COMPLETER).use():
            waiting = waiting_for(connections, background[0], taken)
        waiting.result()
        assert taken == [(OTHER, "completer")]
        assert used_by(background[1]) == "completer"


def test_second_connection_is_closed_when_nobody_needs_it(connections, background, monkeypatch):
    """The use by a service that has found it open does not keep it open."""
    used_by(connections.share(FETCHER))
    used_by(connections.share(COMPLETER))
    connections.close_idle()
    assert connections._second.open_connection is not None
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    needed_at = connections._needed_at
    with background[0].use() as connection:
        time.sleep(0.06)
        connections.close_idle()
        assert not is_lost(connection)
    assert connections._needed_at == needed_at
    connections.close_idle()
    assert connections._second.open_connection is None
    assert is_lost(connection)
    assert connections._first.open_connection is not None
    assert used_by(background[0]) == "fetcher"


def test_need_because_the_first_is_in_use_keeps_the_second_open(connections, background, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 10.0)
    connections._needed_at = time.monotonic() - 20.0
    with connections.share(FETCHER).use():
        used_by(background[0])
    connections.close_idle()
    assert connections._second.open_connection is not None


def test_connected_at_changes_after_a_loss_only(connections, engine):
    """The fetcher forgets its cursors then, and rescues wait until live workers have extended their leases."""
    fetcher, completer = connections.share(FETCHER), connections.share(COMPLETER)
    used_by(fetcher)
    used_by(completer)
    before = fetcher.connected_at
    connections._second.close()
    used_by(completer)
    with pytest.raises(psycopg.errors.DivisionByZero), fetcher.use() as connection:
        connection.execute("SELECT 1 / 0")
    used_by(fetcher)
    assert fetcher.connected_at == before
    for lost in (fetcher, completer):
        before = fetcher.connected_at
        with lost.use() as connection:
            process = connection.info.backend_pid
        engine.execute("SELECT pg_terminate_backend(%s)", (process,))
        with pytest.raises(psycopg.OperationalError):
            used_by(lost)
        assert fetcher.connected_at == before
        used_by(lost)
        assert fetcher.connected_at > before


def test_failure_to_connect_counts_as_a_loss(connections, monkeypatch):
    """Otherwise a rescue could follow an outage during which the second connection was closed."""
    completer = connections.share(COMPLETER)
    used_by(completer)
    before = completer.connected_at
    connections._second.close()

    def fail(*args):
        raise psycopg.OperationalError("no server")

    with monkeypatch.context() as outage:
        outage.setattr(connection_module, "connect", fail)
        with pytest.raises(psycopg.OperationalError):
            used_by(completer)
    used_by(completer)
    assert completer.connected_at > before


def test_error_in_a_block_returns_the_connection(connections):
    with pytest.raises(KeyError), connections.share(FETCHER).use():
        raise KeyError
    assert used_by(connections.share(FETCHER)) == "fetcher"
    assert connections._used == []


@pytest.mark.parametrize(
    ("error", "is_replaced"), [(psycopg.errors.UndefinedTable, True), (OSError, True), (KeyError, False)]
)
def test_database_error_in_a_block_replaces_the_connection(connections, error, is_replaced):
    """A new connection has no prepared statements that refer to tables that were recreated."""
    share = connections.share(FETCHER)
    with pytest.raises(error), share.use() as before:
        raise error
    with share.use() as after:
        assert (after is not before) == before.closed == is_replaced


def test_service_that_waited_gets_its_time_limit_anew(connections):
    """Its round is not stuck: another service held the connection."""
    fetcher, seconds = connections.share(FETCHER), []

    class Waits(Service):
        def tick(self):
            self._busy_since -= 100.0
            with connections.share(Preference.ONLY_FIRST).use():
                seconds.append(self.busy_seconds)
            self.stop()
            return 0.0

    service = Waits("waits")
    with fetcher.use():
        service.start()
        helpers.wait_until(lambda: connections._waiting)
        assert service.busy_seconds > 99.0
    service.join(10.0)
    [busy_seconds] = seconds
    assert busy_seconds < 50.0


def test_two_threads_never_use_one_connection(connections, background):
    """Many threads take connections at random; each must find its connection unused, and all must get their turns."""
    users, clashes, ended = {}, [], threading.Barrier(6, timeout=30.0)
    shares = [connections.share(FETCHER), connections.share(COMPLETER), *background, connections.share(OTHER)]

    def use(share):
        for _ in range(300):
            with share.use() as connection:
                clashes.extend([connection] if users.setdefault(connection, share) is not share else [])
                connection.execute("SELECT 1")
                del users[connection]
        ended.wait()

    for share in shares:
        helpers.Background(lambda share=share: use(share))
    ended.wait()
    assert not clashes
