"""A standby is promoted: each worker process that worked before ends, and one that replaces it works."""

from __future__ import annotations

import pytest

from tests.helpers import make_job, scalar, state_of

from .server import Server

pytestmark = pytest.mark.process
TIMELINE = """
CREATE TABLE timeline (name text);
INSERT INTO timeline VALUES ('00000001');
GRANT SELECT ON timeline TO PUBLIC;
CREATE FUNCTION public.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS 'SELECT name FROM public.timeline';
ALTER DATABASE postgres SET search_path = public, pg_catalog;
"""
"""Let the test say on which timeline the server is."""
END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ 'fetcher|completer'"
"""End the sessions of the worker processes, but not that of their supervisor."""


def restart_as_standby(server: Server) -> None:
    server.cluster.stop("fast")
    (server.cluster.data / "standby.signal").touch()
    server.cluster.start()


def who_refuses_standbys(said: str) -> set[int]:
    """Return the ids of the processes that have logged that the server is a standby."""
    return {int(line.split()[2]) for line in said.splitlines() if "is a standby" in line}


@pytest.mark.promise("defect-session-outlives-promotion")
def test_worker_keeps_no_session_with_a_standby(start, server):
    """Such a session would continue after the promotion, and its process would not notice that."""
    worker = start("--concurrency", "1", database=server.settings, LEASE=4.0)
    process = worker.wait_until_ready()
    restart_as_standby(server)
    refusing = {worker.process.pid, process}
    worker.wait_until(lambda: who_refuses_standbys(worker.said) == refusing, 70)  # an outage is logged once a minute
    with server.connect() as admin:
        assert scalar(admin, "SELECT pg_promote()")
    worker.wait_until(lambda: f"worker process {process}: the database was promoted" in worker.said)


@pytest.mark.promise("defect-session-outlives-promotion")
def test_supervisor_session_that_survives_a_promotion_does_not_end_later_processes(start, server):
    """A pooler can keep the supervisor's session. The processes that it forks would know the former timeline only."""
    with server.connect() as admin:
        admin.execute(TIMELINE, prepare=False)
        worker = start("--concurrency", "1", database=server.settings)
        process = worker.wait_until_ready()
        admin.execute("UPDATE timeline SET name = '00000002'")
        admin.execute(END_SESSIONS)
        worker.wait_until(lambda: f"worker process {process}: the database was promoted" in worker.said)
        worker.wait_until(lambda: worker.said.count("is ready") == 2)
        job = make_job(admin)
        worker.wait_until(lambda: state_of(admin, job) == "succeeded")
        assert worker.said.count("the database was promoted") == 1
