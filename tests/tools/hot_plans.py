"""Show what the frequent statements read for jobs without limits: `python -m tests.tools.hot_plans`. Not run in CI.

It makes a database of its own with 20,000 ready jobs, prints the pages that each statement reads, the checksum of its
plan, and the indexes that it uses, and removes the database. To compare with an older commit, run this file with that
checkout as PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

JOBS, BATCH = 20_000, 100
NAME_OF_DATABASE = "pgqueue_hot_plans"
LOADING = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_buffers = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_format = json",
    "SET client_min_messages = log",
)
NAME = re.compile(r"/\* pgqueue:(\w+) \*/")
SHAPE = ("Node Type", "Operation", "Relation Name", "Index Name", "Scan Direction", "CTE Name", "Subplan Name")


def main() -> None:
    """Print a row of a table for each statement."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    settings = connection.settings_dict
    execute(connection, f"DROP DATABASE IF EXISTS {NAME_OF_DATABASE}", f"CREATE DATABASE {NAME_OF_DATABASE}")
    connection.close()
    former, settings["NAME"] = settings["NAME"], NAME_OF_DATABASE
    try:
        call_command("migrate", verbosity=0)
        for plan in run(connection):
            sys.stdout.write(row(plan) + "\n")
    finally:
        connection.close()
        settings["NAME"] = former
        execute(connection, f"DROP DATABASE {NAME_OF_DATABASE}")


def execute(connection: Any, *statements: str) -> None:
    """Run statements on Django's connection."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def run(connection: Any) -> list[Any]:
    """Run the statements, and return the plans of their second runs: the first ones fill the caches of the session."""
    from django_pgqueue.db import engine_connection
    from tests.app.tasks import noop

    noop.enqueue_many((((), {}) for _ in range(JOBS)), returning=False)
    with engine_connection.connect("default", "test") as worker:
        worker.execute("VACUUM (ANALYZE) pgqueue_job")
        for _ in range(2):
            plans = explained(connection, worker)
    return plans


def explained(connection: Any, worker: Any) -> list[Any]:
    """Run each statement once, and return the plans."""
    plans: list[Any] = []

    def note(diagnostic: Any) -> None:
        text = diagnostic.message_primary or ""
        if text.startswith("duration:"):
            plans.append(json.loads(text.partition("plan:\n")[2]))

    connection.ensure_connection()
    for each in (worker, connection.connection):
        for statement in LOADING:
            each.execute(statement)
        each.add_notice_handler(note)
    run_statements(worker)
    for each in (worker, connection.connection):
        each.remove_notice_handler(note)
    return [plan for plan in plans if NAME.search(plan["Query Text"])]


def run_statements(worker: Any) -> None:
    """Run what workers and producers run often, on jobs without a limit."""
    from django_pgqueue.lifecycle import claims, completions, expiry, leases, pruning, rescues
    from django_pgqueue.lifecycle.types import Released
    from django_pgqueue.states import State
    from tests import helpers
    from tests.app.tasks import noop

    noop.enqueue()
    noop.enqueue_many((((), {}) for _ in range(BATCH)), returning=False)
    noop.using(unique_key="hot").enqueue()
    claims.scan_lanes(worker)
    claimed = helpers.claim_all(worker, limit=3 * BATCH)
    leases.extend(worker, [1], lease_seconds=60.0)
    leases.cancel_requests(worker, [1])
    leases.open_executions(worker, 1)
    keys = [job.key for job in claimed]
    completions.succeed(worker, helpers.succeeded(*keys[:BATCH]))
    completions.fail(worker, [failed for key in keys[BATCH : 2 * BATCH] for failed in helpers.failed(key)])
    completions.release(worker, [Released(key) for key in keys[2 * BATCH :]])
    rescues.rescue(worker, lambda _: None, error="")
    expiry.expire(worker, worker_id=1, error="")
    pruning.prune(worker, State.SUCCEEDED, 0.0, limit=BATCH)
    pruning.prune(worker, State.DEAD, 0.0, limit=BATCH)


def row(plan: Any) -> str:
    """Return the name, pages, indexes and the checksum of a plan as a row of a table."""
    found = list(nodes(plan["Plan"]))
    top = plan["Plan"]
    pages = top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0)
    indexes = sorted({node["Index Name"] for node in found if "Index Name" in node})
    shape = json.dumps([{key: node.get(key) for key in SHAPE} for node in found])
    [name] = NAME.findall(plan["Query Text"])
    return f"| {name} | {pages} | {hashlib.sha256(shape.encode()).hexdigest()[:8]} | {', '.join(indexes)} |"


def nodes(plan: Any) -> Iterator[Any]:
    """Return a plan's nodes, the outer ones first."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


if __name__ == "__main__":
    main()
