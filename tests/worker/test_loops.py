"""Test that a coroutine job that was claimed always has an owner, whatever jobs do to the event loop."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.execution.attempt_plan import plan_of
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots import loops
from django_pgqueue.worker.slots import pool as pools
from django_pgqueue.worker.slots.inflight import Full, InFlight
from tests import helpers
from tests.app import hostile, tasks

CHECKS = loops.UNANSWERED_LIMIT + 2
"""How many checks find that a loop is blocked: the first one only asks."""


@pytest.fixture
def pool():
    """A pool with running threads and services for deadlines. It needs no database."""
    reports: list[Any] = []
    options = Options(database="default", concurrency=4)
    pool = pools.Pool(options, InFlight(4), ProcessState(8), None, reports.append, Notes(), lambda: None)
    pool.reports = reports
    pool.start()
    pool.deadlines.start()
    yield pool
    pool.stop()
    pool.deadlines.stop()
    for thread in (*pool.threads, pool.deadlines, pool.loop):
        thread.join(20)


@pytest.fixture
def run(pool):
    """Start these jobs together, and return their executions."""
    numbers = iter(range(1, 100))

    def start(*calls):
        jobs = [claimed(next(numbers), task, *args) for task, *args in calls]
        pool.in_flight.add(jobs)
        pool.submit(jobs)
        return [job.execution_id for job in jobs]

    return start


@pytest.fixture
def block(run, tmp_path):
    """Block the event loop by a job, and return the file that ends it and the execution."""

    def start(task):
        path = tmp_path / "end"
        [execution_id] = run((task, str(path)))
        helpers.wait_until(path.with_suffix(".blocked").exists)
        return path, execution_id

    return start


def claimed(number, task, *args):
    values = {"attempt": 1, "max_attempts": 5, "crashes": 0, "isolated": False, "unknown_seconds": None}
    place = {"queue_name": "default", "priority": 0, "run_after": datetime.now(UTC), "claimed_ms": 5.0}
    arguments = json.dumps({"args": args, "kwargs": {}})
    return Claimed(
        job_id=number, execution_id=100 + number, task_name=task.name, arguments=arguments, **place, **values
    )


def endings(pool, *execution_ids):
    """Wait for the reports of these executions, and return their endings."""
    helpers.wait_until(lambda: set(execution_ids) <= set(by_execution(pool)))
    found = by_execution(pool)
    return [found[execution_id].ending for execution_id in execution_ids]


def by_execution(pool):
    return {report.claimed.execution_id: report for report in pool.reports}


def check(pool, times=CHECKS):
    return [pool.loops.check() for _ in range(times)][-1]


@pytest.mark.promise("event-loop-is-replaced")
@pytest.mark.parametrize(
    "kind",
    [
        "classic",
        "raising",
        pytest.param("eager", marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")),
    ],
)
def test_loop_with_a_task_factory_runs_and_stops_coroutines(pool, run, kind):
    assert endings(pool, *run((hostile.set_task_factory, kind))) == [Ending.SUCCEEDED]
    quick = run(*[(hostile.answer, number) for number in range(3)])
    assert endings(pool, *quick) == [Ending.SUCCEEDED] * 3
    [late] = run((tasks.await_for_ever,))
    assert endings(pool, late) == [Ending.FAILED]
    assert by_execution(pool)[late].exception_class.endswith("TaskTimeout")
    [asked] = run((tasks.async_overlap, "/dev/null", 600))
    helpers.wait_until(lambda: pool.ask_to_cancel([asked]) == {asked})
    assert endings(pool, asked) == [Ending.CANCELLED]
    assert not len(pool.in_flight)
    assert pool.process_state.running() == []


def test_coroutine_cancelled_before_its_first_step_is_reported(pool, run):
    canceller, victim = run((hostile.cancel_all_others,), (hostile.answer,))
    assert endings(pool, canceller, victim) == [Ending.SUCCEEDED, Ending.FAILED]
    assert not len(pool.in_flight)


@pytest.mark.promise("event-loop-is-replaced")
def test_loop_that_cannot_start_a_job_is_replaced(pool, run):
    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("call_soon")

    broken = pool.loop
    broken.loop.call_soon = refuse
    first, second = run((hostile.answer,), (hostile.answer,))
    assert endings(pool, first) == [Ending.RELEASED]
    assert pool.loops.check() == 0.0
    assert endings(pool, second) == [Ending.SUCCEEDED]
    assert pool.loop is not broken
    del broken.loop.call_soon


def test_loop_whose_thread_has_ended_is_replaced(pool, run):
    pool.loop.stop()
    pool.loop.join(20)
    [execution_id] = run((hostile.answer,))
    pool.loops.check()
    assert endings(pool, execution_id) == [Ending.SUCCEEDED]


@pytest.mark.promise("event-loop-is-replaced")
def test_loop_blocked_by_a_left_task_is_abandoned(pool, run, block):
    """Nothing ends the task. Jobs that were claimed meanwhile run, and those that ran are released."""
    [neighbour] = run((tasks.async_overlap, "/dev/null", 600))
    path, leaving = block(hostile.leave_blocking_task)
    assert endings(pool, leaving) == [Ending.SUCCEEDED]
    blocked, waiting = pool.loop, run((hostile.answer,))
    assert check(pool, CHECKS - 1) > 0.0
    assert pool.loop is blocked
    assert check(pool, 1) == 0.0, "the new loop answers"
    assert endings(pool, neighbour, *waiting) == [Ending.RELEASED, Ending.SUCCEEDED]
    assert pool.loops.abandoned == 1
    path.touch()
    blocked.join(20)
    assert not blocked.is_alive()
    helpers.wait_until(lambda: not len(pool.in_flight))
    assert len(pool.loops.free) == 4


def test_idle_loop_blocked_by_a_left_task_is_abandoned(pool, run, block):
    path, leaving = block(hostile.leave_blocking_task)
    helpers.wait_until(lambda: not len(pool.in_flight))
    assert check(pool, CHECKS - 1) > 0.0
    assert check(pool, 1) == 0.0
    assert endings(pool, leaving, *run((hostile.answer,))) == [Ending.SUCCEEDED] * 2
    path.touch()


def test_loop_blocked_by_a_running_job_keeps_its_jobs(pool, run, block):
    """The job may only be slow. Another loop runs what waits, and the results of the blocked loop count."""
    [neighbour] = run((tasks.async_overlap, "/dev/null", 0.01))
    path, blocking = block(hostile.block_in_subtask)
    blocked, waiting = pool.loop, run((hostile.answer,))
    assert check(pool) > 0.0
    assert endings(pool, *waiting) == [Ending.SUCCEEDED]
    assert pool.loop is not blocked
    for _ in range(CHECKS):
        assert pool.loops.check() > 0.0, "the blocked loop still has a job"
        # The other loop has answered when its job has ended. It would be replaced too if it had no time to.
        assert endings(pool, *run((hostile.answer,))) == [Ending.SUCCEEDED]
    path.touch()
    assert endings(pool, neighbour, blocking) == [Ending.SUCCEEDED] * 2
    assert pool.loops.abandoned == 0
    helpers.wait_until(lambda: pool.loops.check() == 0.0)
    blocked.join(20)
    assert not blocked.is_alive()


@pytest.mark.promise("event-loop-is-replaced")
def test_loop_that_fails_at_once_is_replaced(pool, run, caplog, monkeypatch):
    """A job broke the selector. Without an end, each new start of the loop logs a traceback."""

    def refuse(timeout=None):
        raise ValueError("I/O operation on closed epoll object")

    broken = pool.loop
    assert endings(pool, *run((hostile.answer,))) == [Ending.SUCCEEDED]
    monkeypatch.setattr(broken.loop._selector, "select", refuse)
    broken.loop.call_soon_threadsafe(int)
    broken.join(20)
    assert not broken.is_alive()
    assert broken.has_failed
    assert len(caplog.records) < 5
    assert pool.loops.check() == 0.0
    assert endings(pool, *run((hostile.answer,))) == [Ending.SUCCEEDED]
    assert pool.loops.abandoned == 1


def test_loops_that_fail_again_and_again_wear_the_process_out(pool, monkeypatch):
    monkeypatch.setattr(pool, "fork_server", SimpleNamespace(is_gone=False))
    for number in range(pools.STUCK_LIMIT):
        assert (pool.is_worn, pool.loops.abandoned) == (False, number)
        pool.loop.has_failed = True
        pool.loops.check()
    assert pool.is_worn


def test_loop_stopped_by_many_subtasks_goes_on(pool, run):
    """A SystemExit comes from a job's code, so a few in a row are no sign of a broken loop."""

    def leave():
        raise SystemExit

    first = pool.loop
    for _ in range(5):
        first.loop.call_soon_threadsafe(leave)
    assert endings(pool, *run((hostile.answer,))) == [Ending.SUCCEEDED]
    assert pool.loop is first
    assert not first.has_failed


