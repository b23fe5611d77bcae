"""Parameters that a project sets outside of this package: in OPTIONS, a service file, or the environment.

Django's connections have them, so the worker's own connections and those of its jobs must have them too.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from django.db import connections

from django_pgqueue.db import engine_connection
from django_pgqueue.db.engine_connection import KEEPALIVE, EngineConnection
from django_pgqueue.db.startup_options import values_outside
from django_pgqueue.worker.runtime.django_connections import notice_lost_servers
from tests.helpers import scalar

SEARCH_PATH = "-c search_path=app,public"
PLACES = ("environment", "service file", "service of the environment", "OPTIONS")
ENVIRONMENT = {"options": "PGOPTIONS", "connect_timeout": "PGCONNECT_TIMEOUT", "application_name": "PGAPPNAME"}


@pytest.fixture
def place(request, monkeypatch, tmp_path):
    """Return a function that sets a parameter of the alias `default` in one of the `PLACES`."""
    options = {}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    monkeypatch.setattr(engine_connection, "_for_django", {})

    def put(name, value):
        if request.param == "OPTIONS":
            options[name] = value
        elif request.param == "environment":
            monkeypatch.setenv(ENVIRONMENT[name], value)
        else:
            (tmp_path / "services").write_text(f"[app]\n{name}={value}\n")
            monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
            if request.param == "service file":
                options["service"] = "app"
            else:
                monkeypatch.setenv("PGSERVICE", "app")

    return put


@pytest.fixture
def opened_with(monkeypatch):
    """Return a function that opens an engine connection, and returns the parameters that psycopg gets."""
    given, original = {}, EngineConnection.connect

    def connect(**params):
        given.update(params)
        return original(**params)

    def parameters():
        engine_connection.connect("default", "test").close()
        return given

    monkeypatch.setattr(EngineConnection, "connect", connect)
    return parameters


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_engine_connection_keeps_options_from_outside(place, django_db_setup):
    place("options", SEARCH_PATH)
    with closing(engine_connection.connect("default", "test")) as engine:
        assert scalar(engine, "SHOW search_path").replace(" ", "") == "app,public"
        assert scalar(engine, "SHOW enable_seqscan") == "off"
        assert engine.prepare_threshold == 1


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_engine_connection_without_options_keeps_those_outside(place, django_db_setup, monkeypatch):
    """A pooler that ignores our options looks like this server. The project's own options may still work."""
    monkeypatch.setattr(engine_connection, "PLANNER", "-c jit=off")
    place("options", SEARCH_PATH)
    with closing(engine_connection.connect("default", "test")) as engine:
        assert scalar(engine, "SHOW search_path").replace(" ", "") == "app,public"
        assert engine.prepare_threshold is None


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_engine_connection_needs_win_over_options_outside(place, django_db_setup):
    place("options", "-c array_nulls=off -c enable_seqscan=on -c lock_timeout=1ms")
    with closing(engine_connection.connect("default", "test")) as engine:
        found = [scalar(engine, f"SHOW {name}") for name in ("array_nulls", "enable_seqscan", "lock_timeout")]
        assert found == ["on", "off", "2s"]


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_engine_connection_keeps_connect_timeout_from_outside(place, opened_with, django_db_setup):
    place("connect_timeout", "17")
    given = opened_with()
    assert str(given["connect_timeout"]) == "17"
    assert given["tcp_user_timeout"] == KEEPALIVE["tcp_user_timeout"]


@pytest.mark.parametrize("place", ["service file", "OPTIONS"], indirect=True)
@pytest.mark.parametrize("name", sorted(KEEPALIVE))
def test_engine_connection_keeps_each_parameter_from_outside(place, name, opened_with, django_db_setup):
    place(name, "9")
    assert str(opened_with()[name]) == "9"


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_engine_connection_has_its_own_application_name(place, django_db_setup):
    place("application_name", "shop")
    with closing(engine_connection.connect("default", "test")) as engine:
        assert scalar(engine, "SHOW application_name") == "pgqueue:test"


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_jobs_connections_keep_parameters_from_outside(place, django_db_setup):
    place("connect_timeout", "17")
    notice_lost_servers()
    params = connections["default"].get_connection_params()
    assert values_outside(params, ["connect_timeout", "keepalives_count"]) == {
        "connect_timeout": "17",
        "keepalives_count": "4",
    }


@pytest.mark.parametrize("place", ["environment", "service file"], indirect=True)
def test_engine_connection_in_worker_keeps_those_outside(place, opened_with, django_db_setup):
    place("connect_timeout", "17")
    notice_lost_servers()
    assert str(opened_with()["connect_timeout"]) == "17"


def test_values_outside_unknown_service_is_empty():
    """Connecting raises then, as Django's own connections do."""
    assert values_outside({"service": "no-such-service", "keepalives": 1}, ["keepalives"]) == {}
