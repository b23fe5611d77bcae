"""Due jobs that their limit does not admit are counted as held, and jobs that workers release as unknown."""

from __future__ import annotations

from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_pgqueue import control, stats
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import pauses
from django_pgqueue.models import Job
from django_pgqueue.states import Pausable
from django_pgqueue.stats import Count
from django_pgqueue.stats.fleet import Pauses
from django_pgqueue.stats.limits import ready
from django_pgqueue.tasks import registry
from tests import helpers
from tests.app import tasks
from tests.stats.limited_jobs import LIMITS, add, claim, die, throttle

pytestmark = pytest.mark.django_db
OTHER_TASK = "tests.app.tasks.slow"


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def counts(name: str = "default") -> tuple[int, int]:
    """Return how many jobs of a queue are due and held. Both figures are exact."""
    [queue] = [each for each in stats.queues() if each.name == name]
    assert queue.due.is_exact and queue.held.is_exact
    return queue.due.value, queue.held.value


def by_task() -> dict[str, tuple[int, int]]:
    return {each.name: (each.due.value, each.held.value) for each in stats.tasks() if each.due.value or each.held.value}


def ages() -> tuple[float | None, float | None]:
    """Return the age of the oldest due job of the queue, and of all queues."""
    [queue] = [each for each in stats.queues() if each.name == "default"]
    return queue.oldest_due_seconds, stats.overview().oldest_due_seconds


# ------------------------------------------------------------------ what a limit admits


@pytest.mark.parametrize(
    ("key", "weights", "running", "expected"),
    [
        ("two:a", [1] * 5, 0, (2, 3)),
        ("two:a", [1] * 5, 1, (1, 4)),
        ("two:a", [1] * 5, 2, (0, 5)),
        ("two:a", [9, 1, 1], 0, (1, 2)),
        ("rate:a", [1] * 5, 0, (2, 3)),
        ("rate:a", [1] * 5, 1, (1, 4)),
        ("rate:a", [1] * 5, 2, (0, 5)),
        ("fair:a", [1] * 5, 2, (5, 0)),
        ("one:a", [1] * 5, 0, (1, 4)),
        ("one:a", [1] * 5, 1, (0, 5)),
        ("heavy", [2, 2, 2, 1], 0, (2, 2)),
        ("heavy", [1, 3, 2, 1], 0, (2, 2)),
        ("heavy", [9, 1], 0, (1, 1)),
        ("heavy", [5, 1], 2, (0, 2)),
        ("nobody:a", [1] * 3, 0, (0, 3)),
    ],
)
def test_due_jobs_are_those_that_claims_take(key, weights, running, expected):
    """The others are held. The first jobs of the key may run already."""
    for weight in [1] * running + weights:
        add(key, limit_weight=weight)
    if running:
        assert len(claim(key, running)) == running
    assert counts() == expected
    if key in LIMITS or key.partition(":")[0] in LIMITS:
        assert len(claim(key)) == expected[0]


def test_held_jobs_of_several_keys_are_added_up():
    for key in ("two:a", "two:b", "fair:a", "one:a"):
        add(key, 4)
    add("two:c")
    assert counts() == (2 + 2 + 4 + 1 + 1, 2 + 2 + 3)


def test_key_admits_its_jobs_of_all_lanes_together():
    add("two:a", 2, priority=1)
    add("two:a", 3)
    add("two:a", 4, queue_name="mail")
    assert (counts(), counts("mail")) == ((2, 3), (0, 4))
    lanes = {(lane.queue_name, lane.priority): (lane.due, lane.held) for lane in stats.lanes()}
    assert lanes == {
        ("default", 1): (Count(2), Count(0)),
        ("default", 0): (Count(0), Count(3)),
        ("mail", 0): (Count(0), Count(4)),
    }


def test_tasks_of_one_key_share_what_it_admits():
    add("two:a", 1, delay=-30.0, task_name=OTHER_TASK)
    add("two:a", 3, delay=-20.0)
    add("two:a", 3, delay=-10.0, task_name=OTHER_TASK)
    assert by_task() == {helpers.NOOP: (1, 2), OTHER_TASK: (1, 3)}


