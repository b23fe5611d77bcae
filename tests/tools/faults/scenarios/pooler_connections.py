"""What a worker's connections are like behind PgBouncer: prepared statements, and their number (F50g, F50h)."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Final

from tests.tools.faults.catalogue import fault
from tests.tools.faults.pooler import Pooler, pgbouncer_version, through_pooler
from tests.tools.faults.run import Run, Skip

from .database import assert_only_counted, enqueue_load
from .pooling import NEEDS, assert_unprepared

LISTENING: Final = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'pgqueue:listener (listens)'"
)
IGNORED: Final = Counter(to_server=1000)
"""An idle connection of PgBouncer to the server belongs to nobody: it stays open for its `server_idle_timeout`."""


@fault(
    "F50g",
    "PgBouncer 1.21 or later keeps prepared statements, and the connections of jobs use them",
    invariant="statements that jobs prepare work on each server connection; the worker itself prepares none",
    expected="all jobs succeed, 0 charged; 0 errors about prepared statements",
    needs=NEEDS,
)
def prepared_statements(run: Run) -> str:
    if pgbouncer_version() < (1, 21):
        raise Skip("this PgBouncer keeps no prepared statements: it is older than 1.21")
    pooler = through_pooler(run, default_pool_size="4", max_prepared_statements="50", server_lifetime="2")
    run.settings["OPTIONS"] = {"server_side_binding": True, "prepare_threshold": 1}
    jobs = enqueue_load(run, seconds=0.1)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    prepared = 0
    for _ in run.while_unfinished(60):
        shown = pooler.show("SERVERS", run.database)
        prepared = max([prepared, *(int(row["prepared_statements"]) for row in shown)])
        time.sleep(0.05)
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    for worker in workers:
        assert_unprepared(worker)
    assert prepared, "no statement was prepared"
    return f"{jobs} of {jobs} jobs, 0 charged; up to {prepared} statements prepared on a server connection"


def connections(run: Run, pooler: Pooler) -> Counter[str]:
    """Count the connections to the pooler, and those of the pooler to the server."""
    names = [row["application_name"] for row in pooler.show("CLIENTS", run.database)]
    own = [name for name in names if name.startswith("pgqueue:")]
    states = [row["state"] for row in pooler.show("SERVERS", run.database)]
    return Counter(own=len(own), of_jobs=len(names) - len(own), to_server=len(states), in_use=states.count("active"))


def most_connections(run: Run, pooler: Pooler) -> Counter[str]:
    """Return the largest number of each kind, until all jobs have ended."""
    most: Counter[str] = Counter()
    for _ in run.while_unfinished(60):
        most |= connections(run, pooler)
        time.sleep(0.01)
    return most


@fault(
    "F50h",
    "PgBouncer in transaction mode, without `LISTEN_DATABASE` and with it: connections are counted",
    invariant=(
        "a worker has as many connections to the pooler as it would have to the server, and with `LISTEN_DATABASE` "
        "one more that bypasses it; an idle worker occupies no server connection"
    ),
    expected="2 connections of its own while it is idle, and 3 while it works",
    needs=NEEDS,
)
def connections_counted(run: Run) -> str:
    direct = {key: run.settings[key] for key in ("HOST", "PORT")}
    pooler = through_pooler(run, default_pool_size="20", server_idle_timeout="2")
    about = {
        "DJANGO_SETTINGS_MODULE": "tests.tools.faults.settings_pooled",
        "PGQUEUE_FAULTS_DIRECT": json.dumps(direct),
        "PGQUEUE_TEST_HOOKS": "quick_idle",
    }
    counts = []
    for past, alias in ((0, None), (1, "direct")):
        worker = run.worker("--concurrency", "4", variables=about, LEASE=8.0, LISTEN_DATABASE=alias)
        jobs = enqueue_load(run, seconds=0.1)
        most = most_connections(run, pooler)
        run.wait_until_done(60)
        assert most["own"] == 3, most
        assert most["of_jobs"] <= 4 + 1, most  # one for each thread, and one for all coroutines
        assert most["to_server"] <= 3 + 5, most
        run.wait_until(lambda: connections(run, pooler) - IGNORED == Counter(own=2), what="the connections to be idle")
        assert run.scalar(LISTENING) == past
        counts.append(f"{jobs} jobs: {most['own']} + {most['of_jobs']}, and {most['to_server']} to the server")
        run.stop(worker)
    return "; ".join(counts)