def test_loop_that_always_exits_is_replaced(pool, run, monkeypatch):
    def leave():
        raise SystemExit

    broken = pool.loop
    monkeypatch.setattr(broken.loop, "run_forever", leave)
    broken.loop.call_soon_threadsafe(broken.loop.stop)
    broken.join(20)
    assert broken.has_failed
    pool.loops.check()
    assert endings(pool, *run((hostile.answer,))) == [Ending.SUCCEEDED]


def test_coroutine_runs_in_the_slot_that_in_flight_names(pool, run, monkeypatch):
    """Another thread frees a slot while the loop starts the job."""
    freed = pool.loops.free.pop(0)
    start, started, found = pool.in_flight.start, pool.started, []

    def start_and_free(execution_id, slot, *, wait):
        claimed = start(execution_id, slot, wait=wait)
        pool.loops.free.append(freed)
        return claimed

    def record(attempt, slot):
        found.append((pool.in_flight.running[attempt.claimed.execution_id].slot, slot))
        started(attempt, slot)

    monkeypatch.setattr(pool.in_flight, "start", start_and_free)
    monkeypatch.setattr(pool, "started", record)
    assert endings(pool, *run((hostile.answer,))) == [Ending.SUCCEEDED]
    [(named, used)] = found
    assert named == used


@pytest.mark.parametrize("refusal", ["full", "released"])
def test_coroutine_that_may_not_start_leaves_its_slot_free(pool, monkeypatch, refusal):
    def refuse(*args, **options):
        if refusal == "full":
            raise Full

    pool.stop()
    pool.loop.join(20)
    monkeypatch.setattr(pool.in_flight, "start", refuse)
    queued = (1, plan_of(hostile.answer.name))
    pool.loops.waiting.append(queued)
    pool.loop._start_waiting()
    assert sorted(pool.loops.free) == [4, 5, 6, 7]
    assert list(pool.loops.waiting) == ([queued] if refusal == "full" else [])


def test_loop_that_no_job_has_used_is_not_asked(pool, run):
    assert check(pool) == 0.0
    assert pool.loop.unanswered == 0
    assert not pool.loop._asked_at


def test_loop_that_answers_is_kept(pool, run):
    first = pool.loop
    assert endings(pool, *run((hostile.answer,))) == [Ending.SUCCEEDED]
    for _ in range(CHECKS + 1):
        pool.loops.check()
        helpers.wait_until(lambda: not first._asked_at)
    assert pool.loop is first
