"""Bulk acts as workers execute them: exact against the preview, at a rate, stoppable, and safe if a worker dies."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import clock
from django_pgqueue.lifecycle import audit, bulk_acts, bulk_changes, bulk_selection, claims, completions, operator
from django_pgqueue.lifecycle.bulk_acts import Selection, execute_batch, preview, request_act, waiting_acts
from django_pgqueue.lifecycle.types import Lane
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.maintenance import bulk_acts as service_module
from django_pgqueue.worker.maintenance.bulk_acts import BulkActs
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime import refusals
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers
from tests.test_sql import explain, nodes, rows_read

DEAD = Selection("dead")


def die(
    engine: EngineConnection, count: int = 1, *, error: str = "shop.Declined", text: str = "as asked", **options: Any
) -> list[int]:
    """Return the ids of new jobs that have died of an error, one after the other."""
    job_ids = helpers.make_jobs(engine, count, **options)
    for claimed in helpers.claim_all(engine, Lane(options.get("queue_name", "default"), 0)):
        [failed] = helpers.failed(claimed.key, None)
        completions.fail(engine, [failed._replace(exception_class=error, error=text)])
    return job_ids


def fail_again(engine: EngineConnection, job_id: int, error: str) -> None:
    """Let a ready job fail once more, and wait for its next attempt."""
    claimed = claims.claim_one(engine, job_id, worker_id=1, lease_seconds=60.0)
    assert claimed is not None
    [failed] = helpers.failed(claimed.key, 60.0)
    completions.fail(engine, [failed._replace(exception_class=error)])


def request(engine: EngineConnection, action: str, selection: Selection, **options: Any) -> int:
    """Request an act as it was previewed just now."""
    return request_act(engine, action, selection, previewed_at=preview(engine, action, selection).at, **options)


def finish(engine: EngineConnection) -> None:
    """Execute all acts to their end, as a worker does that never waits for a rate."""
    service = BulkActs(FOREGROUND, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        pauses = helpers.Clock(patch, refusals, service_module)
        for _ in range(50):
            if (due_in := service.go_on(engine)) is not None:
                clock.shift_seconds += max(0.0, due_in)
            elif waiting_acts(engine):
                pauses.pass_by(refusals.LONGEST_BACKOFF_SECONDS)
            else:
                return
    pytest.fail("an act does not end")


def states(engine: EngineConnection) -> dict[int, str]:
    return {job_id: row["state"] for job_id, row in helpers.rows_of(engine, "pgqueue_job").items()}


def entry(engine: EngineConnection, audit_id: int) -> dict[str, Any]:
    return helpers.rows_of(engine, "pgqueue_audit")[audit_id]


def audited(engine: EngineConnection, audit_id: int) -> list[int]:
    rows = helpers.rows_of(engine, "pgqueue_audit_job").values()
    return [row["job_id"] for row in rows if row["audit_id"] == audit_id]


def test_retry_by_filter_changes_only_the_chosen_group(engine):
    chosen = die(engine, 3, task_name="shop.charge", queue_name="mail")
    die(engine, task_name="shop.charge", queue_name="mail", error="shop.Timeout")
    die(engine, task_name="shop.refund", queue_name="mail")
    die(engine, task_name="shop.charge")
    group = Selection("dead", queue_name="mail", task_name="shop.charge", exception_class="shop.Declined")
    seen = preview(engine, "retry", group)
    assert (seen.chosen, seen.has_more, seen.left) == (3, False, 0)
    assert [job.job_id for job in seen.sample] == chosen
    audit_id = request(engine, "retry", group, done_by="ada", reason="fixed", total=3)
    finish(engine)
    assert [job_id for job_id, state in states(engine).items() if state == "ready"] == chosen
    row = entry(engine, audit_id)
    assert (row["job_count"], row["left_count"], row["outcome"], row["next_batch_at"]) == (3, 0, "done", None)
    assert (row["done_by"], row["reason"], row["ended_at"] is not None) == ("ada", "fixed", True)
    assert audited(engine, audit_id) == chosen


MESSAGES = (
    "order 4711 not found",
    "Order 4712 NOT found",
    "order 4713 not found\nsee the log of 30 November",
    "order 9 not found by shop 7",
    "key 3fa85f64-5717-4562-b3fc-2c963f66afa6 is not 0x1F",
    "50% of C:\\d_a",
    "",
)
"""Messages of dead jobs."""


@pytest.mark.parametrize(
    ("message", "chosen"),
    [
        ("order 4711", {0}),
        ("NOT found", {0, 1, 2, 3}),
        ("november", {2}),
        ("=order # not found", {0, 2}),
        ("=order # not found by shop #", {3}),
        ("=key # is not #", {4}),
        ("order # not found", set()),
        ("%", {5}),
        ("\\d_", {5}),
        ("=", {6}),
    ],
)
def test_retry_by_message_changes_only_jobs_with_it(engine, message, chosen):
    jobs = [die(engine, text=text)[0] for text in MESSAGES]
    [lost] = helpers.make_jobs(engine, 1)
    engine.execute(f"UPDATE pgqueue_job SET state = 'dead', finished_at = statement_timestamp() WHERE id = {lost}")
    group = Selection("dead", exception_class="shop.Declined", message=message)
    assert Selection.from_json(group.as_json()) == group
    for selection in (group, Selection("dead", message=message)):
        assert preview(engine, "retry", selection).chosen == len(chosen)
    audit_id = request(engine, "retry", group)
    finish(engine)
    assert audited(engine, audit_id) == [jobs[place] for place in sorted(chosen)]
    assert entry(engine, audit_id)["left_count"] == 0


def test_listed_job_acknowledged_after_the_preview_stays(engine):
    kept, done = die(engine, 2)
    listed = Selection(job_ids=(kept, done))
    seen = preview(engine, "retry", listed)
    operator.acknowledge(engine, [done])
    audit_id = request_act(engine, "retry", listed, previewed_at=seen.at)
    finish(engine)
    assert audited(engine, audit_id) == [kept] and states(engine)[done] == "dead"
    assert preview(engine, "retry", listed).chosen == 1, "a later preview shows that it is acknowledged, and chooses it"


def test_retry_by_message_takes_the_latest_job_of_a_key(engine):
    """The latest job of the key has another message, so the retry does not leave the earlier one for it."""
    [earlier], _ = die(engine, text="order 1 not found"), die(engine, text="no such shop")
    engine.execute("UPDATE pgqueue_job SET unique_key = 'a'")
    for message, chosen in (("=order # not found", 1), ("shop", 1), ("o", 1)):
        assert preview(engine, "retry", Selection("dead", message=message)).chosen == chosen
    [job] = preview(engine, "retry", Selection("dead", message="=order # not found")).sample
    assert job.job_id == earlier


@pytest.mark.promise("bulk-act-as-previewed")
def test_jobs_that_died_or_changed_after_the_preview_stay(engine):
    kept, retried, again = die(engine, 3)
    seen = preview(engine, "delete", DEAD)
    [late] = die(engine)
    operator.retry(engine, [retried, again])
    claimed = claims.claim_one(engine, again, worker_id=1, lease_seconds=60.0)
    completions.fail(engine, helpers.failed(claimed.key, None))
    audit_id = request_act(engine, "delete", DEAD, previewed_at=seen.at)
    finish(engine)
    assert states(engine) == {retried: "ready", again: "dead", late: "dead"}
    assert audited(engine, audit_id) == [kept]


@pytest.mark.promise("bulk-act-as-previewed")
def test_ready_jobs_that_changed_after_the_preview_stay(engine):
    """A retried job is ready again, and a failed one waits for its next attempt: nobody has seen them so."""
    due, failed = helpers.make_jobs(engine, 2)
    scheduled, hurried = helpers.make_jobs(engine, 2, delay_seconds=60.0)
    [dead] = die(engine, queue_name="other")
    seen = preview(engine, "cancel", Selection("ready"))
    assert seen.chosen == 4
    [late] = helpers.make_jobs(engine)
    operator.retry(engine, [dead])
    operator.run_now(engine, [hurried])
    fail_again(engine, failed, "shop.Declined")
    audit_id = request_act(engine, "cancel", Selection("ready"), previewed_at=seen.at)
    finish(engine)
    assert states(engine) == {
        due: "cancelled", scheduled: "cancelled", failed: "ready", hurried: "ready", dead: "ready", late: "ready"
    }  # fmt: skip
    assert entry(engine, audit_id)["left_count"] == 3, "those that are ready, but were not so then"


@pytest.mark.promise("bulk-act-as-previewed")
def test_running_jobs_that_started_after_the_preview_go_on(engine):
    old, ready = helpers.make_jobs(engine, 2)
    claims.claim_one(engine, old, worker_id=1, lease_seconds=60.0)
    seen = preview(engine, "cancel", Selection("running"))
    claims.claim_one(engine, ready, worker_id=1, lease_seconds=60.0)
    request_act(engine, "cancel", Selection("running"), previewed_at=seen.at)
    finish(engine)
    rows = helpers.rows_of(engine, "pgqueue_job")
    assert [rows[job_id]["cancel_requested_at"] is not None for job_id in (old, ready)] == [True, False]
    assert preview(engine, "cancel", Selection("running")).chosen == 1, "the other one is being cancelled already"


def test_listed_jobs_in_another_state_are_left_out(engine):
    [dead], ready = die(engine), helpers.make_job(engine, queue_name="other")
    listed = Selection(job_ids=(dead, ready, 1_000_000))
    seen = preview(engine, "retry", listed)
    assert (seen.chosen, seen.left) == (1, 2)
    audit_id = request_act(engine, "retry", listed, previewed_at=seen.at)
    finish(engine)
    assert audited(engine, audit_id) == [dead] and entry(engine, audit_id)["left_count"] == 0


@pytest.mark.parametrize(("queue", "moved"), [(None, {"a", "b", "z"}), ("a", {"a"})])
def test_move_visits_lanes_in_order_and_no_job_twice(engine, monkeypatch, queue, moved):
    """The target queue comes last, so the scan meets the jobs that it has moved there."""
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    jobs = {name: helpers.make_jobs(engine, 3, queue_name=name) for name in ("a", "b", "z")}
    low = helpers.make_job(engine, queue_name="a", priority=-5)
    audit_id = request(engine, "move", Selection("ready", queue_name=queue, to_queue="z"))
    finish(engine)
    queues = {job_id: row["queue_name"] for job_id, row in helpers.rows_of(engine, "pgqueue_job").items()}
    assert all(queues[job_id] == ("z" if name in moved else name) for name, ids in jobs.items() for job_id in ids)
    assert queues[low] == "z" and entry(engine, audit_id)["job_count"] == (4 if queue else 7)
    assert entry(engine, audit_id)["left_count"] == (0 if queue else 3), "those that were there before"


@pytest.mark.parametrize("queue", [None, "z"])
def test_move_gives_a_priority_and_visits_no_job_twice(engine, monkeypatch, queue):
    """Jobs that move to a lower priority come later in the order of the scan."""
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    jobs = [helpers.make_job(engine, queue_name=name, priority=5) for name in ("a", "b", "z") for _ in range(3)]
    same = helpers.make_job(engine, queue_name="z", priority=-3)
    audit_id = request(engine, "move", Selection("ready", to_queue=queue, to_priority=-3))
    finish(engine)
    rows = helpers.rows_of(engine, "pgqueue_job")
    assert {row["priority"] for row in rows.values()} == {-3}
    assert {row["queue_name"] for row in rows.values()} == ({"z"} if queue else {"a", "b", "z"})
    assert audited(engine, audit_id) == jobs and entry(engine, audit_id)["left_count"] == 1, same


def test_run_now_makes_scheduled_jobs_due(engine):
    later, _ = helpers.make_job(engine, delay_seconds=60.0), helpers.make_job(engine)
    audit_id = request(engine, "run_now", Selection("scheduled"))
    finish(engine)
    assert audited(engine, audit_id) == [later]


def test_rate_limits_a_batch_and_sets_the_time_of_the_next(engine):
    die(engine, 5)
    audit_id = request(engine, "retry", DEAD, rate=2.0)
    batch = execute_batch(engine, audit_id)
    assert batch is not None and len(batch.changed) == 2
    assert batch.due_in is not None and 0.5 < batch.due_in <= 1.0
    assert execute_batch(engine, audit_id) is None, "the next batch is not due yet"
    [(_, due_in)] = waiting_acts(engine)
    assert 0 < due_in <= 1.0
    clock.shift_seconds = 60.0
    assert len(execute_batch(engine, audit_id).changed) == 2
    assert execute_batch(engine, audit_id) is not None, "at most one second of delay is made up for"
    assert entry(engine, audit_id)["outcome"] == "done"


@pytest.mark.promise("bulk-act-survives-worker")
def test_dead_worker_changes_nothing_and_another_goes_on(engine, second, watcher, monkeypatch):
    """The worker dies after its transition and before its commit."""
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    jobs = die(engine, 5)
    audit_id = request(engine, "retry", DEAD)
    execute_batch(engine, audit_id)
    record = bulk_changes.record_audit

    def die_before_recording(*args: Any, **options: Any) -> bool:
        watcher.execute("SELECT pg_terminate_backend(%s, 5000)", [second.info.backend_pid])
        return bool(record(*args, **options))

    monkeypatch.setattr(bulk_changes, "record_audit", die_before_recording)
    with pytest.raises(psycopg.OperationalError):
        execute_batch(second, audit_id)
    monkeypatch.setattr(bulk_changes, "record_audit", record)
    assert sorted(states(engine).values()) == ["dead"] * 3 + ["ready"] * 2
    finish(engine)
    assert set(states(engine).values()) == {"ready"}
    assert audited(engine, audit_id) == jobs and entry(engine, audit_id)["job_count"] == 5


@pytest.mark.promise("bulk-act-survives-worker")
def test_two_workers_never_execute_one_act_at_once(engine, second):
    die(engine, 3)
    audit_id, other = (request(engine, "retry", Selection("dead", queue_name=name)) for name in ("default", "none"))
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_audit WHERE id = %s FOR NO KEY UPDATE", [audit_id])  # a batch is under way
        assert execute_batch(engine, audit_id) is None
        BulkActs(FOREGROUND, lambda: None).go_on(engine)
        assert entry(engine, other)["outcome"] == "done", "another act does not wait for it"
    assert set(states(engine).values()) == {"dead"}
    finish(engine)
    assert set(states(engine).values()) == {"ready"}


def test_two_acts_on_the_same_jobs_change_each_once(engine):
    jobs = die(engine, 4)
    first, second = (request(engine, "retry", DEAD, rate=1.0) for _ in range(2))
    finish(engine)
    assert sorted(audited(engine, first) + audited(engine, second)) == jobs


def test_stop_ends_the_act_before_its_next_batch(engine):
    die(engine, 3)
    audit_id = request(engine, "retry", DEAD, rate=1.0)
    execute_batch(engine, audit_id)
    assert audit.stop_audit(engine, audit_id, "grace")
    clock.shift_seconds = 60.0
    assert waiting_acts(engine) == [] and execute_batch(engine, audit_id) is None
    row = entry(engine, audit_id)
    assert (row["outcome"], row["stop_asked_by"], row["job_count"]) == ("stopped", "grace", 1)
    assert row["ended_at"] is not None and sorted(states(engine).values()) == ["dead", "dead", "ready"]


@pytest.mark.parametrize(("error", "stops"), [("shop.Declined", True), ("shop.Timeout", False)])
def test_act_stops_at_the_first_repeat(engine, error, stops):
    first, *_ = die(engine, 3)
    audit_id = request(engine, "retry", DEAD, rate=1.0, stops_on_repeat=True)
    execute_batch(engine, audit_id)
    fail_again(engine, first, error)
    finish(engine)
    row = entry(engine, audit_id)
    if stops:
        assert (row["outcome"], row["failed_job_id"], row["error"]) == ("repeated", first, "shop.Declined")
        assert row["job_count"] == 1 and sorted(states(engine).values()) == ["dead", "dead", "ready"]
    else:
        assert (row["outcome"], row["failed_job_id"], row["job_count"]) == ("done", None, 3)


@pytest.mark.parametrize("locked", [False, True])
def test_refused_and_locked_jobs_are_left_and_counted(engine, second, locked):
    bad, good = die(engine, 2)
    audit_id = request(engine, "retry", DEAD)
    if locked:
        with helpers.transaction(second):
            second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [bad])
            finish(engine)
    else:
        with helpers.users_trigger(engine, f"OLD.id = {bad}"):
            finish(engine)
    assert states(engine) == {bad: "dead", good: "ready"}
    row = entry(engine, audit_id)
    assert (row["job_count"], row["left_count"], row["outcome"]) == (1, 1, "done")


@pytest.mark.promise("failure-of-all-bulk-acts-goes-on")
@pytest.mark.parametrize("sqlstate", ["P0001", "42P01", "42501", "22P02"])
@pytest.mark.parametrize("rate", [None, 1.0])
def test_act_all_jobs_refused_for_a_while_goes_on_later(engine, monkeypatch, sqlstate, rate):
    """The table that a trigger needs is away, and comes back."""
    die(engine, 3)
    audit_id = request(engine, "retry", DEAD, rate=rate)
    service, pauses = BulkActs(FOREGROUND, lambda: None), helpers.Clock(monkeypatch, refusals, service_module)
    with helpers.users_trigger(engine, "true", sqlstate):
        for _ in range(4):
            assert service.go_on(engine) is None
            pauses.pass_by(refusals.LONGEST_BACKOFF_SECONDS)
    row = entry(engine, audit_id)
    assert (row["outcome"], row["job_count"], row["left_count"]) == (None, 0, 0)
    finish(engine)
    row = entry(engine, audit_id)
    assert (row["outcome"], row["job_count"], row["left_count"]) == ("done", 3, 0)


@pytest.mark.promise("failure-of-all-bulk-acts-goes-on")
def test_act_outage_between_its_batches_passes_no_job_by(engine, monkeypatch):
    die(engine, 5)
    audit_id = request(engine, "retry", DEAD, rate=2.0)
    assert execute_batch(engine, audit_id) is not None
    clock.shift_seconds = 60.0
    service, pauses = BulkActs(FOREGROUND, lambda: None), helpers.Clock(monkeypatch, refusals, service_module)
    with helpers.users_trigger(engine, "true", "42P01"):
        for seconds in (refusals.FIRST_BACKOFF_SECONDS, 2 * refusals.FIRST_BACKOFF_SECONDS):
            assert service.go_on(engine) is None
            pauses.pass_by(seconds)
    finish(engine)
    row = entry(engine, audit_id)
    assert (row["outcome"], row["job_count"], row["left_count"]) == ("done", 5, 0)


def test_acts_many_refused_stop_no_other(engine, monkeypatch):
    monkeypatch.setattr(bulk_acts, "WAITING", 2)
    [bad], [good] = die(engine, queue_name="bad"), die(engine, queue_name="good")
    for queue in ("bad", "bad", "good"):
        last = request(engine, "retry", Selection("dead", queue_name=queue))
    service = BulkActs(FOREGROUND, lambda: None)
    with helpers.users_trigger(engine, f"OLD.id = {bad}"):
        service.go_on(engine)
        service.go_on(engine)
    assert (entry(engine, last)["outcome"], states(engine)) == ("done", {bad: "dead", good: "ready"})


@pytest.mark.promise("failure-of-all-bulk-acts-goes-on")
def test_act_page_of_one_tenant_refused_reaches_others(engine, monkeypatch):
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    job_ids = die(engine, 8)
    audit_id, bad = request(engine, "retry", DEAD), job_ids[2:6]
    with helpers.users_trigger(engine, f"OLD.id BETWEEN {bad[0]} AND {bad[-1]}"):
        finish(engine)
    row = entry(engine, audit_id)
    assert (row["outcome"], row["job_count"], row["left_count"]) == ("done", 4, 4)
    assert [job_id for job_id, state in sorted(states(engine).items()) if state == "dead"] == bad


ACTS = {
    "retry": ("dead", DEAD, "ready"),
    "delete": ("dead", DEAD, None),
    "erase": ("dead", Selection("dead", erased=("arguments",)), "dead"),
    "cancel": ("ready", Selection("scheduled"), "cancelled"),
    "run_now": ("ready", Selection("scheduled"), "ready"),
    "move": ("ready", Selection("scheduled", to_queue="other"), "ready"),
}
"""For each action: the state of the jobs, the selection, and the state afterwards. None: the job is gone."""


@pytest.mark.promise("bad-row-bulk-acts")
@pytest.mark.parametrize("rate", [None, 1.0, 3.0])
@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("action", ACTS)
def test_act_one_job_refused_all_others_are_changed(engine, action, place, rate):
    """At a rate of one job per second, each batch has one job, and the refused one fills a batch."""
    before, selection, after = ACTS[action]
    job_ids = die(engine, 7) if before == "dead" else helpers.make_jobs(engine, 7, delay_seconds=3600.0)
    audit_id, bad = request(engine, action, selection, rate=rate), job_ids[place]
    with helpers.users_trigger(engine, f"OLD.id = {bad}", event="UPDATE OR DELETE"):
        finish(engine)
    row = entry(engine, audit_id)
    assert (row["outcome"], row["job_count"], row["left_count"], row["error"]) == ("done", 6, 1, "")
    expected = {job_id: before if job_id == bad else after for job_id in job_ids}
    assert states(engine) == {job_id: state for job_id, state in expected.items() if state}
    assert sorted(audited(engine, audit_id)) == [job_id for job_id in job_ids if job_id != bad]


@pytest.mark.promise("bad-row-bulk-acts")
def test_act_record_of_one_job_refused_others_are_changed(engine):
    job_ids = die(engine, 5)
    audit_id = request(engine, "retry", DEAD)
    with helpers.users_trigger(engine, f"NEW.job_id = {job_ids[2]}", table="pgqueue_audit_job", event="INSERT"):
        finish(engine)
    row = entry(engine, audit_id)
    assert (row["outcome"], row["job_count"], row["left_count"]) == ("done", 4, 1)
    assert states(engine) == {job_id: "dead" if job_id == job_ids[2] else "ready" for job_id in job_ids}


@pytest.mark.parametrize(
    "change",
    [
        "filter = '{\"word\": \"gone\"}'", "filter = '{\"word\": \"dead\", \"nonsense\": 1}'", "cursor = '7'",
        "cursor = '[\"x\", 1]'",
        'cursor = \'{"position": ["x", 1], "cancelled_again": []}\'',
        "action = 'explode'",
    ],
)  # fmt: skip
def test_entry_changed_by_hand_fails_and_stops_no_other(engine, change):
    [dead] = die(engine)
    broken, good = request(engine, "delete", DEAD), request(engine, "retry", DEAD)
    engine.execute(f"UPDATE pgqueue_audit SET {change} WHERE id = %s", [broken])
    finish(engine)
    query = "SELECT outcome, error <> '' FROM pgqueue_audit WHERE id = ANY (%s) ORDER BY id"
    assert engine.execute(query, [[broken, good]]).fetchall() == [("failed", True), ("done", False)]
    assert states(engine) == {dead: "ready"}


@pytest.mark.parametrize(
    ("action", "selection", "options", "says"),
    [
        ("explode", {"word": "dead"}, {}, "Invalid action 'explode'"),
        ("retry", {"word": "ready"}, {}, "Invalid state 'ready' to retry"),
        ("retry", {"word": "gone"}, {}, "Invalid state 'gone'"),
        ("retry", {"word": "dead"}, {"rate": 0.0}, "Invalid rate"),
        ("move", {"word": "ready"}, {}, "Pass a queue, a priority or both"),
        ("move", {"word": "ready", "to_priority": 101}, {}, "Invalid priority 101"),
        ("retry", {"word": "dead", "to_queue": "a"}, {}, "Pass no queue and no priority to retry"),
        ("retry", {"word": "dead", "to_priority": 1}, {}, "Pass no queue and no priority to retry"),
        ("retry", {"word": "dead", "job_ids": (1,)}, {}, "either ids"),
        ("retry", {"job_ids": range(10_001)}, {}, "Too many ids: 10,001"),
        ("cancel", {"word": "ready", "exception_class": ""}, {}, "Only finished jobs"),
        ("cancel", {"word": "ready", "message": "a"}, {}, "Only finished jobs"),
        ("erase", {"word": "ready", "erased": ("logs",)}, {}, "Invalid state 'ready' to erase"),
        ("erase", {"word": "dead"}, {}, "at least one kind"),
        ("erase", {"word": "dead", "erased": ("logs", "rows")}, {}, r"Invalid values to erase \['rows'\]"),
        ("delete", {"word": "dead", "erased": ("logs",)}, {}, "no kinds of values to delete"),
        ("retry", {"word": "dead", "message": "a\0"}, {}, "NUL"),
        ("retry", {"word": "dead", "task_name": "a\0"}, {}, "NUL"),
    ],
)
def test_invalid_act_is_refused_before_anything_is_written(engine, action, selection, options, says):
    with pytest.raises(ValueError, match=says):
        request(engine, action, Selection(**selection), **options)
    assert helpers.rows_of(engine, "pgqueue_audit") == {}


def test_preview_beyond_its_bound_says_at_least(engine, monkeypatch):
    die(engine, 4)
    monkeypatch.setattr(bulk_acts, "PREVIEWED", 3)
    seen = preview(engine, "retry", DEAD)
    assert (seen.chosen, seen.has_more) == (3, True)


def test_duty_of_maintenance_waits_for_the_rate_and_costs_one_look_when_idle(engine, monkeypatch):
    link = Link("default", "maintenance")
    service = Maintenance(link)
    [duty] = [each for each in service.duties if each.name == "bulk acts"]
    looks: list[str] = []
    monkeypatch.setattr(EngineConnection, "record_statement", lambda statement, seconds: looks.append(statement))
    assert duty.function() is False
    assert [look.split()[1] for look in looks] == ["pgqueue:waiting_acts"]
    die(engine, 2)
    request(engine, "retry", DEAD, rate=1.0)
    due_in = duty.function()
    assert not isinstance(due_in, bool) and 0 < due_in <= 1.0
    link.close()


def test_act_locked_each_time_others_go_on(engine, monkeypatch):
    """An act that is skipped comes after the others, so each of them has its turn."""
    die(engine, 2)
    first, second = (request(engine, "retry", DEAD) for _ in range(2))
    seen = []

    def execute_batch(connection, audit_id, **more):
        seen.append(audit_id)
        if audit_id == seen[0]:
            raise psycopg.errors.LockNotAvailable("locked")

    monkeypatch.setattr(bulk_acts, "execute_batch", execute_batch)
    acts = BulkActs(FOREGROUND, lambda: None)
    acts.go_on(engine)
    acts.go_on(engine)
    assert sorted(seen[:2]) == sorted([first, second])
    assert seen[2:] == [seen[1]]


def test_preview_counts_in_the_database(engine, monkeypatch):
    """The rows of a preview are few, however many jobs it counts."""
    die(engine, 30, task_name="shop.charge")
    die(engine, error="shop.Timeout")
    pages = []
    read_page = bulk_acts.read_page
    monkeypatch.setattr(
        bulk_acts, "read_page", lambda *args, **more: pages.append(read_page(*args, **more)) or pages[-1]
    )
    seen = preview(engine, "retry", Selection("dead", exception_class="shop.Declined"))
    assert (seen.chosen, seen.states, seen.has_more, len(seen.sample)) == (30, {"dead": 30}, False, bulk_acts.SAMPLE)
    assert [row.alike for row in pages[0].groups] == [30, 1] and len(pages[0].rows) == bulk_acts.SAMPLE + 1
    monkeypatch.setattr(bulk_acts, "PREVIEWED", 20)
    seen = preview(engine, "retry", DEAD)
    assert (seen.chosen, seen.states, seen.has_more) == (20, {"dead": 20}, True)


# ------------------------------------------------------------------ acknowledged jobs


def acknowledged(engine: EngineConnection) -> list[int]:
    rows = helpers.rows_of(engine, "pgqueue_job").items()
    return sorted(job_id for job_id, row in rows if row["acknowledged_at"] is not None)


@pytest.mark.parametrize("kind", ["filter", "list"])
def test_acknowledge_changes_only_dead_letters_of_the_preview(engine, monkeypatch, kind):
    known, *jobs = die(engine, 4, task_name="shop.charge")
    [other] = die(engine, task_name="shop.refund")
    operator.acknowledge(engine, [known])
    listed = Selection(job_ids=(known, *jobs))
    selection = Selection("dead", task_name="shop.charge") if kind == "filter" else listed
    seen = preview(engine, "acknowledge", selection)
    assert (seen.chosen, seen.left) == (3, 0 if kind == "filter" else 1)
    [late] = die(engine, task_name="shop.charge")
    meanwhile = jobs.pop()
    audit_id = request_act(engine, "acknowledge", selection, previewed_at=seen.at, reason="no customer needs it")
    operator.acknowledge(engine, [meanwhile])
    woken: list[Any] = []
    monkeypatch.setattr(service_module, "notify_keys_unblocked", woken.append)
    finish(engine)
    assert acknowledged(engine) == sorted([known, meanwhile, *jobs])
    assert set(states(engine).values()) == {"dead"} and {other, late} <= states(engine).keys()
    row = entry(engine, audit_id)
    assert (row["action"], row["job_count"], row["outcome"]) == ("acknowledge", 2, "done")
    assert audited(engine, audit_id) == jobs
    assert woken == [engine], "one of the jobs may have blocked its limit key"


def test_acknowledge_goes_on_at_its_rate_and_stops(engine):
    jobs = die(engine, 5)
    audit_id = request(engine, "acknowledge", DEAD, rate=2.0)
    assert [len(execute_batch(engine, audit_id).changed)] == [2]
    assert acknowledged(engine) == jobs[:2]
    audit.stop_audit(engine, audit_id, "ada")
    finish(engine)
    assert acknowledged(engine) == jobs[:2]
    assert entry(engine, audit_id)["outcome"] == "stopped"


@pytest.mark.parametrize("action", ["retry", "delete"])
def test_act_on_dead_letters_leaves_acknowledged_jobs(engine, action):
    known, letter = die(engine, 2)
    operator.acknowledge(engine, [known])
    assert preview(engine, action, DEAD).chosen == 1
    audit_id = request(engine, action, DEAD)
    finish(engine)
    assert audited(engine, audit_id) == [letter]
    assert states(engine)[known] == "dead"


def test_retry_of_listed_jobs_takes_acknowledged_ones(engine):
    [known] = die(engine)
    operator.acknowledge(engine, [known])
    request(engine, "retry", Selection(job_ids=(known,)))
    finish(engine)
    assert states(engine) == {known: "ready"} and acknowledged(engine) == []


def test_retry_of_a_key_is_not_left_to_a_later_acknowledged_job(engine):
    first, later = die(engine, 2)
    engine.execute("UPDATE pgqueue_job SET unique_key = 'one', finished_at = finished_at - interval '1 min'")
    operator.acknowledge(engine, [later])
    assert preview(engine, "retry", DEAD).chosen == 1
    request(engine, "retry", DEAD)
    finish(engine)
    assert states(engine) == {first: "ready", later: "dead"}


@pytest.mark.parametrize(("action", "word"), [("acknowledge", "cancelled"), ("acknowledge", "ready")])
def test_acknowledge_of_other_states_is_refused(engine, action, word):
    with pytest.raises(ValueError, match="use one of dead"):
        preview(engine, action, Selection(word))


# ------------------------------------------------------------------ plans


FILL = (
    (
        "INSERT INTO pgqueue_job "
        "(task_name, queue_name, priority, arguments, state, enqueued_at, run_after, finished_at) "
        "SELECT 'shop.task' || n % 3, 'queue' || n % 2, n % 2, '{}', CASE WHEN n > 2000 THEN 'ready' ELSE 'dead' END, "
        "'2026-01-01Z', '2026-01-01Z'::timestamptz + n * interval '1 s', "
        "CASE WHEN n <= 2000 THEN '2026-01-01Z'::timestamptz + n * interval '1 s' END "
        "FROM generate_series(1, 4000) AS n"
    ),
    (
        "INSERT INTO pgqueue_job (task_name, queue_name, priority, arguments, enqueued_at, run_after, limit_key) "
        "SELECT 'shop.task' || n % 3, 'queue' || n % 2, n % 2, '{}', '2026-01-01Z', "
        "'2026-01-01Z'::timestamptz + n * interval '1 s', 'limit:' || n % 100 FROM generate_series(1, 2000) AS n"
    ),
    (
        "INSERT INTO pgqueue_execution "
        "(job_id, attempt, worker_id, claimed_at, finished_at, lease_expires_at, outcome) "
        "SELECT n, 1, n % 9, '2026-01-01Z', CASE WHEN n <= 2000 THEN '2026-01-01Z'::timestamptz END, '2026-01-01Z', "
        "CASE WHEN n <= 2000 THEN 'failed' END FROM generate_series(1, 4000) AS n"
    ),
    (
        "INSERT INTO pgqueue_job (task_name, arguments, state, attempt, run_after, worker_id, execution_id) "
        "SELECT 'shop.task', '{}', 'running', 1, '2026-01-01Z', n % 9, 2000 + n FROM generate_series(1, 2000) AS n"
    ),
    (
        "INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, enqueued_at, finished_at, acknowledged_at) "
        "SELECT 'shop.task' || n % 3, 'queue' || n % 2, '{}', 'dead', '2025-01-01Z', "
        "'2025-01-01Z'::timestamptz + n * interval '1 s', '2026-01-01Z' FROM generate_series(1, 4000) AS n"
    ),
    "INSERT INTO pgqueue_audit (action, filter) SELECT 'retry', '{}' FROM generate_series(1, 1000) AS n",
    "INSERT INTO pgqueue_audit_job (audit_id, job_id) SELECT 1 + n / 2000, n FROM generate_series(1, 4000) AS n",
    "ANALYZE pgqueue_job, pgqueue_execution, pgqueue_audit, pgqueue_audit_job",
)
ASKED = 50
PLANS = {
    "BULK_PAGE_DEAD": (
        ("retry", Selection("dead", exception_class="x")),
        {"pgqueue_job_dead", "pgqueue_job_keyed", "pgqueue_audit_job_once", "pgqueue_audit_pkey"},
    ),
    "BULK_PAGE_FINISHED": (
        ("retry", Selection("cancelled", exception_class="x")),
        {"pgqueue_job_finished", "pgqueue_job_keyed", "pgqueue_audit_job_once", "pgqueue_audit_pkey"},
    ),
    "BULK_PAGE_READY": (("cancel", Selection("ready")), {"pgqueue_job_ready", "pgqueue_audit_job_once"}),
    "BULK_PAGE_READY_LIMITED": (("cancel", Selection("ready")), {"pgqueue_job_limited", "pgqueue_audit_job_once"}),
    "BULK_PAGE_RUNNING": (("cancel", Selection("running")), {"pgqueue_job_running", "pgqueue_execution_pkey"}),
    "BULK_PAGE_LISTED": (
        ("retry", Selection(job_ids=tuple(range(1, 99)))),
        {"pgqueue_job_pkey", "pgqueue_audit_job_once", "pgqueue_audit_pkey"},
    ),
    "FIRST_REPEAT": (None, {"pgqueue_audit_job_entry", "pgqueue_execution_job"}),
    "WAITING_ACTS": (None, {"pgqueue_audit_next"}),
    "LOCK_ACT": (None, {"pgqueue_audit_pkey"}),
    "PRUNE_AUDITED_JOBS": (None, {"pgqueue_audit_job_pkey", "pgqueue_job_pkey"}),
}


@pytest.mark.parametrize("kind", ["filter", "filter of an error", "list"])
def test_act_revives_the_latest_job_of_a_key(engine, monkeypatch, kind):
    """Its batches go from the oldest to the latest, and the first one of them must not take the key."""
    monkeypatch.setattr(bulk_acts, "BATCH", 2)
    keyed, others = helpers.make_jobs(engine, 5), helpers.make_jobs(engine, 3)
    for job in helpers.claim_all(engine):
        completions.fail(engine, [helpers.failed(job.key, None)[0]._replace(exception_class="x")])
    engine.execute("UPDATE pgqueue_job SET unique_key = 'one', finished_at = finished_at + id * interval '1 ms'")
    engine.execute("UPDATE pgqueue_job SET unique_key = NULL WHERE id = ANY (%s)", [others])
    engine.execute("UPDATE pgqueue_job SET finished_at = finished_at - interval '1 min'")
    selection = {
        "filter": Selection("dead"),
        "filter of an error": Selection("dead", exception_class="x"),
        "list": Selection(job_ids=(*keyed, *others)),
    }[kind]
    assert preview(engine, "retry", selection).chosen == 4
    audit_id = request(engine, "retry", selection)
    finish(engine)
    assert [helpers.state_of(engine, job) for job in keyed] == ["dead"] * 4 + ["ready"]
    assert [helpers.state_of(engine, job) for job in others] == ["ready"] * 3
    row = helpers.rows_of(engine, "pgqueue_audit")[audit_id]
    assert (row["job_count"], row["left_count"]) == (4, 4)


def test_act_other_than_a_retry_takes_all_jobs_of_a_key(engine):
    jobs = helpers.make_jobs(engine, 3)
    for job in helpers.claim_all(engine):
        completions.fail(engine, helpers.failed(job.key, None))
    engine.execute("UPDATE pgqueue_job SET unique_key = 'one', finished_at = finished_at - interval '1 min'")
    assert preview(engine, "delete", Selection("dead")).chosen == 3
    assert preview(engine, "delete", Selection(job_ids=tuple(jobs))).chosen == 3


def test_plans_of_bulk_acts_read_only_their_page(engine, monkeypatch):
    for statement in FILL:
        engine.execute(statement)
    given: dict[str, Any] = {}
    monkeypatch.setattr(bulk_selection, "execute", lambda on, statement, params: given.update(params) or [])
    monkeypatch.setattr(bulk_acts, "PREVIEWED", ASKED - 1)
    for name, (previewed, indexes) in PLANS.items():
        given.clear()
        given.update({"audit_id": 1, "limit": ASKED, "began_at": "2026-01-01Z", "after_id": 0, "skipped_ids": []})
        if previewed is not None:
            preview(engine, *previewed)
        plain = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in given.items()}
        found = list(nodes(explain(engine, name, plain, "generic")))
        assert not [node for node in found if node["Node Type"] == "Seq Scan"], name
        assert indexes <= {node.get("Index Name") for node in found}, name
        read = {node.get("Index Name", node["Node Type"]): rows_read(node) for node in found}
        assert max(read.values()) <= 4 * ASKED, (name, read)


def test_plan_of_preview_with_planner_defaults_reads_no_table_of_attempts(engine, monkeypatch):
    """A preview runs on the application's connection, which has the planner's default settings, and reads many rows."""
    for statement in FILL:
        engine.execute(statement)
    for setting in ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"):
        engine.execute(f"SET {setting} = on")
    given: dict[str, Any] = {}
    monkeypatch.setattr(bulk_selection, "execute", lambda on, statement, params: given.update(params) or [])
    for name, selection in (
        ("BULK_PAGE_READY", Selection("ready")),
        ("BULK_PAGE_LISTED", Selection(job_ids=tuple(range(1, 1000)))),
        ("BULK_PAGE_DEAD", DEAD),
    ):
        given.clear()
        preview(engine, "retry" if selection is DEAD else "cancel", selection)
        plain = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in given.items()}
        found = list(nodes(explain(engine, name, plain, "custom")))
        scanned = {node.get("Relation Name") for node in found if "Seq Scan" in node["Node Type"]}
        assert not scanned & {"pgqueue_execution", "pgqueue_audit_job"}, name
