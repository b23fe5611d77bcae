"""Engine connections behind poolers that refuse or ignore start-up options, whatever the words of the refusal."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from django.db import connections

from django_pgqueue.db import engine_connection, startup_options
from django_pgqueue.db.startup_options import StartupOptions
from tests.helpers import scalar
from tests.startup_proxy import StartupProxy

REFUSALS = {
    "pgbouncer": ("08P01", "unsupported startup parameter: options"),
    "pgbouncer 1.20": ("08P01", "unsupported startup parameter in options: jit"),
    "rds proxy": ("0A000", "Feature not supported: RDS Proxy currently doesn't support command-line options."),
    "odyssey": ("28000", "odyssey: c1a2b3: incorrect startup packet"),
    "pgcat": ("58000", "Error parsing startup"),
    "unknown": ("XX000", "no"),
    "german": ("22023", "unbekannter Parameter"),
    "closes": b"",
}


@pytest.fixture
def proxy(django_db_setup, monkeypatch):
    """Let the alias `default` lead through a proxy, in a process that knows nothing about it."""
    wrapper = connections["default"]
    params = wrapper.get_connection_params()
    made = StartupProxy(f"{params['host']}/.s.PGSQL.{params['port']}")
    monkeypatch.setattr(engine_connection, "_startup", {"default": StartupOptions()})
    through = {**params, "host": "127.0.0.1", "port": made.port}
    monkeypatch.setattr(type(wrapper), "get_connection_params", lambda self: dict(through))
    yield made
    made.close()


def refuse_options(refusal):
    return lambda startup: refusal if "options" in startup else None


def connect() -> engine_connection.EngineConnection:
    return engine_connection.connect("default", "test")


def is_prepared() -> bool:
    """Open a connection, run a statement, and return whether the connection prepares statements."""
    with closing(connect()) as opened:
        assert scalar(opened, "SELECT 7") == 7
        return opened.prepare_threshold is not None


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_connect_refused_options_connects_without_them(proxy, refusal):
    proxy.answer = refuse_options(refusal)
    assert not is_prepared()
    assert not engine_connection.is_direct("default")


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_connect_refused_options_remembers_the_refusal(proxy, refusal):
    proxy.answer = refuse_options(refusal)
    for _ in range(4):
        assert not is_prepared()
    assert proxy.with_options() == [True, False, True, False, False, False, False]


def test_connect_ignored_options_remembers_it(proxy):
    proxy.rewrite = lambda startup: {name: value for name, value in startup.items() if name != "options"}
    for _ in range(3):
        assert not is_prepared()
    assert proxy.with_options() == [True, False, False, False]


def test_connect_refusal_at_the_first_statement_falls_back(proxy):
    """Some poolers pass the options on when they connect to the server, which is at the first statement."""
    ready = b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I"
    refusal = b"E\0\0\0\x25SFATAL\0VFATAL\0C0A000\0Mno options\0\0"
    proxy.answer = refuse_options(ready + refusal)
    assert not is_prepared()


def test_connect_after_an_outage_has_its_options(proxy):
    proxy.is_down = True
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError):
            connect()
    proxy.is_down = False
    assert is_prepared()
    assert engine_connection.is_direct("default")


def test_connect_refused_options_after_an_outage_falls_back(proxy):
    """The refusal is a new message, so it is followed by an attempt without options at once."""
    proxy.answer = refuse_options(REFUSALS["rds proxy"])
    proxy.is_down = True
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError):
            connect()
    proxy.is_down = False
    assert not is_prepared()


def test_connect_outage_that_ends_in_between_keeps_options(proxy):
    """The first attempt fails, the second one without options succeeds. The options are not to blame."""
    answers = iter([("57P03", "the database system is starting up")])
    proxy.answer = lambda startup: next(answers, None)
    assert is_prepared()
    assert proxy.with_options() == [True, False, True]
    assert is_prepared()
    assert proxy.with_options() == [True, False, True, True]


def test_connect_last_slot_taken_by_itself_keeps_options(proxy):
    """Too many clients fail the first attempt. A connection of this process must not be one of those at the second."""
    open_now, failed = [], []

    def connection(name):
        class Opened:
            def close(self):
                open_now.remove(self)

        if open_now or not failed:
            failed.append(name)
            raise psycopg.OperationalError("FATAL: sorry, too many clients already")
        open_now.append(Opened())
        return open_now[0]

    options = StartupOptions()
    with_options = options.connect(lambda: connection("options"), lambda: connection("plain"))
    assert (open_now, options.are_accepted, failed) == ([with_options], True, ["options"])


def test_connect_message_without_options_too_is_no_refusal(proxy):
    """All attempts with options fail, and the attempts without them do so with the same message in between."""
    full = ("53300", "sorry, too many clients already")
    answers = iter([full, None, full, full])
    proxy.answer = lambda startup: next(answers, None)
    with pytest.raises(psycopg.OperationalError, match="too many clients"):
        connect()
    assert is_prepared(), "the options were not refused"


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (("28P01", 'password authentication failed for user "shop"'), "password authentication failed"),
        (("3D000", 'database "shop" does not exist'), "does not exist"),
    ],
)
def test_connect_wrong_settings_are_reported(proxy, refusal, words):
    """One attempt without options follows, and then none for a minute."""
    proxy.answer = lambda startup: refusal
    for _ in range(5):
        with pytest.raises(psycopg.OperationalError, match=words):
            connect()
    assert proxy.with_options().count(False) == 1


def test_connect_wrong_password_behind_pooler_is_reported(proxy):
    """The pooler refuses options first. The error is that of the attempt without options."""
    refusal = ("28P01", "password authentication failed")
    proxy.answer = lambda startup: REFUSALS["rds proxy"] if "options" in startup else refusal
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect()


def test_connect_new_message_each_time_bounds_the_attempts(proxy):
    proxy.answer = lambda startup: ("28P01", "x" * len(proxy.startups))
    for _ in range(startup_options.KNOWN_FAILURES + 10):
        with pytest.raises(psycopg.OperationalError):
            connect()
    assert proxy.with_options().count(False) == startup_options.KNOWN_FAILURES


def test_connect_slow_failure_of_known_server_is_not_repeated(proxy, monkeypatch):
    """To repeat it at once would double the time until the loss of a server is noticed."""
    assert is_prepared()
    monkeypatch.setattr(startup_options, "SLOW_SECONDS", 0.0)
    proxy.answer = lambda startup: ("57P03", "the database system is starting up")
    with pytest.raises(psycopg.OperationalError):
        connect()
    assert proxy.with_options() == [True, True]


def test_connect_options_accepted_later_are_used_again(proxy, monkeypatch):
    proxy.answer = refuse_options(REFUSALS["rds proxy"])
    assert not is_prepared()
    monkeypatch.setattr(startup_options, "RECHECK_SECONDS", 0.0)
    assert not is_prepared()
    assert proxy.with_options() == [True, False, True, False, True, False], "the known refusal needs no second attempt"
    proxy.answer = lambda startup: None
    assert is_prepared()


def test_connect_pooler_put_before_known_server_falls_back(proxy):
    assert is_prepared()
    proxy.answer = refuse_options(REFUSALS["rds proxy"])
    assert not is_prepared()
