"""Tests of `enqueue_many()` with unique keys, mainly of two calls with the same keys at once.

Each call inserts the keys in the same order. Otherwise each call could wait for a key of the other: a deadlock.
"""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_pgqueue import enqueue_many
from django_pgqueue.enqueue import inserting
from django_pgqueue.models import Job
from django_pgqueue.testing import delete_all_jobs
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("committing")

KINDS = {
    "skip": {},
    "replace": {"on_conflict": "replace"},
    "period": {"unique_while": 3600},
    "period-replace": {"unique_while": 3600, "on_conflict": "replace"},
}


def key_of(number, **kwargs):
    return f"key{number:06}"


def enqueue(task, numbers):
    try:
        with transaction.atomic():
            return task.enqueue_many([((number,), {}) for number in numbers])
    finally:
        connections.close_all()


@pytest.mark.promise("enqueue-many-no-deadlock")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [400, 2500])
def test_enqueue_many_same_keys_at_once_never_deadlocks(kind, count):
    task = tasks.noop.using(unique_key=key_of, run_after=3600, **KINDS[kind])
    for round_number in range(6 if count < 1000 else 2):
        orders = [list(range(round_number * count, (round_number + 1) * count)) for _ in range(2)]
        orders[1].reverse()
        calls = [helpers.Background(partial(enqueue, task, numbers)) for numbers in orders]
        first, second = (call.result() for call in calls)
        assert first == second[::-1]
    assert Job.objects.count() == len({*Job.objects.values_list("pk", flat=True)})


def enqueue_with_options(numbers, first):
    """Enqueue the numbers. Every second call has a higher priority; the calls of two callers differ."""
    plain = tasks.noop.using(unique_key=key_of, run_after=3600)
    kinds = [plain, plain.using(priority=5)]
    try:
        with transaction.atomic():
            return enqueue_many([kinds[(number + first) % 2].s(number) for number in numbers])
    finally:
        connections.close_all()


@pytest.mark.promise("enqueue-many-no-deadlock")
@pytest.mark.parametrize("count", [400, 2500])
def test_enqueue_many_same_keys_other_options_never_deadlocks(count):
    for round_number in range(6 if count < 1000 else 2):
        numbers = list(range(round_number * count, (round_number + 1) * count))
        orders = [(numbers, 0), (numbers[::-1], 1)]
        calls = [helpers.Background(partial(enqueue_with_options, *order)) for order in orders]
        first, second = (call.result() for call in calls)
        assert first == second[::-1]


class GatedHolders:
    """Stops the first call of `enqueue_many()` after its insert, before it reads the existing jobs."""

    def __init__(self, monkeypatch) -> None:
        self.has_inserted, self.may_read = threading.Event(), threading.Event()
        self.holders = inserting.holders
        monkeypatch.setattr(inserting, "holders", self.read)

    def read(self, *args):
        if not self.has_inserted.is_set():
            self.has_inserted.set()
            assert self.may_read.wait(30)
        return self.holders(*args)


@pytest.mark.promise("enqueue-many-no-deadlock")
@pytest.mark.parametrize("kind", KINDS)
def test_enqueue_many_job_ends_meanwhile_never_deadlocks(kind, watcher, monkeypatch):
    """The first call takes key 2, because key 1 has a job. This job ends. The second call takes key 1.

    The second call waits for key 2, so the first call must not wait for key 1 while it has key 2.
    """
    task = tasks.noop.using(unique_key=key_of, run_after=3600, **KINDS[kind])
    task.enqueue(1)
    Job.objects.update(state="running")
    gate, pids = GatedHolders(monkeypatch), []

    def enqueue_second():
        connections["default"].ensure_connection()
        pids.append(connections["default"].connection.info.backend_pid)
        return enqueue(task, [1, 2])

    first = helpers.Background(partial(enqueue, task, [2, 1]))
    assert gate.has_inserted.wait(30)
    delete_all_jobs()
    second = helpers.Background(enqueue_second)
    helpers.wait_until(lambda: pids)
    helpers.wait_for_lock(watcher, pids[0])
    gate.may_read.set()
    assert first.result() == second.result()[::-1]


