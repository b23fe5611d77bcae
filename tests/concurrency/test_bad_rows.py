"""Tests that a row which a statement cannot write does not stop the statement from writing the other rows."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest
from psycopg.errors import LockNotAvailable, QueryCanceled

from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import (
    claims,
    completions,
    expiry,
    leases,
    operator,
    pruning,
    refused_rows,
    rescues,
    stranded,
    workers,
)
from django_pgqueue.lifecycle.types import Lane
from django_pgqueue.states import State
from django_pgqueue.worker.completion import writer
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.maintenance import firing
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.maintenance.pruner import Pruner
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers

REFUSALS = ("P0001", "54000", "42501")


@pytest.fixture
def maintenance(committing):
    link = Link("default", "maintenance")
    yield Maintenance(link)
    link.close()


def states(engine, claimed):
    return [helpers.state_of(engine, job.job_id) for job in claimed]


def claim_many(engine, count=20, **changes):
    helpers.make_jobs(engine, count, **changes)
    return helpers.claim_all(engine)


@pytest.mark.promise("bad-row-releases")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_release_trigger_refuses_one_others_are_ready(engine, sqlstate, caplog):
    writer.refusals._logged_at = float("-inf")
    claimed = claim_many(engine)
    bad, *others = claimed
    with helpers.users_trigger(engine, f"NEW.id = {bad.job_id}", sqlstate):
        results = release_executions(engine, claimed)
    assert set(results) == {job.execution_id for job in others}
    assert set(states(engine, others)) == {"ready"}
    assert states(engine, [bad]) == ["running"]
    assert "not this one" in caplog.text
    assert release_executions(engine, [bad])[bad.execution_id].state is State.READY


@pytest.mark.promise("bad-row-releases", "defect-bad-row-blocks-lost-jobs")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_rescue_trigger_refuses_one_others_are_ready(engine, sqlstate):
    claimed = claim_many(engine)
    helpers.end_lease(engine)
    bad, *others = claimed
    refused = []
    with helpers.users_trigger(engine, f"NEW.id = {bad.job_id}", sqlstate):
        rescued = rescues.rescue(
            engine,
            lambda execution: 0.0,
            error="lost",
            on_refused=lambda execution, error: refused.append(execution.execution_id),
        )
        rescued_again = rescues.rescue(engine, lambda execution: 0.0, error="lost", skipped_ids=refused)
    assert len(rescued) == 19 and rescued_again == []
    assert set(states(engine, others)) == {"ready"}
    assert refused == [bad.execution_id]
    assert len(rescues.rescue(engine, lambda execution: 0.0, error="lost")) == 1


def test_rescue_next_attempt_refused_job_is_dead(engine):
    [claimed] = claim_many(engine, 1)
    helpers.end_lease(engine)
    with helpers.users_trigger(engine, "NEW.state = 'ready'"):
        assert rescues.rescue(engine, lambda execution: 0.0, error="lost") == []
        assert states(engine, [claimed]) == ["running"], "nothing shows that only this row is refused"
        [(_, result)] = rescues.rescue(
            engine, lambda execution: 0.0, error="lost", on_refused=lambda execution, error: True
        )
    assert result.state is State.DEAD
    assert "could not be stored" in helpers.execution_row(engine, claimed.execution_id)["error"]


@pytest.mark.promise("bad-row-releases")
def test_maintenance_many_rows_refused_rescues_newer_job(engine, maintenance):
    """Rescue picks the oldest hundred executions.

    It must not pick the same refused executions each time, because it would never reach the newer ones.
    """
    claimed = claim_many(engine, 120)
    helpers.end_lease(engine)
    with helpers.users_trigger(engine, f"NEW.id <> {claimed[-1].job_id}"):
        for _ in range(2):
            helpers.rescue_by(maintenance)
    assert states(engine, claimed[-1:]) == ["ready"]


@pytest.mark.promise("defect-bad-row-blocks-lost-jobs")
@pytest.mark.parametrize("act", ["release", "fail", "rescue"])
def test_return_to_ready_key_taken_clears_unique_key(engine, act):
    """A release, a failure and a rescue treat `unique_ready_only = false` as true.

    No version of the package writes `unique_ready_only = false`, so the test sets it by SQL.
    """
    with helpers.without_row_checks(engine):
        helpers.enqueue_unique(engine, "k", ready_only=True)
        helpers.make_jobs(engine, 3)
        engine.execute("UPDATE pgqueue_job SET unique_ready_only = false WHERE unique_key IS NOT NULL")
        claimed = helpers.claim_all(engine)
        helpers.enqueue_unique(engine, "k", ready_only=True)
        if act == "release":
            release_executions(engine, claimed)
        elif act == "fail":
            completions.fail(engine, [row for job in claimed for row in helpers.failed(job.key)])
        else:
            helpers.end_lease(engine)
            helpers.rescue(engine)
        assert states(engine, claimed) == ["ready"] * 4
        assert helpers.job_row(engine, claimed[0].job_id)["unique_key"] is None


@pytest.mark.parametrize("act", ["fail", "rescue"])
def test_crash_count_at_limit_stays_at_limit(engine, act):
    claimed = claim_many(engine, 3)
    engine.execute("UPDATE pgqueue_job SET crashes = 32767 WHERE id = %s", [claimed[0].job_id])
    engine.execute("UPDATE pgqueue_execution SET started_at = claimed_at")
    if act == "fail":
        completions.fail(engine, [row for job in claimed for row in helpers.failed(job.key, outcome="crashed")])
    else:
        helpers.end_lease(engine)
        helpers.rescue(engine)
    assert states(engine, claimed) == ["ready"] * 3
    assert [helpers.job_row(engine, job.job_id)["crashes"] for job in claimed] == [32767, 1, 1]


@pytest.mark.promise("bad-row-infinite-times")
@pytest.mark.parametrize("until", ["infinity", "-infinity", "294276-01-01", "4713-01-01 BC"])
def test_scan_lanes_infinite_pause_finds_other_queues(engine, until):
    with helpers.without_row_checks(engine):
        helpers.make_job(engine, queue_name="paused")
        helpers.make_job(engine)
        engine.execute("INSERT INTO pgqueue_pause (kind, name, paused_until) VALUES ('queue', 'paused', %s)", [until])
        due_in = claims.scan_lanes(engine).due_in
        assert due_in[Lane("default", 0)] <= 0
        ended = until in ("-infinity", "4713-01-01 BC")
        assert (due_in[Lane("paused", 0)] <= 0) is ended


@pytest.mark.parametrize("column", ["expires_at", "unknown_since"])
def test_claim_infinite_time_is_treated_as_never(engine, column):
    with helpers.without_row_checks(engine):
        helpers.make_jobs(engine, 2)
        engine.execute(f"UPDATE pgqueue_job SET {column} = 'infinity' WHERE id = 1")
        claimed = helpers.claim_all(engine)
        assert [job.job_id for job in claimed] == [1, 2]
        assert claimed[0].start_by is None and claimed[0].unknown_seconds is None


def test_divided_lost_connection_is_raised(engine, second):
    pid = engine.info.backend_pid
    with pytest.raises(psycopg.OperationalError):
        refused_rows.divided(
            engine,
            [1, 2],
            lambda rows: second.execute("SELECT pg_terminate_backend(%s)", [pid]) and engine.execute("SELECT 1"),
        )


@pytest.mark.promise("defect-read-only-counts-as-bad-row")
@pytest.mark.parametrize("sqlstate", ["57014", "53100", "40001", "25006", "08006", "58030"])
def test_divided_error_of_all_rows_is_raised_at_once(engine, sqlstate):
    seen = []

    def write(rows):
        seen.append(rows)
        engine.execute(f"DO $$BEGIN RAISE EXCEPTION 'all of them' USING ERRCODE = '{sqlstate}'; END$$")

    with pytest.raises(psycopg.Error):
        refused_rows.divided(engine, [1, 2, 3], write)
    assert seen == [[1, 2, 3]]


@pytest.mark.parametrize("instant", ["infinity", "-infinity", "294276-01-01", "4713-01-01 BC"])
@pytest.mark.parametrize("column", ["next_run_at", "confirmed_at"])
def test_scheduler_unreadable_instant_other_schedules_fire(engine, column, instant):
    with helpers.without_row_checks(engine):
        bad, good = helpers.make_schedule(engine, "bad"), helpers.make_schedule(engine, "good")
        engine.execute(f"UPDATE pgqueue_schedule SET {column} = %s WHERE id = %s", [instant, bad])
        scheduler = Scheduler()
        scheduler.turn(engine)
        jobs = "SELECT array_agg(schedule_id ORDER BY id) FROM pgqueue_schedulerun"
        assert good in helpers.scalar(engine, jobs)
        healed = "SELECT next_run_at - statement_timestamp() BETWEEN '0 s' AND '2 min' FROM pgqueue_schedule"
        assert helpers.scalar(engine, f"{healed} WHERE id = %s", [bad])
        scheduler.turn(engine)


@pytest.mark.promise("bad-row-schedules")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_scheduler_trigger_refuses_one_tick_others_fire(engine, sqlstate):
    bad, good = helpers.make_schedule(engine, "bad"), helpers.make_schedule(engine, "good", task_name="other")
    with helpers.users_trigger(engine, f"NEW.task_name = '{helpers.NOOP}'", sqlstate, event="INSERT"):
        Scheduler().turn(engine)
    problems = engine.execute("SELECT id, problem <> '' FROM pgqueue_schedule ORDER BY id").fetchall()
    assert problems == [(bad, True), (good, False)]


@pytest.mark.parametrize(
    "error", [LockNotAvailable("locked"), QueryCanceled("slow"), RuntimeError("no"), KeyError("zone")], ids=repr
)
def test_scheduler_one_schedule_fails_others_fire(engine, monkeypatch, error):
    bad, good = helpers.make_schedule(engine, "bad"), helpers.make_schedule(engine, "good", task_name="other")

    def look(connection, schedule, due):
        if schedule.schedule_id == bad:
            raise error
        return original(connection, schedule, due)

    original = firing._look
    monkeypatch.setattr(firing, "_look", look)
    Scheduler().turn(engine)
    assert [row["task_name"] for row in helpers.rows_of(engine, "pgqueue_job").values()] == ["other"]
    problems = engine.execute("SELECT id, problem <> '' FROM pgqueue_schedule ORDER BY id").fetchall()
    assert problems == [(bad, not isinstance(error, psycopg.Error)), (good, False)]


def old_jobs(engine, count):
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) "
        "SELECT %s, '{}', 'succeeded', '2001-01-01'::timestamptz + make_interval(secs => n) "
        "FROM generate_series(1, %s) AS n",
        [helpers.NOOP, count],
    )


@pytest.mark.promise("bad-row-expiry")
@pytest.mark.parametrize(("sqlstate", "count"), [("P0001", 2100), *((state, 70) for state in (*REFUSALS, "23503"))])
def test_prune_trigger_refuses_some_others_are_removed(engine, sqlstate, count, monkeypatch):
    """The pruner continues behind the refused jobs, even if they fill more than one batch."""
    helpers.Clock(monkeypatch, refused_rows)  # a slow machine must not end a division
    first, last = count // 4, count * 3 // 4
    refused = [job_id for job_id in range(first, last + 1) if job_id % 100]
    old_jobs(engine, count)
    trigger = f"OLD.id BETWEEN {first} AND {last} AND OLD.id % 100 <> 0"
    with helpers.users_trigger(engine, trigger, sqlstate, event="DELETE"):
        pruner = Pruner()
        pruner.prune(engine)
        left = helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job")
        assert (left, pruner.removed) == (len(refused), count - len(refused))
        refused_again: list[int] = []
        monkeypatch.setattr(pruner.refusals, "note", lambda job_id, error: refused_again.append(job_id))
        pruner.prune(engine)
        assert pruner.removed == 0
        assert refused_again == [], "the pruner does not try the refused jobs again before the marks expire"
    new_pruner = Pruner()
    new_pruner.prune(engine)
    assert new_pruner.removed == len(refused)


def test_requeue_job_claimed_after_its_snapshot_is_left_alone(engine, second, gates):
    """The snapshot of the statement does not contain the new execution, but the locked job has a new attempt number."""
    helpers.make_job(engine)
    helpers.claim_one(engine)
    engine.execute("DELETE FROM pgqueue_execution")
    with gates("REQUEUE", engine, lambda: stranded.requeue(engine, lambda job: 0.0, worker_id=1, error="")):
        second.execute("UPDATE pgqueue_job SET state = 'ready'")
        claimed = helpers.claim_one(second)
    assert helpers.state_of(engine, claimed.job_id) == "running"
    assert [row["outcome"] for row in helpers.rows_of(engine, "pgqueue_execution").values()] == [None]


def test_prune_refused_jobs_with_equal_times_round_ends(engine, monkeypatch):
    """Jobs that one statement cancels have the same `finished_at`, so the mark of the pruner does not advance."""
    monkeypatch.setattr(pruning, "PRUNE_LIMIT", 20)
    monkeypatch.setattr(pruning, "prune", partial(pruning.prune, limit=20))
    old_jobs(engine, 20)
    engine.execute("UPDATE pgqueue_job SET finished_at = '2001-01-01'")
    with helpers.users_trigger(engine, "true", event="DELETE"):
        pruner = Pruner()
        pruner.prune(engine)
    assert pruner.removed == 0


def test_prune_whole_batch_refused_removes_later_jobs(engine, monkeypatch):
    monkeypatch.setattr(pruning, "PRUNE_LIMIT", 20)
    monkeypatch.setattr(pruning, "prune", partial(pruning.prune, limit=20))
    old_jobs(engine, 60)
    with helpers.users_trigger(engine, "OLD.id BETWEEN 15 AND 45", event="DELETE"):
        pruner = Pruner()
        pruner.prune(engine)
    assert pruner.removed == 29


@pytest.mark.promise("defect-foreign-key-stops-pruning")
def test_prune_users_foreign_key_refuses_one_others_are_removed(engine):
    old_jobs(engine, 10)
    engine.execute("CREATE TABLE users_order (job_id bigint REFERENCES pgqueue_job (id))")
    try:
        engine.execute("INSERT INTO users_order SELECT id FROM pgqueue_job LIMIT 1")
        pruner = Pruner()
        pruner.prune(engine)
        assert pruner.removed == 9
    finally:
        engine.execute("DROP TABLE users_order")


@pytest.mark.promise("bad-row-expiry")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_expire_trigger_refuses_one_others_are_cancelled(engine, sqlstate, maintenance):
    job_ids = helpers.make_jobs(engine, 20, expires_seconds=-1.0)
    with helpers.users_trigger(engine, f"NEW.id = {job_ids[0]}", sqlstate):
        assert maintenance._expire() is False
        assert maintenance.unexpired.skipped_ids() == [job_ids[0]]
        assert maintenance._expire() is False
    assert [helpers.state_of(engine, job_id) for job_id in job_ids] == ["ready"] + ["cancelled"] * 19


@pytest.mark.promise("deleted-execution-job-runs-again", "defect-deleted-execution")
def test_maintenance_deleted_open_execution_job_runs_again(engine, maintenance):
    claimed = claim_many(engine, 3, max_attempts=2)
    engine.execute("DELETE FROM pgqueue_execution WHERE id = %s", [claimed[1].execution_id])
    assert maintenance._requeue() is True, "the duty must run again, because there may be another page"
    assert maintenance._requeue() is False
    assert states(engine, claimed) == ["running", "ready", "running"]
    claimed_again = helpers.claim_one(engine)
    assert (claimed_again.job_id, claimed_again.attempt) == (claimed[1].job_id, 2)
    engine.execute("DELETE FROM pgqueue_execution WHERE id = %s", [claimed_again.execution_id])
    maintenance._requeue()
    assert states(engine, claimed) == ["running", "dead", "running"], "an attempt of a lost worker must count"


def test_requeue_pages_reach_the_last_job(engine):
    claimed = claim_many(engine, 5)
    engine.execute("DELETE FROM pgqueue_execution")
    last_id, pages = 0, 0
    while last_id is not None:
        found = stranded.requeue(engine, lambda job: 0.0, worker_id=1, after_id=last_id, error="lost", limit=2)
        last_id, pages = found.last_id, pages + 1
    assert pages == 4
    assert states(engine, claimed) == ["ready"] * 5


def test_requeue_uncommitted_claim_is_left_alone(engine, second):
    helpers.make_job(engine)
    with helpers.transaction(second):
        helpers.claim_one(second)
        assert stranded.requeue(engine, lambda job: 0.0, worker_id=1, error="lost").requeued == []
        second.execute("COMMIT")
    assert stranded.requeue(engine, lambda job: 0.0, worker_id=1, error="lost").requeued == []


def test_requeue_job_claimed_since_scan_is_left_alone(engine, second, monkeypatch):
    """After the scan, a second worker requeues the job and a third worker claims it."""
    [claimed] = claim_many(engine, 1)
    engine.execute("DELETE FROM pgqueue_execution")

    def delay_for(job):
        stranded.requeue(second, lambda job: 0.0, worker_id=2, error="lost")
        helpers.claim_one(second)
        return 0.0

    assert stranded.requeue(engine, delay_for, worker_id=1, error="lost").requeued == []
    assert states(engine, [claimed]) == ["running"]
    assert len(leases.open_executions(engine, 1)) == 1


@pytest.mark.promise("bad-row-schedules")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_note_progress_trigger_refuses_one_others_are_noted(engine, sqlstate):
    claimed = claim_many(engine, 5)
    notes = Notes()
    for job in claimed:
        notes.note(job.key, Progress(1.0))
    with helpers.users_trigger(engine, f"NEW.id = {claimed[2].job_id}", sqlstate):
        assert notes.write(engine) == set()
    noted = [helpers.job_row(engine, job.job_id)["progress_done"] for job in claimed]
    assert noted == [1.0, 1.0, None, 1.0, 1.0]


@pytest.mark.promise("bad-row-operations")
@pytest.mark.parametrize("sqlstate", REFUSALS)
@pytest.mark.parametrize(
    "act",
    [operator.cancel, operator.run_now, partial(operator.set_max_attempts, max_attempts=77)],
    ids=["cancel", "run_now", "set_max_attempts"],
)
def test_operator_transition_trigger_refuses_one_others_change(engine, act, sqlstate):
    job_ids = helpers.make_jobs(engine, 5, delay_seconds=3600.0)
    with helpers.users_trigger(engine, f"NEW.id = {job_ids[2]}", sqlstate):
        assert sorted(act(engine, job_ids)) == [*job_ids[:2], *job_ids[3:]]
        with pytest.raises(psycopg.Error):
            act(engine, [job_ids[2]], alone=True)


@pytest.mark.promise("bad-row-operations")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_retry_trigger_refuses_one_others_are_ready(engine, sqlstate):
    claimed = claim_many(engine, 5, max_attempts=1)
    completions.fail(engine, [row for job in claimed for row in helpers.failed(job.key, None)])
    bad, *others = claimed
    with helpers.users_trigger(engine, f"NEW.id = {bad.job_id}", sqlstate):
        changed = operator.retry(engine, [job.job_id for job in claimed])
        assert set(changed) == {job.job_id for job in others}
        with pytest.raises(psycopg.Error):
            operator.retry(engine, [bad.job_id])
    assert states(engine, [bad]) == ["dead"]


@pytest.mark.promise("bad-row-operations")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_acknowledge_trigger_refuses_one_others_change(engine, sqlstate):
    claimed = claim_many(engine, 5, max_attempts=1)
    completions.fail(engine, [row for job in claimed for row in helpers.failed(job.key, None)])
    bad, *others = (job.job_id for job in claimed)
    with helpers.users_trigger(engine, f"NEW.id = {bad}", sqlstate):
        assert set(operator.acknowledge(engine, [bad, *others])) == {*others}
        with pytest.raises(psycopg.Error):
            operator.acknowledge(engine, [bad], alone=True)
    assert helpers.job_row(engine, bad)["acknowledged_at"] is None


def test_expire_skipped_job_does_not_fill_the_batch(engine):
    skipped, *others = helpers.make_jobs(engine, 3, expires_seconds=-1.0)
    expired = expiry.expire(engine, worker_id=1, error="late", limit=2, skipped_ids=[skipped])
    assert sorted(job_id for job_id, _ in expired) == others


@pytest.mark.promise("bad-row-heartbeats")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_extend_executions_trigger_refuses_one_others_are_extended(engine, sqlstate):
    helpers.make_jobs(engine, 3)
    claimed = helpers.claim_all(engine)
    helpers.end_lease(engine)
    refused = claimed[1]
    with helpers.users_trigger(engine, f"NEW.id = {refused.execution_id}", sqlstate, table="pgqueue_execution"):
        done = leases.extend_executions(engine, {job.key: 60.0 for job in claimed})
    assert [done[job.execution_id].status.name for job in claimed] == ["DONE", "LOCKED", "DONE"]
    assert list(helpers.rescue(engine)) == [refused.execution_id]


@pytest.mark.promise("bad-row-heartbeats")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_note_started_trigger_refuses_one_others_are_noted(engine, sqlstate):
    helpers.make_jobs(engine, 3)
    claimed = helpers.claim_all(engine, free_slots=0)
    ids = [job.execution_id for job in claimed]
    with helpers.users_trigger(engine, f"NEW.id = {ids[1]}", sqlstate, table="pgqueue_execution"):
        refused = leases.note_started(engine, [1], ids)
    assert [each.row for each in refused] == [ids[1]]
    started = [helpers.execution_row(engine, execution_id)["started_at"] is not None for execution_id in ids]
    assert started == [True, False, True]


def register_workers(engine, count):
    about = {"hostname": "here", "version": "0", "queue_names": "", "concurrency": 1}
    return [workers.register_worker(engine, pid=number, worker_id=number, **about) for number in range(1, count + 1)]


@pytest.mark.promise("bad-row-heartbeats", "bad-row-worker-records", "defect-bad-row-blocks-lost-jobs")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_extend_trigger_refuses_one_others_are_extended(engine, sqlstate):
    worker_ids = register_workers(engine, 3)
    helpers.make_jobs(engine, 3)
    claimed = [helpers.claim_one(engine, worker_id=worker_id) for worker_id in worker_ids]
    helpers.end_lease(engine)
    errors = []
    with helpers.users_trigger(engine, "NEW.id = 2", sqlstate, table="pgqueue_worker"):
        answers = leases.extend(
            engine, [*worker_ids, 4], lease_seconds=60.0, on_refused=lambda worker_id, error: errors.append(worker_id)
        )
    assert {worker_id: answer.is_extended for worker_id, answer in answers.items()} == {1: True, 2: False, 3: True}
    assert errors == [2]
    assert list(helpers.rescue(engine)) == [claimed[1].execution_id]


@pytest.mark.promise("bad-row-old-records")
def test_maintenance_pause_deletion_refused_prunes_windows(maintenance, engine):
    """A refused deletion of a pause does not stop the deletion of uniqueness windows: each is a separate duty."""
    engine.execute(
        "INSERT INTO pgqueue_pause (kind, name, paused_at, paused_until, paused_by, reason) "
        "VALUES ('queue', 'mail', '2000-01-01', '2000-01-02', '', '')"
    )
    engine.execute(
        "INSERT INTO pgqueue_uniqueness_window (job_id, task_name, unique_key, ends_at) "
        "VALUES (1, 't', 'k', '2000-01-01')"
    )
    for duty in maintenance.duties:
        duty.due_at = 0.0
    with helpers.users_trigger(engine, "OLD.kind = 'queue'", table="pgqueue_pause", event="DELETE"):
        maintenance.tick()
    assert helpers.rows_of(engine, "pgqueue_uniqueness_window") == {}
    assert len(helpers.rows_of(engine, "pgqueue_pause")) == 1
