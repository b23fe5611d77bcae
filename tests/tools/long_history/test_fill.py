"""The fill drops the indexes and makes them again. What is measured must have the tables of a migration."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from example_project.embedded.server import Cluster, binaries, reachable
from tests.process.conftest import short_path
from tests.tools.long_history.place import LONG, SMALL

INDEXES = (
    "SELECT regexp_replace(indexdef, ' WHERE .*', ' WHERE') FROM pg_indexes "
    "WHERE tablename IN ('pgqueue_job', 'pgqueue_execution') ORDER BY 1"
)
"""Without the predicates, because PostgreSQL writes a predicate that it reads from its own text in another way."""
CHECKS = (
    "SELECT conname FROM pg_constraint WHERE contype = 'c' "
    "AND conrelid IN ('pgqueue_job'::regclass, 'pgqueue_execution'::regclass) ORDER BY 1"
)
COUNTS = (
    "SELECT (SELECT count(*) FROM pgqueue_job WHERE finished_at IS NOT NULL), (SELECT count(*) FROM pgqueue_execution),"
    " (SELECT count(*) FROM pgqueue_job WHERE state = 'ready')"
)


@pytest.mark.slow
def test_fill_interrupted_and_continued_leaves_migrated_tables(engine):
    """A fill that may take no time ends after its first step."""
    wanted = [engine.execute(query).fetchall() for query in (INDEXES, CHECKS)]
    with short_path() as home:
        command = [sys.executable, "-m", "tests.tools.long_history", "--jobs", "1000", "--directory", home]
        command += ["--small-jobs", "500", "--measure", ""]
        assert subprocess.run([*command, "--fill-seconds", "0"], check=False).returncode == 1
        subprocess.run(command, check=True)
        cluster = Cluster(home / "server", reachable(binaries(), home / "copy"))
        cluster.start()
        try:
            for name, jobs in ((SMALL, 500), (LONG, 1000)):
                where = cluster.connection_settings
                with psycopg.connect(
                    host=where["HOST"], port=where["PORT"], user=where["USER"], dbname=name
                ) as connection:
                    found = [connection.execute(query).fetchall() for query in (INDEXES, CHECKS)]
                    assert found == wanted
                    assert connection.execute(COUNTS).fetchall() == [(jobs, jobs, 200)]
        finally:
            cluster.stop("immediate")