@pytest.mark.parametrize("kind", KINDS)
def test_enqueue_many_repeated_insert_keeps_order_of_calls(kind, monkeypatch):
    """The existing job of key 5 seems to have ended when it is read for the first time."""
    task = tasks.noop.using(unique_key=key_of, **KINDS[kind])
    existing = task.enqueue(5).pk
    Job.objects.update(state="running")
    holders, answers = inserting.holders, iter([{}])
    monkeypatch.setattr(inserting, "holders", lambda *args: next(answers, None) or holders(*args))
    ids = task.enqueue_many([((number,), {}) for number in (7, 5, 3, 9)])
    assert ids[1] == existing
    assert ids.duplicates == [1]
    arguments = dict(Job.objects.values_list("pk", "arguments"))
    assert [arguments[job_id]["args"] for job_id in ids] == [[7], [5], [3], [9]]
    assert ids[0] < ids[2] < ids[3]
    assert Job.objects.count() == 4


def test_enqueue_many_repeated_insert_keeps_found_jobs(monkeypatch):
    """The first reading finds the job of key 5, which then ends, and does not find that of key 6."""
    task = tasks.noop.using(unique_key=key_of)
    existing = [task.enqueue(number).pk for number in (5, 6)]
    holders, readings = inserting.holders, []

    def read(*args):
        readings.append(args)
        found = holders(*args)
        if len(readings) == 1:
            Job.objects.filter(pk=existing[0]).update(state="succeeded", finished_at=timezone.now())
            del found[key_of(6)]
        return found

    monkeypatch.setattr(inserting, "holders", read)
    ids = task.enqueue_many([((number,), {}) for number in (5, 6, 7)])
    assert ids[:2] == existing
    assert ids.duplicates == [0, 1]
    assert [set(keys) for *_, keys in readings] == [{key_of(5), key_of(6)}, {key_of(6)}]


def enqueue_two_tasks(numbers):
    """Enqueue the numbers for a task without a uniqueness window, and for one with a window and an earlier name."""
    windowed = tasks.add.using(unique_key=key_of, unique_while=3600, run_after=3600)
    plain = tasks.noop.using(unique_key=key_of, run_after=3600)
    try:
        with transaction.atomic():
            enqueue_many([task.s(number, b=0) for number in numbers for task in (windowed, plain)])
    finally:
        connections.close_all()


@pytest.mark.promise("enqueue-many-no-deadlock")
def test_enqueue_many_tasks_in_other_chunks_never_deadlocks():
    """The second call has more jobs, so its chunks have other limits. A chunk inserts jobs with windows last."""
    for start in range(0, 12_000, 4000):
        calls = [
            helpers.Background(partial(enqueue_two_tasks, range(first, start + 3500)))
            for first in (start + 2000, start + 1400)
        ]
        for call in calls:
            call.result()
    assert Job.objects.count() == 3 * 2 * 2100


def test_enqueue_many_unsorted_returns_ids_in_call_order():
    numbers = [*range(2500), *range(50)]
    random.Random(7).shuffle(numbers)
    ids = tasks.noop.using(unique_key=key_of).enqueue_many([((number,), {}) for number in numbers])
    arguments = dict(Job.objects.values_list("pk", "arguments"))
    assert [arguments[job_id]["args"][0] for job_id in ids] == numbers
    assert len(set(ids)) == 2500


def test_enqueue_many_of_one_batch_keeps_the_order_of_calls():
    ids = tasks.noop.using(unique_key=key_of).enqueue_many([((number,), {}) for number in (5, 3, 9, 1)])
    assert ids == sorted(ids)


def test_enqueue_many_large_arguments_returns_ids_in_call_order():
    """The large arguments divide one batch into more than one statement."""
    numbers = list(range(40))[::-1]
    calls = [((number, "x" * 50_000), {}) for number in numbers]
    ids = tasks.noop.using(unique_key=lambda number, text: key_of(number)).enqueue_many(calls)
    arguments = dict(Job.objects.values_list("pk", "arguments"))
    assert [arguments[job_id]["args"][0] for job_id in ids] == numbers


def test_enqueue_many_long_iterator_enqueues_all_calls():
    calls = (((number,), {}) for number in range(1500))
    assert len(tasks.noop.using(unique_key=key_of).enqueue_many(calls)) == 1500
