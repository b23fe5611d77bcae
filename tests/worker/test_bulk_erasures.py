"""Bulk acts that erase values: only what was chosen, also of callbacks, and each job is counted once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import clock
from django_pgqueue.ground.envelope import ERASED
from django_pgqueue.lifecycle import audit, bulk_acts, erased_callbacks, operator
from django_pgqueue.lifecycle.bulk_acts import Selection, execute_batch, preview, request_act
from django_pgqueue.lifecycle.bulk_filters import ERASED_KINDS
from django_pgqueue.worker.maintenance import bulk_acts as service_module
from tests import helpers
from tests.history.finished import make
from tests.worker.test_bulk_acts import audited, entry, finish, request

CALL = '{"args": ["secret"], "kwargs": {}}'
COLUMNS = {"arguments": "arguments", "results": "result"}


def secrets(engine: EngineConnection, job_id: int) -> set[str]:
    """Return the kinds of values of a job that still have a secret."""
    job = helpers.rows_of(engine, "pgqueue_job")[job_id]
    [execution] = [row for row in helpers.rows_of(engine, "pgqueue_execution").values() if row["job_id"] == job_id]
    logged = {row["execution_id"] for row in helpers.rows_of(engine, "pgqueue_execution_log").values()}
    found = {kind for kind, column in COLUMNS.items() if ERASED not in str(job[column])}
    found |= {"errors"} if "secret" in execution["error"] else set()
    return found | ({"logs"} if execution["id"] in logged else set())


def callback_batch(engine: EngineConnection, arguments: str, *, task: str = helpers.NOOP) -> int:
    """Return the id of a batch that has completed, with a callback."""
    call = f'{{"arguments": {arguments}, "task_name": "{task}", "queue_name": "default", "headers": {{"a": 1}}}}'
    insert = (
        "INSERT INTO pgqueue_batch (closed_at, completed_at, succeeded_at, on_complete) "
        "VALUES ('2020-01-01Z', '2020-01-01Z', '2020-01-01Z', %s) RETURNING id"
    )
    return int(helpers.scalar(engine, insert, [call]))


def erased_batches(engine: EngineConnection) -> set[int]:
    rows = helpers.rows_of(engine, "pgqueue_batch").items()
    return {batch_id for batch_id, row in rows if ERASED in json.dumps(row["on_complete"])}


@pytest.mark.parametrize("state", ["succeeded", "dead", "cancelled"])
@pytest.mark.parametrize("kinds", [("results", "logs"), ("arguments", "errors"), ERASED_KINDS])
def test_erasure_changes_only_chosen_kinds_of_chosen_jobs(engine, state, kinds):
    chosen = make(engine, 2, logs=True, state=state, queue="mail")
    [other] = make(engine, logs=True, state=state)
    selection = Selection(state, queue_name="mail", erased=kinds)
    seen = preview(engine, "erase", selection)
    assert (seen.chosen, seen.left, [job.job_id for job in seen.sample]) == (2, 0, chosen)
    audit_id = request_act(engine, "erase", selection, previewed_at=seen.at, done_by="ada", reason="request 91")
    finish(engine)
    assert [secrets(engine, job_id) for job_id in (*chosen, other)] == [
        *[set(ERASED_KINDS) - set(kinds)] * 2,
        set(ERASED_KINDS),
    ]
    row = entry(engine, audit_id)
    assert (row["action"], row["job_count"], row["left_count"], row["outcome"]) == ("erase", 2, 0, "done")
    assert row["filter"] == {"word": state, "queue_name": "mail", "erased": list(kinds)}
    assert sorted(audited(engine, audit_id)) == chosen
    assert {helpers.state_of(engine, job_id) for job_id in chosen} == {state}


def test_erasure_leaves_and_counts_needed_locked_and_changed_jobs(engine, second):
    good, needed, locked, retried, unneeded = make(engine, 5)
    for number, job_id in enumerate((needed, unneeded), start=1):
        state = ("waiting", "succeeded")[number - 1]
        engine.execute(f"UPDATE pgqueue_job SET in_graph = true, batch_id = {number} WHERE id = %s", [job_id])
        [other] = helpers.make_jobs(engine, queue_name="other")
        values = "finished_at = '2001-01-01Z', " if state == "succeeded" else ""
        engine.execute(
            f"UPDATE pgqueue_job SET {values}in_graph = true, batch_id = {number}, state = %s WHERE id = %s",
            [state, other],
        )
    listed = Selection(job_ids=(good, needed, locked, retried, unneeded), erased=ERASED_KINDS)
    audit_id = request(engine, "erase", listed)
    operator.retry(engine, [retried])
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [locked])
        finish(engine)
    row = entry(engine, audit_id)
    assert (row["job_count"], row["left_count"], row["outcome"]) == (2, 2, "done"), "the retried one is not finished"
    assert audited(engine, audit_id) == [good, unneeded]
    assert all("arguments" in secrets(engine, job_id) for job_id in (needed, locked, retried))
    again = request(engine, "erase", Selection("succeeded", erased=("arguments",)))
    finish(engine)
    assert needed in audited(engine, again), "without its result, nothing needs its values"


@pytest.mark.parametrize("way", ["filter", "list"])
def test_erasure_in_batches_counts_each_job_once(engine, monkeypatch, way):
    """The jobs stay in the range of the filter, so only the cursor keeps the act from a second visit."""
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    jobs = make(engine, 5)
    chosen = {"word": "succeeded"} if way == "filter" else {"job_ids": tuple(jobs)}
    audit_id = request(engine, "erase", Selection(**chosen, erased=ERASED_KINDS), rate=1.0)
    finish(engine)
    row = entry(engine, audit_id)
    assert (row["job_count"], row["left_count"], sorted(audited(engine, audit_id))) == (5, 0, jobs)


def test_erasure_stops_before_its_next_batch(engine):
    jobs = make(engine, 3)
    audit_id = request(engine, "erase", Selection("succeeded", erased=("arguments",)), rate=1.0)
    assert execute_batch(engine, audit_id).changed == {jobs[0]: "succeeded"}
    assert audit.stop_audit(engine, audit_id, "grace")
    clock.shift_seconds = 60.0
    assert execute_batch(engine, audit_id) is None
    assert ["arguments" in secrets(engine, job_id) for job_id in jobs] == [False, True, True]


@pytest.mark.parametrize(("kinds", "erased"), [(("arguments",), {"same"}), (("results", "errors", "logs"), set())])
def test_erasure_of_arguments_erases_callbacks_of_its_jobs(engine, kinds, erased):
    make(engine)
    batches = {
        "same": callback_batch(engine, '{"kwargs": {}, "args": ["secret"]}'),
        "other arguments": callback_batch(engine, '{"args": ["other"], "kwargs": {}}'),
        "other task": callback_batch(engine, CALL, task="shop.other"),
        "open": callback_batch(engine, CALL),
        "later": callback_batch(engine, CALL),
    }
    engine.execute("UPDATE pgqueue_batch SET completed_at = NULL, succeeded_at = NULL WHERE id = %s", [batches["open"]])
    engine.execute("UPDATE pgqueue_batch SET completed_at = '2100-01-01Z' WHERE id = %s", [batches["later"]])
    request(engine, "erase", Selection("succeeded", erased=kinds))
    finish(engine)
    assert erased_batches(engine) == {batches[name] for name in erased}
    if erased:
        call = helpers.rows_of(engine, "pgqueue_batch")[batches["same"]]["on_complete"]
        assert (call["headers"], call["task_name"]) == (None, helpers.NOOP)


def test_erasure_looks_for_callbacks_a_few_pages_at_a_time(engine, monkeypatch):
    """No job of the page is erased before its callbacks, and the jobs behind the page are looked for later."""
    monkeypatch.setattr(erased_callbacks, "PAGE", 2)
    monkeypatch.setattr(erased_callbacks, "WALKED", 1)
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    jobs = make(engine, 2) + make(engine, 1, days=1, arguments='{"args": ["later"], "kwargs": {}}')
    batches = [callback_batch(engine, CALL) for _ in range(5)]
    later = callback_batch(engine, '{"args": ["later"], "kwargs": {}}')
    audit_id = request(engine, "erase", Selection("succeeded", erased=("arguments",)), rate=1.0)
    steps: list[tuple[int, int]] = []
    while entry(engine, audit_id)["outcome"] is None:
        assert execute_batch(engine, audit_id) is not None
        steps.append((len(erased_batches(engine)), len(audited(engine, audit_id))))
        clock.shift_seconds += 1.0
    of_first_page, of_last = [(2, 0), (4, 0), (5, 0), (5, 1), (5, 2)], [(5, 2), (5, 2), (6, 2), (6, 3)]
    assert steps == of_first_page + of_last
    assert erased_batches(engine) == {*batches, later} and audited(engine, audit_id) == jobs


def test_erasure_at_a_rate_erases_no_job_before_its_callbacks(engine, monkeypatch):
    """A batch of two jobs begins with the last job of the page whose callbacks are erased."""
    monkeypatch.setattr(bulk_acts, "BATCH", 3)
    jobs = make(engine, 5)
    engine.execute('UPDATE pgqueue_job SET arguments = \'{"args": [4], "kwargs": {}}\' WHERE id = %s', [jobs[3]])
    batch = callback_batch(engine, '{"args": [4], "kwargs": {}}')
    audit_id = request(engine, "erase", Selection("succeeded", erased=("arguments",)), rate=2.0)
    finish(engine)
    assert audited(engine, audit_id) == jobs and erased_batches(engine) == {batch}


def test_erasure_with_a_page_that_shrinks_looks_for_callbacks_anew(engine, monkeypatch):
    """The last job of the page is deleted between two batches of the act."""
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    first, second, third = make(engine, 3, arguments='{"args": [1], "kwargs": {}}')
    engine.execute("UPDATE pgqueue_job SET arguments = %s WHERE id = %s", [CALL, third])
    batch = callback_batch(engine, CALL)
    audit_id = request(engine, "erase", Selection("succeeded", erased=("arguments",)), rate=1.0)
    execute_batch(engine, audit_id)
    assert audited(engine, audit_id) == [first] and erased_batches(engine) == set()
    operator.delete(engine, [second])
    finish(engine)
    assert audited(engine, audit_id) == [first, third] and erased_batches(engine) == {batch}


def test_erasure_refused_for_all_jobs_changes_nothing_and_goes_on(engine):
    jobs = make(engine, 3)
    audit_id = request(engine, "erase", Selection("succeeded", erased=("arguments",)))
    with helpers.users_trigger(engine, "true"), pytest.raises(Exception, match="not this one"):
        execute_batch(engine, audit_id)
    assert (entry(engine, audit_id)["job_count"], audited(engine, audit_id)) == (0, [])
    finish(engine)
    assert audited(engine, audit_id) == jobs


def test_erasure_notifies_nobody(engine, monkeypatch):
    """The jobs have finished long ago, so nobody waits for them, and no key becomes free."""
    said: list[Any] = []
    monkeypatch.setattr(service_module, "notify_keys_unblocked", said.append)
    monkeypatch.setattr(service_module, "operated", lambda *args, **more: said.append(args) or [])
    make(engine, state="dead")
    request(engine, "erase", Selection("dead", erased=ERASED_KINDS))
    finish(engine)
    assert said == []
