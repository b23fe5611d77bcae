"""Tests of `enqueue_many()` with unique keys, mainly of two calls with the same keys at once.

Each call inserts the keys in the same order. Otherwise each call could wait for a key of the other: a deadlock.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
from django.db import connections, transaction

from django_pgqueue import enqueue_many
from django_pgqueue.models import Job
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
