"""Bulk acts that a limit key filters: exactly the jobs of the key or the limit, page by page, by ranges of indexes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from django_pgqueue.db import statements
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import bulk_acts, bulk_selection
from django_pgqueue.lifecycle.bulk_acts import Selection, preview
from django_pgqueue.lifecycle.types import Lane
from tests import helpers
from tests.test_sql import explain, nodes, rows_read
from tests.worker.test_bulk_acts import audited, entry, finish, request, states

KEY, OTHER = "import:customer:7", "import:customer:70"
NEAR = ("import", "import-all", "importer:1", "Import:1", "import:", "import;a")


def add(engine: EngineConnection, limit_key: str | None, count: int = 1, **options: Any) -> list[int]:
    """Return the ids of new ready jobs with a limit key."""
    job_ids = helpers.make_jobs(engine, count, **options)
    engine.execute("UPDATE pgqueue_job SET limit_key = %s WHERE id = ANY(%s)", [limit_key, job_ids])
    return job_ids


def end(engine: EngineConnection, job_ids: list[int], state: str) -> None:
    engine.execute("UPDATE pgqueue_job SET state = %s, finished_at = now() WHERE id = ANY(%s)", [state, job_ids])


def cancelled(engine: EngineConnection) -> set[int]:
    return {job_id for job_id, state in states(engine).items() if state == "cancelled"}


def test_cancel_by_key_changes_its_ready_jobs_in_all_lanes(engine, monkeypatch):
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    for key in (None, OTHER, *NEAR):
        add(engine, key, queue_name="mail")
    places: list[dict[str, Any]] = [{}, {"queue_name": "mail"}, {"queue_name": "mail", "priority": 5}]
    chosen = [job_id for place in places for job_id in add(engine, KEY, 3, **place)]
    seen = preview(engine, "cancel", Selection("ready", limit_key=KEY))
    assert (seen.chosen, seen.has_more) == (9, False)
    assert {job.job_id for job in seen.sample} == set(chosen)
    audit_id = request(engine, "cancel", Selection("ready", limit_key=KEY))
    finish(engine)
    assert (sorted(audited(engine, audit_id)), cancelled(engine)) == (sorted(chosen), set(chosen))
    assert entry(engine, audit_id)["filter"] == {"word": "ready", "limit_key": KEY}


def test_cancel_by_limit_changes_ready_jobs_of_all_its_keys(engine, monkeypatch):
    monkeypatch.setattr(bulk_acts, "BATCH", 1)
    others = [job_id for key in (None, *NEAR[1:4], "import;a") for job_id in add(engine, key)]
    chosen = [job_id for key in (OTHER, "import", KEY) for job_id in add(engine, key, 2)]
    elsewhere = add(engine, KEY, queue_name="mail")
    audit_id = request(engine, "cancel", Selection("ready", queue_name="default", limit_key="import"))
    finish(engine)
    assert sorted(audited(engine, audit_id)) == sorted(chosen)
    assert set(states(engine)) - cancelled(engine) == {*others, *elsewhere}


@pytest.mark.parametrize(("limit_key", "wanted"), [(KEY, {KEY}), ("import", {"import", KEY, OTHER})])
def test_retry_and_running_cancel_by_limit_leave_other_jobs(engine, limit_key, wanted):
    keys = (None, KEY, OTHER, *(key for key in NEAR if key != "import:"))
    dead = {key: add(engine, key)[0] for key in keys}
    end(engine, list(dead.values()), "dead")
    running = {key: add(engine, None)[0] for key in keys}
    helpers.claim_all(engine, Lane("default", 0))
    for key, job_id in running.items():
        engine.execute("UPDATE pgqueue_job SET limit_key = %s WHERE id = %s", [key, job_id])
        engine.execute(
            "UPDATE pgqueue_execution SET limit_key = %s, limit_weight = %s WHERE job_id = %s",
            [key, key and 1, job_id],
        )
    for action, word, jobs in (("retry", "dead", dead), ("cancel", "running", running)):
        selection = Selection(word, limit_key=limit_key)
        assert preview(engine, action, selection).chosen == len(wanted)
        audit_id = request(engine, action, selection)
        finish(engine)
        assert sorted(audited(engine, audit_id)) == sorted(jobs[key] for key in wanted)


def test_preview_across_lanes_counts_up_to_its_bound(engine, monkeypatch):
    monkeypatch.setattr(bulk_acts, "PREVIEWED", 4)
    add(engine, KEY, 3)
    add(engine, KEY, 3, queue_name="mail")
    seen = preview(engine, "cancel", Selection("ready", limit_key="import"))
    assert (seen.chosen, seen.has_more) == (4, True)


def test_limit_key_of_a_filter_is_checked():
    with pytest.raises(ValueError, match="NUL"):
        Selection("ready", limit_key="import:\0")
    with pytest.raises(ValueError, match="either ids"):
        Selection(job_ids=(1,), limit_key="import")


# ---------------------------------------------------------------------------- plans

FILL = (
    (
        "INSERT INTO pgqueue_job (task_name, queue_name, arguments, limit_key, run_after) "
        "SELECT 'app.t', 'queue' || n % 4, '{}', 'hot:' || n % 50, '2026-01-01Z' FROM generate_series(1, 8000) AS n"
    ),
    (
        "INSERT INTO pgqueue_job (task_name, queue_name, arguments, limit_key, run_after) "
        "SELECT 'app.t', 'queue1', '{}', 'import:' || n % 2, '2026-01-01Z' FROM generate_series(1, 100) AS n"
    ),
    "ANALYZE pgqueue_job",
)
ASKED = 500


@pytest.mark.parametrize("limit_key", ["import", "import:1", "hot", "nothing"])
def test_plans_of_bulk_acts_by_limit_read_only_its_range(engine, monkeypatch, limit_key):
    """8,000 ready jobs of another limit are in the same lanes. An application has the planner's default settings."""
    for statement in FILL:
        engine.execute(statement)
    for setting in ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort"):
        engine.execute(f"SET {setting} = on")
    executed: list[tuple[str, dict[str, Any]]] = []

    def execute(connection: Any, statement: str, params: dict[str, Any]) -> Any:
        executed.append((statement, params))
        return statements.execute(connection, statement, params)

    monkeypatch.setattr(bulk_selection, "execute", execute)
    monkeypatch.setattr(bulk_acts, "PREVIEWED", ASKED - 1)
    preview(engine, "cancel", Selection("ready", limit_key=limit_key))
    names = [statement.split("pgqueue:")[1].split()[0].upper() for statement, _ in executed]
    assert names == ["BULK_LIMIT_RANGES"] + ["BULK_PAGE_READY_LIMITED"] * (limit_key != "nothing")
    for name, (_, params) in zip(names, executed, strict=True):
        plain = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in params.items()}
        found = list(nodes(explain(engine, name, plain, "custom")))
        assert not [
            node for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "pgqueue_job"
        ]
        read = {node["Index Name"]: rows_read(node) for node in found if "Index Name" in node}
        assert read["pgqueue_job_limited"] <= ASKED, (name, read)
