"""Which of several finished jobs with one unique key a bulk act retries, and what it costs to find that out."""

from __future__ import annotations

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import execute
from django_pgqueue.lifecycle import bulk_acts, bulk_selection, claims, completions, operator
from django_pgqueue.lifecycle.bulk_acts import Selection, execute_batch, preview
from tests import helpers
from tests.statements import STATEMENTS
from tests.worker.test_bulk_acts import audited, entry, finish, request, states

DEAD = Selection("dead")
JOBS = (
    "INSERT INTO pgqueue_job "
    "(task_name, queue_name, arguments, state, unique_key, enqueued_at, run_after, finished_at) "
    "SELECT 'shop.charge', 'default', '{}', 'dead', 'one', '2026-01-01Z', '2026-01-01Z', "
    "'2026-01-01Z'::timestamptz + CASE WHEN %(reverse)s THEN -n ELSE n END * interval '1 s' "
    "FROM generate_series(1, %(count)s) AS n RETURNING id"
)


def jobs_of_key(engine: EngineConnection, count: int, *, reverse: bool = False) -> list[int]:
    """Return the ids of dead jobs with one key. In reverse order, the latest has died first, and is visited first."""
    return sorted(row[0] for row in engine.execute(JOBS, {"count": count, "reverse": reverse}))


def end(engine: EngineConnection, job_id: int, how: str) -> None:
    """Run a ready job until it has ended, or only until it is running."""
    claimed = claims.claim_one(engine, job_id, worker_id=1, lease_seconds=60.0)
    assert claimed is not None
    if how == "dead":
        completions.fail(engine, helpers.failed(claimed.key, None))
    elif how == "succeeded":
        completions.succeed(engine, helpers.succeeded(claimed.key))


@pytest.mark.promise("bulk-act-latest-of-key")
@pytest.mark.parametrize("reverse", [False, True])
def test_retry_of_a_thousand_jobs_of_a_key_revives_the_latest(engine, monkeypatch, reverse):
    monkeypatch.setattr(bulk_acts, "BATCH", 300)
    job_ids = jobs_of_key(engine, 1000, reverse=reverse)
    assert preview(engine, "retry", DEAD).chosen == 1
    audit_id = request(engine, "retry", DEAD)
    finish(engine)
    assert [job_id for job_id, state in states(engine).items() if state != "dead"] == job_ids[-1:]
    row = entry(engine, audit_id)
    assert (row["job_count"], row["left_count"], audited(engine, audit_id)) == (1, 999, job_ids[-1:])


@pytest.mark.promise("bulk-act-latest-of-key")
@pytest.mark.parametrize("selection", ["filter", "list"])
@pytest.mark.parametrize("how", ["dead", "succeeded", "running"])
def test_act_after_the_latest_has_run_revives_no_other(engine, monkeypatch, how, selection):
    """An earlier batch or another operator has retried the latest job, which has run since."""
    monkeypatch.setattr(bulk_acts, "BATCH", 1)
    job_ids = jobs_of_key(engine, 5, reverse=True)
    audit_id = request(engine, "retry", DEAD if selection == "filter" else Selection(job_ids=tuple(job_ids)))
    if selection == "filter":
        execute_batch(engine, audit_id)
    else:
        operator.retry(engine, job_ids[-1:])
    end(engine, job_ids[-1], how)
    finish(engine)
    assert [helpers.state_of(engine, job_id) for job_id in job_ids] == ["dead"] * 4 + [how]


@pytest.mark.promise("bulk-act-latest-of-key")
def test_act_on_a_list_while_the_latest_runs_without_its_key_revives_no_other(engine, monkeypatch):
    """The key of a job with `unique_while="ready"` is free while the job runs, so only the act keeps the others."""
    monkeypatch.setattr(bulk_acts, "BATCH", 1)
    job_ids = jobs_of_key(engine, 3)
    engine.execute("UPDATE pgqueue_job SET unique_ready_only = true")
    audit_id = request(engine, "retry", Selection(job_ids=tuple(job_ids)))
    operator.retry(engine, job_ids[-1:])
    end(engine, job_ids[-1], "running")
    finish(engine)
    assert [helpers.state_of(engine, job_id) for job_id in job_ids] == ["dead", "dead", "running"]
    assert audited(engine, audit_id) == []


@pytest.mark.promise("bulk-act-latest-of-key")
def test_act_that_could_not_lock_the_latest_revives_no_other(engine, second, monkeypatch):
    monkeypatch.setattr(bulk_acts, "BATCH", 1)
    job_ids = jobs_of_key(engine, 4, reverse=True)
    audit_id = request(engine, "retry", DEAD)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", job_ids[-1:])
        finish(engine)
    row = entry(engine, audit_id)
    assert (set(states(engine).values()), row["job_count"], row["left_count"]) == ({"dead"}, 0, 4)


def buffers_per_job(engine: EngineConnection, monkeypatch: pytest.MonkeyPatch, count: int) -> float:
    """Return how many buffers the pages of an act read for each of `count` dead jobs of one key."""
    helpers.clear_tables(engine)
    jobs_of_key(engine, count)
    engine.execute("VACUUM ANALYZE pgqueue_job")
    buffers = 0

    def explained(on, statement, params):
        nonlocal buffers
        assert statement is STATEMENTS["BULK_PAGE_DEAD"]
        text = statement.replace("*/", "*/ EXPLAIN (ANALYZE, BUFFERS, FORMAT json)", 1)
        [[plans]] = on.execute(text, {**params, "time_shift": "0 s"}, prepare=False).fetchall()
        buffers += plans[0]["Plan"]["Shared Hit Blocks"] + plans[0]["Plan"]["Shared Read Blocks"]
        return execute(on, statement, params)

    with monkeypatch.context() as patch:
        request(engine, "retry", DEAD)
        patch.setattr(bulk_selection, "execute", explained)
        finish(engine)
    return buffers / count


def test_pages_of_one_key_cost_the_same_for_each_job(engine, monkeypatch):
    monkeypatch.setattr(bulk_acts, "BATCH", 250)
    engine.autocommit = True
    few, many = (buffers_per_job(engine, monkeypatch, count) for count in (500, 5000))
    assert many <= 1.5 * few, (few, many)