def test_order_of_many_jobs_of_two_tasks_is_not_exact(monkeypatch):
    monkeypatch.setattr(ready, "PLACES_TOTAL", 1)
    add("heavy", 12)
    add("heavy", 12, task_name=OTHER_TASK)
    [queue] = [each for each in stats.queues() if each.name == "default"]
    assert (queue.due, queue.held) == (Count(5), Count(19))
    monkeypatch.setitem(LIMITS, "heavy", Limit("heavy", concurrency=13))
    [queue] = [each for each in stats.queues() if each.name == "default"]
    assert (queue.due, queue.held) == (Count(13, is_exact=False), Count(11, is_exact=False))


# ------------------------------------------------------------------ what keeps a key back


def test_jobs_of_a_held_key_are_held():
    add("rate:a", 2)
    throttle(claim("rate:a")[0], 60.0)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_limit_state SET full_at = now() WHERE held_until IS NULL")
    add("rate:a")
    assert counts() == (0, 1)


@pytest.mark.parametrize("name", ["two", "two:a"])
def test_jobs_of_a_paused_key_are_paused_and_not_held(name):
    add("two:a", 2)
    add("fair:a")
    pauses.pause(connection, Pausable.LIMIT, name)
    assert counts() == (1, 0)
    overview = stats.overview()
    assert (overview.paused, overview.held) == (stats.Count(2), stats.Count(0))
    [lane] = stats.lanes()
    assert (lane.due, lane.held) == (stats.Count(1), stats.Count(2))


def test_jobs_behind_a_paused_key_are_marked_if_not_all_are_counted(monkeypatch):
    monkeypatch.setattr(ready, "ROWS_LIMIT", 2)
    add("two:a", 3)
    pauses.pause(connection, Pausable.LIMIT, "two:a")
    assert str(stats.overview().paused) == "2+"


def test_jobs_behind_a_dead_one_are_held():
    add("block:a", 3)
    die(claim("block:a")[0])
    assert counts() == (0, 2)


def test_jobs_behind_an_ordered_job_that_is_due_later_are_held():
    add("one:a", delay=60.0)
    add("one:a", 2)
    assert counts() == (0, 2)


def test_first_job_of_an_ordered_key_is_due_in_its_lane_and_task():
    add("one:a", queue_name="mail", task_name=OTHER_TASK)
    add("one:a", 2)
    assert (counts(), counts("mail")) == ((0, 2), (1, 0))
    assert by_task() == {helpers.NOOP: (0, 2), OTHER_TASK: (1, 0)}


def test_paused_jobs_take_no_slot_of_their_key():
    add("two:a", 3, task_name=OTHER_TASK, delay=-60.0)
    add("two:a", 3)
    pauses.pause(connection, Pausable.TASK, OTHER_TASK)
    [queue] = [each for each in stats.queues() if each.name == "default"]
    assert (queue.due, queue.held, queue.paused) == (Count(2), Count(1), Count(3))


def test_override_changes_how_many_jobs_are_held():
    add("two:a", 5)
    control.override_limit("two:a", concurrency=4)
    assert counts() == (4, 1)


def test_jobs_of_chunks_are_due(monkeypatch):
    """A chunk is no limit, unless no task of this process has it."""
    add("+tests.chunk", 3)
    assert counts() == (0, 3)
    monkeypatch.setattr(registry, "_chunk_keys", MappingProxyType({"+tests.chunk": tasks.add}))
    assert counts() == (3, 0)


def test_oldest_due_job_is_one_that_can_start():
    add("one:a", delay=-60.0)
    claim("one:a")
    add("one:a", delay=-3600.0)
    assert ages() == (None, None)
    add("two:a", 4, delay=-30.0)
    assert ages() == (pytest.approx(30, abs=10), pytest.approx(30, abs=10))
    add("block:a", delay=-90.0)
    assert ages() == (pytest.approx(90, abs=10), pytest.approx(90, abs=10))


