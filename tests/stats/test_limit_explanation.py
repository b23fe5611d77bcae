"""`why()` names the reason why the limit of a job does not admit it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import MappingProxyType

import pytest
from django.db import connection
from django.utils import timezone

from django_pgqueue import Breaker, Limit
from django_pgqueue.lifecycle import completions, limit_overrides, pauses
from django_pgqueue.models import OpenBreaker
from django_pgqueue.states import Pausable
from django_pgqueue.stats import Count, Reason
from django_pgqueue.tasks import registry
from tests import helpers
from tests.stats.limited_jobs import LIMITS, add, claim, die, throttle
from tests.stats.test_explanation import assert_why

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def live_worker(monkeypatch: pytest.MonkeyPatch, add_worker: Callable[..., int]) -> None:
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))
    add_worker(concurrency=10)


def test_why_without_free_slot_names_the_running_jobs():
    first, second, third, fourth = add("two:a", 4)
    claim("two:a")
    words = f"a slot of its limit key two:a: 2 of 2 are in use (jobs {first}, {second})."
    assert_why(third, Reason.LIMIT_SLOTS, words, limit_key="two:a", running_job_ids=(first, second), ahead=Count(0))
    assert_why(fourth, Reason.LIMIT_SLOTS, "; 1 due job of its limit key is claimed before it.", ahead=Count(1))


def test_why_with_many_running_jobs_names_the_first():
    running = add("heavy", 7)
    [heavy] = add("heavy", limit_weight=4)
    for _ in running:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM pgqueue_limit_state")
        claim("heavy", 1)
    words = f"7 of 10 are in use (jobs {', '.join(map(str, running[:5]))}, …), and it takes 4."
    assert_why(heavy, Reason.LIMIT_SLOTS, words, running_job_ids=tuple(running[:5]))


def test_why_without_token_tells_when_it_comes():
    *_, third, fourth = add("rate:a", 4)
    claim("rate:a")
    found = assert_why(third, Reason.LIMIT_RATE, "The rate 1/m of its limit key rate:a does not admit it before")
    assert found.admitted_at is not None
    assert abs(found.admitted_at - timezone.now() - timedelta(seconds=60)) < timedelta(seconds=5)
    assert_why(fourth, Reason.LIMIT_RATE, "; 1 due job of its limit key is claimed before it.")


def test_why_of_held_key_tells_when_the_hold_ends():
    _, second = add("two:a", 2)
    throttle(claim("two:a", 1)[0], 600.0)
    found = assert_why(second, Reason.KEY_HELD, "Its limit key two:a is held until", "because a task raised Throttled.")
    assert found.admitted_at is not None
    assert abs(found.admitted_at - timezone.now() - timedelta(seconds=600)) < timedelta(seconds=5)


def test_why_of_ordered_key_names_the_job_that_comes_first():
    first, second, third = add("one:a", 3)
    assert_why(third, Reason.KEY_ORDER, f"Job {first} of the same ordered key one:a", "and it is due.", ahead=Count(2))
    [job] = claim("one:a")
    assert_why(second, Reason.KEY_ORDER, "and it is running.", blocking_job_id=first, ahead=Count(1))
    completions.fail(connection, helpers.failed(job.key, 500.0))
    assert_why(second, Reason.KEY_ORDER, "and it is due at", blocking_job_id=first)


def test_why_behind_dead_job_of_ordered_key_says_what_to_do():
    first, second = add("block:a", 2)
    die(claim("block:a")[0])
    assert_why(
        second, Reason.BLOCKED_BY_DEAD, f"Job {first}", "retry, acknowledge or delete it.", blocking_job_id=first
    )


@pytest.mark.parametrize("limit_key", ["two", "two:a"])
def test_why_of_paused_key_names_the_operator(limit_key):
    [job_id] = add("two:a")
    pauses.pause(connection, Pausable.LIMIT, limit_key, paused_by="anna", reason="a wrong import")
    words = f"An operator has paused the limit {limit_key}: a wrong import (by anna, since"
    found = assert_why(job_id, Reason.LIMIT_PAUSED, words)
    assert found.pause is not None and found.pause.kind is Pausable.LIMIT


def test_why_names_the_values_that_an_operator_has_set():
    *_, third = add("two:a", 3)
    claim("two:a")
    limit_overrides.override(connection, "two", {"concurrency": 1})
    assert_why(third, Reason.LIMIT_SLOTS, "2 of 1 are in use")


def test_why_while_a_breaker_is_open_counts_one_slot(monkeypatch):
    limit = Limit("api", key="{key}", concurrency=5, breaker=Breaker())
    monkeypatch.setattr(registry, "_limits", MappingProxyType({**LIMITS, "api": limit}))
    probe, waiting = add("api:a", 2)
    claim("api:a", 1)
    OpenBreaker.objects.create(limit_key="api:a", after_execution_id=0)
    words = (f"1 of 1 are in use (job {probe})", "Its circuit breaker is open, so one job at a time probes the key.")
    assert_why(waiting, Reason.LIMIT_SLOTS, *words, "The breaker has been open since 20")


def test_why_of_a_failed_probe_names_the_first_opening(monkeypatch):
    limit = Limit("api", key="{key}", concurrency=5, breaker=Breaker())
    monkeypatch.setattr(registry, "_limits", MappingProxyType({**LIMITS, "api": limit}))
    [job_id] = add("api:a")
    OpenBreaker.objects.create(limit_key="api:a", after_execution_id=0, probes_failed=1)
    pauses.pause(connection, Pausable.LIMIT, "api:a", paused_by="circuit breaker", reason="the probe failed")
    assert_why(job_id, Reason.LIMIT_PAUSED, "The breaker has been open since 20", "1 probe has failed since then.")


def test_why_of_key_that_a_breaker_has_paused_names_no_operator():
    [job_id] = add("two:a")
    pauses.pause(connection, Pausable.LIMIT, "two:a", paused_by="circuit breaker", reason="9 of 9 attempts failed")
    words = "A circuit breaker has paused the limit two:a: 9 of 9 attempts failed (since"
    assert_why(job_id, Reason.LIMIT_PAUSED, words)


def test_why_of_undeclared_limit_suggests_a_similar_name():
    assert_why(add("twoo:a")[0], Reason.LIMIT_UNDECLARED, "its limit twoo (did you mean two?), so")
    found = assert_why(add("imports")[0], Reason.LIMIT_UNDECLARED, "declare the limit, or deploy")
    assert "did you mean" not in found.sentence


def test_why_of_admitted_job_counts_the_jobs_of_its_key():
    first, *_, third = add("two:a", 3)
    add("two:b", 5)
    helpers.make_jobs(connection, 4)
    assert_why(first, Reason.NEXT, ahead=Count(0))
    words = "limit keys take turns, and 2 due jobs of its limit key are claimed before it."
    assert_why(third, Reason.IN_LINE, words, ahead=Count(2))


def test_why_of_admitted_job_without_free_worker_names_the_tasks():
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_worker SET concurrency = 1")
        cursor.execute("SELECT id FROM pgqueue_worker")
        [worker_id] = cursor.fetchone()
    helpers.make_job(connection)
    helpers.claim_one(connection, worker_id=worker_id)
    assert_why(add("two:a")[0], Reason.SLOTS_BUSY, "The only slot")


def test_why_of_key_that_is_not_printable_is_one_line():
    assert_why(add("twoo:a\nb")[0], Reason.LIMIT_UNDECLARED)
    [_, second] = add("block:a\nb", 2)
    die(claim("block:a\nb")[0])
    found = assert_why(second, Reason.BLOCKED_BY_DEAD, r"'block:a\nb'")
    assert "\n" not in found.sentence
