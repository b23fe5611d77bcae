"""A worker whose tables are found only by a `search_path` that is set outside of this package."""

from __future__ import annotations

import pytest
from psycopg import sql

from tests.helpers import make_job, state_of

from .harness import DATABASE_KEYS

pytestmark = pytest.mark.process


def in_environment(server, path):
    return {key: server.settings[key] for key in DATABASE_KEYS}, {"PGOPTIONS": "-c search_path=app"}


def in_options(server, path):
    return {**server.settings, "OPTIONS": {"options": "-c search_path=app"}}, {}


def in_service_file(server, path):
    where = server.settings
    lines = ["[shop]", f"host={where['HOST']}", f"port={where['PORT']}", f"user={where['USER']}", "dbname=postgres"]
    path.write_text("\n".join([*lines, "options=-c search_path=app", ""]))
    return {"ENGINE": where["ENGINE"], "NAME": "", "OPTIONS": {"service": "shop"}}, {"PGSERVICEFILE": str(path)}


@pytest.mark.parametrize("place", [in_environment, in_options, in_service_file])
def test_worker_finds_tables_by_search_path_from_outside(start, server, tmp_path, place):
    with server.connect() as admin:
        admin.execute(sql.SQL("ALTER SCHEMA public RENAME TO app"))
        admin.execute("SET search_path = app")
        job = make_job(admin)
        settings, variables = place(server, tmp_path / "services")
        assert start("--until-empty", database=settings, variables=variables).has_drained()
        assert state_of(admin, job) == "succeeded"
