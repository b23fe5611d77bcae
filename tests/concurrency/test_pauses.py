"""Tests of pauses: what a lane scan returns about them, and which jobs a claim skips."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from django_pgqueue import control
from django_pgqueue.db import statements
from django_pgqueue.db.notifications import CHANNEL, PAUSES_CHANGED
from django_pgqueue.lifecycle import bulk_acts, claims, completions, pauses
from django_pgqueue.lifecycle.types import Lane, Released
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming.lanes import Lanes
from tests import helpers

MAIL, OTHER = Lane("mail", 0), Lane("other", 5)


def claimable(engine):
    """Return the ids of the jobs that a worker would claim now, with a lane scan and a claim."""
    scan = claims.scan_lanes(engine)
    lanes = [lane for lane, seconds in scan.due_in.items() if seconds <= 0]
    claimed = helpers.claim_all(engine, *lanes, paused_tasks=scan.paused_tasks) if lanes else []
    completions.release(engine, [Released(job.key) for job in claimed])
    return {job.job_id for job in claimed}


@pytest.fixture
def jobs(engine):
    return {
        "mail": helpers.make_job(engine, queue_name="mail"),
        "other": helpers.make_job(engine, queue_name="other", priority=5),
        "add": helpers.make_job(engine, queue_name="other", priority=5, task_name="tests.app.tasks.add"),
    }


@pytest.mark.quick
def test_pause_queue_stops_claims_and_accepts_jobs(engine, jobs):
    pauses.pause(engine, Pausable.QUEUE, "mail")
    assert claimable(engine) == {jobs["other"], jobs["add"]}
    later = helpers.make_job(engine, queue_name="mail")
    assert claims.scan_lanes(engine).due_in[MAIL] == math.inf
    assert pauses.resume(engine, Pausable.QUEUE, "mail")
    assert claimable(engine) == {*jobs.values(), later}


def test_pause_task_skips_its_jobs_in_lane(engine, jobs):
    pauses.pause(engine, Pausable.TASK, "tests.app.tasks.add")
    assert claimable(engine) == {jobs["mail"], jobs["other"]}
    assert claims.next_in_line(engine, helpers.lanes_from_start(OTHER), paused_tasks=[helpers.NOOP]) == jobs["add"]
    pauses.resume(engine, Pausable.TASK, "tests.app.tasks.add")
    assert claimable(engine) == set(jobs.values())


def test_pause_task_with_alias_pauses_all_its_names(engine, monkeypatch):
    monkeypatch.setattr(registry, "names_of", lambda name: (name, "its.old.name"))
    pauses.pause(engine, Pausable.TASK, helpers.NOOP)
    lanes = Lanes([])
    lanes.ordered(engine, from_start=True)
    assert lanes.paused_tasks == [helpers.NOOP, "its.old.name"]


def test_pause_task_named_like_queue_leaves_queue_active(engine, jobs):
    pauses.pause(engine, Pausable.TASK, "mail")
    assert claimable(engine) == set(jobs.values())
    assert not pauses.resume(engine, Pausable.QUEUE, "mail")


@pytest.mark.parametrize("kind", [Pausable.QUEUE, Pausable.TASK])
def test_pause_with_duration_ends_at_its_time(engine, jobs, kind):
    name = "mail" if kind is Pausable.QUEUE else helpers.NOOP
    pauses.pause(engine, kind, name, for_seconds=600)
    assert jobs["mail"] not in claimable(engine)
    statements.clock.shift_seconds = 590
    assert jobs["mail"] not in claimable(engine)
    statements.clock.shift_seconds = 601
    assert jobs["mail"] in claimable(engine)
    assert not pauses.resume(engine, kind, name)


def test_scan_lanes_timed_pause_returns_seconds_to_its_end(engine, jobs):
    pauses.pause(engine, Pausable.QUEUE, "mail", for_seconds=600)
    assert 590 < claims.scan_lanes(engine).due_in[MAIL] <= 600


@pytest.mark.promise("pause-rollback")
def test_pause_uncommitted_has_no_effect_until_commit(engine, second, jobs):
    second.execute("BEGIN")
    pauses.pause(second, Pausable.QUEUE, "mail")
    assert jobs["mail"] in claimable(engine)
    second.execute("ROLLBACK")
    assert jobs["mail"] in claimable(engine)
    second.execute("BEGIN")
    pauses.pause(second, Pausable.QUEUE, "mail")
    second.execute("COMMIT")
    assert jobs["mail"] not in claimable(engine)


def test_pause_repeated_keeps_start_and_updates_reason(engine):
    pauses.pause(engine, Pausable.QUEUE, "mail", for_seconds=60, paused_by="ada", reason="the server is down")
    [(paused_at, _)] = pause_times(engine)
    statements.clock.shift_seconds = 30
    pauses.pause(engine, Pausable.QUEUE, "mail", paused_by="grace", reason="still")
    assert pause_times(engine) == [(paused_at, None)]
    assert helpers.scalar(engine, "SELECT paused_by || reason FROM pgqueue_pause") == "gracestill"


def test_pause_after_its_end_gets_new_start(engine):
    pauses.pause(engine, Pausable.QUEUE, "mail", for_seconds=60)
    [(paused_at, _)] = pause_times(engine)
    statements.clock.shift_seconds = 90
    pauses.pause(engine, Pausable.QUEUE, "mail")
    [(paused_again_at, _)] = pause_times(engine)
    assert paused_again_at > paused_at


def test_prune_pauses_removes_only_those_ended_long_ago(engine):
    for name, for_seconds in (("over", 60), ("just", 250), ("later", 450), ("mail", None)):
        pauses.pause(engine, Pausable.QUEUE, name, for_seconds=for_seconds)
    statements.clock.shift_seconds = 300
    pauses.prune_pauses(engine, 200)
    assert helpers.scalar(engine, "SELECT string_agg(name, ' ' ORDER BY name) FROM pgqueue_pause") == "just later mail"


def pause_times(engine):
    return engine.execute("SELECT paused_at, paused_until FROM pgqueue_pause").fetchall()


def test_pause_and_resume_notify_workers(engine, second):
    second.execute(f"LISTEN {CHANNEL}")
    control.pause("mail")
    assert control.resume("mail")
    assert [notice.payload for notice in second.notifies(timeout=10, stop_after=2)] == [PAUSES_CHANGED] * 2


def test_pause_by_two_operators_at_once_keeps_one_row(engine, second, watcher):
    """The second operator waits for the transaction of the first.

    The wait is short, because neither transaction does anything else.
    """
    second.execute("BEGIN")
    pauses.pause(second, Pausable.QUEUE, "mail")
    pausing = helpers.Background(lambda: pauses.pause(engine, Pausable.QUEUE, "mail", reason="later"))
    helpers.wait_for_lock(watcher, engine.info.backend_pid)
    second.execute("COMMIT")
    pausing.result()
    assert helpers.scalar(second, "SELECT count(*) || reason FROM pgqueue_pause GROUP BY reason") == "1later"


def test_drain_claim_by_earlier_scan_is_waited_for(engine, jobs, monkeypatch):
    running_jobs, claimed = control.running("mail"), []

    def count_then_claim():
        found = running_jobs.count()
        claimed.extend([] if claimed else helpers.claim_all(engine, MAIL, limit=1))
        return found

    monkeypatch.setattr(
        control.queues, "running_behind", lambda *args, **options: SimpleNamespace(count=count_then_claim)
    )
    assert control.drain("mail", timeout=1.5) == len(claimed) == 1


def test_clear_job_claimed_meanwhile_is_not_asked_to_stop(engine, monkeypatch):
    job_ids = helpers.make_jobs(engine, 2, queue_name="mail")
    find = bulk_acts.waiting_jobs

    def find_then_claim(*args, **options):
        for batch in find(*args, **options):
            helpers.claim_all(engine, MAIL, limit=1)
            yield batch

    monkeypatch.setattr(bulk_acts, "waiting_jobs", find_then_claim)
    assert control.clear("mail") == 1
    rows = helpers.rows_of(engine, "pgqueue_job")
    assert [rows[job_id]["state"] for job_id in job_ids] == ["running", "cancelled"]
    assert rows[job_ids[0]]["cancel_requested_at"] is None


def test_clear_queue_cancels_only_its_ready_jobs(engine, second):
    ids = helpers.make_jobs(engine, 3, queue_name="mail")
    later = helpers.make_job(engine, queue_name="mail", delay_seconds=3600.0)
    other = helpers.make_job(engine)
    [running] = helpers.claim_all(engine, MAIL, limit=1)
    assert control.clear("mail") == 3
    assert {helpers.state_of(engine, job_id) for job_id in (*ids[1:], later)} == {"cancelled"}
    assert helpers.state_of(engine, running.job_id) == "running"
    assert helpers.state_of(engine, other) == "ready"