# ------------------------------------------------------------------ bounds


@pytest.mark.promise("stats-lower-bounds")
@pytest.mark.parametrize("constant", ["KEYS_TOTAL", "ROWS_LIMIT"])
def test_keys_whose_state_is_not_read_make_figures_inexact(monkeypatch, constant):
    for key in ("two:a", "two:b", "two:c"):
        add(key, 5)
    monkeypatch.setattr(ready, constant, {"KEYS_TOTAL": 2, "ROWS_LIMIT": 10}[constant])
    [queue] = [each for each in stats.queues() if each.name == "default"]
    due = {"KEYS_TOTAL": 9, "ROWS_LIMIT": 4}[constant]
    assert (queue.due, queue.held) == (Count(due, is_exact=False), Count(6, is_exact=False))


def test_keys_are_bounded_in_all_lanes_together(monkeypatch):
    """Each lane returns at least two keys."""
    for number in range(3):
        for key in ("two:a", "two:b"):
            add(f"{key}{number}", 3, queue_name=f"queue{number}")
    monkeypatch.setattr(ready, "KEYS_TOTAL", 3)
    held = {each.name: each.held for each in stats.queues() if each.name.startswith("queue")}
    assert held == {
        "queue0": Count(2),
        "queue1": Count(1, is_exact=False),
        "queue2": Count(0, is_exact=False),
    }


def test_keys_without_due_jobs_are_no_keys_whose_state_is_read(monkeypatch):
    for number in range(4):
        add(f"two:a{number}", delay=60.0)
    add("two:b", 3)
    monkeypatch.setattr(ready, "NAMED_KEYS_TOTAL", 2)
    monkeypatch.setattr(ready, "KEYS_TOTAL", 1)
    assert counts() == (2, 1)
    assert stats.overview().scheduled == Count(4)


def test_limits_cost_no_statement_without_due_jobs(django_assert_num_queries):
    names = Pauses(connection)
    tasks.add.enqueue(1)
    with django_assert_num_queries(1):
        ready.read_ready_limited(connection, names)
    add("two:a", delay=60.0)
    with django_assert_num_queries(1):
        ready.read_ready_limited(connection, names)
    add("two:a", 3)
    with django_assert_num_queries(3):
        ready.read_ready_limited(connection, names)


# ------------------------------------------------------------------ jobs that workers release


def unknown(**changes: Any) -> None:
    """Add jobs that workers have released, because they do not know their task."""
    limit_key = changes.pop("limit_key", None)
    values = {"unknown_since": timezone.now(), "run_after": timezone.now() + timedelta(seconds=15), **changes}
    job_ids = add(limit_key, 2) if limit_key else helpers.make_jobs(connection, 2)
    Job.objects.filter(pk__in=job_ids).update(**values)


@pytest.mark.parametrize("limit_key", [None, "two:a"])
@pytest.mark.parametrize("attempt", [0, 1])
def test_jobs_that_workers_release_are_unknown(limit_key, attempt):
    unknown(limit_key=limit_key, attempt=attempt)
    for found in (*(each for each in stats.queues() if each.name == "default"), *stats.lanes(), stats.overview()):
        assert (found.unknown, found.scheduled, found.retrying) == (Count(2), Count(0), Count(0))
    [task] = [each for each in stats.tasks() if each.unknown.value]
    assert (task.name, task.unknown, task.scheduled, task.retrying) == (helpers.NOOP, Count(2), Count(0), Count(0))


def test_unknown_jobs_are_those_of_a_paused_task_too():
    """While a task is paused, the jobs of queues are counted by task."""
    unknown()
    pauses.pause(connection, Pausable.TASK, OTHER_TASK)
    assert stats.overview().unknown == Count(2)


def test_released_job_that_is_due_again_is_due():
    unknown(run_after=timezone.now())
    overview = stats.overview()
    assert (overview.unknown, overview.due) == (Count(0), Count(2))
