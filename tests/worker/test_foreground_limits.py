"""Test that jobs which run in the foreground obey limits: `pgqueue run` and `PGQUEUE["IMMEDIATE"]`."""

from __future__ import annotations

import logging
import re
from types import MappingProxyType

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings

from django_pgqueue import control
from django_pgqueue.control.limits import override_limit
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import limits as lifecycle_limits
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker import foreground_claim
from tests import helpers
from tests.app import tasks
from tests.concurrency.limits import add, claim, ids

ONE = Limit("one", key="{key}", concurrency=1)
TWO = Limit("two", concurrency=2)
RATE = Limit("rate", rate="3/h", burst=3)
ORDERED = Limit("ordered", key="{key}", ordered=True)
IMMEDIATE = override_settings(PGQUEUE={"IMMEDIATE": True})


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    limits = {limit.name: limit for limit in (ONE, TWO, RATE, ORDERED)}
    monkeypatch.setattr(registry, "_limits", MappingProxyType(limits))


def run(job_id):
    call_command("pgqueue", "run", str(job_id))


def refused(job_id):
    with pytest.raises(CommandError) as caught:
        run(job_id)
    assert caught.value.returncode == 1
    assert Job.objects.get(pk=job_id).state == "ready"
    return str(caught.value)


def states():
    return list(Job.objects.order_by("id").values_list("state", flat=True))


# ------------------------------------------------------------------ manage.py pgqueue run


def test_run_of_limited_job_succeeds_or_says_that_slots_are_in_use(engine):
    first, second = add(engine, "one:a", 2, delay=60.0)
    run(second)
    begun = helpers.state_of(engine, second), helpers.state_of(engine, first)
    assert begun == ("succeeded", "ready")
    engine.execute("UPDATE pgqueue_job SET run_after = now() WHERE id = %s", [first])
    [third] = add(engine, "one:a")
    claim(engine, ONE, "one:a")
    assert refused(third) == (
        f"Job {third} cannot start now because of its limit one:a: 1 of 1 slots are in use, and the job takes 1."
    )


def test_run_says_when_the_next_token_comes(engine):
    add(engine, "rate", 4)
    assert len(ids(claim(engine, RATE))) == 3
    assert re.search(r"limit rate: its next token of the rate 3/h will be there in (1200|119\d) s\.", refused(4))


def test_run_names_the_job_that_comes_first(engine):
    first, second = add(engine, "ordered:a", 2, order=1)
    assert f"job {first} of the same ordered key comes first, and it is ready." in refused(second)
    run(first)
    run(second)


def test_run_says_that_the_key_is_held(engine):
    first, second = add(engine, "one:a", 2, task_name="tests.app.tasks.throttle_async")
    engine.execute('UPDATE pgqueue_job SET arguments = \'{"args":[60],"kwargs":{}}\'')
    run(first)
    assert re.search(r"a task has raised Throttled, which holds the key for (60|5\d) s more\.", refused(second))
    assert re.search(r"a task has raised Throttled, which holds the key for (60|5\d) s more\.", refused(first))


def test_run_uses_overrides(engine):
    first, second, third = add(engine, "two", 3)
    override_limit("two", rate="1/h")
    run(first)
    assert re.search(r"its next token of the rate 1/h will be there in (3600|359\d) s\.", refused(second))
    override_limit("two", rate=None, concurrency=1)
    claim(engine, TWO, "two", count=1)
    assert "1 of 1 slots are in use" in refused(third)


@pytest.mark.parametrize(("by", "words"), [("ada\x1b", r"paused by ada\x1b: resume it"), ("", "is paused: resume it")])
def test_run_says_who_has_paused_the_key(engine, by, words):
    [job_id] = add(engine, "one:a")
    control.pause(limit_key="one", by=by)
    assert words in refused(job_id)
    control.resume(limit_key="one")
    run(job_id)


def test_run_of_job_with_unknown_limit_says_so(engine):
    [job_id] = add(engine, "none:a")
    assert "limit none:a: no task of this process declares the limit." in refused(job_id)


def test_run_waits_for_a_claim_of_the_key_and_gives_up(engine, monkeypatch):
    monkeypatch.setattr(foreground_claim, "LOCK_SECONDS", 0.05)
    [job_id] = add(engine, "one:a")
    with engine.transaction():
        lifecycle_limits.lock_keys(engine, ["one:a"])
        assert "another session is claiming jobs of this key: try again." in refused(job_id)
    monkeypatch.setattr(foreground_claim, "LOCK_SECONDS", 30.0)
    with engine.transaction():
        lifecycle_limits.lock_keys(engine, ["one:a"])
        tries, lock_keys = [], lifecycle_limits.lock_keys
        monkeypatch.setattr(lifecycle_limits, "lock_keys", lambda *args: tries.append(args) or lock_keys(*args))
        running = helpers.Background(lambda: (run(job_id), connection.close()))
        helpers.wait_until(lambda: len(tries) > 1)
    running.result()
    assert helpers.state_of(engine, job_id) == "succeeded"


# ------------------------------------------------------------------ immediate mode


@IMMEDIATE
def test_immediate_runs_a_limited_job_within_its_limit(db, caplog):
    with caplog.at_level(logging.INFO, logger="django_pgqueue.worker"):
        jobs = [tasks.noop.using(limit=RATE).enqueue() for _ in range(4)]
    assert [job.state for job in jobs] == ["succeeded", "succeeded", "succeeded", "ready"]
    [record] = [record for record in caplog.records if record.event == "job_not_admitted"]
    assert record.job_id == jobs[3].pk
    words = r"is left to a worker: its next token of the rate 3/h will be there in (1200|119\d) s"
    assert re.search(words, record.getMessage())


@IMMEDIATE
@pytest.mark.parametrize(("limit", "expected"), [(ONE, 1), (TWO, 2), (RATE, 3), (ORDERED, 1)])
def test_nested_immediate_jobs_of_one_key_end_at_the_limit(db, monkeypatch, limit, expected):
    """Each job enqueues the next one. The limit leaves those for a worker that it does not admit."""
    limits = {limit.name: Limit(limit.name, **{**_policy(limit), "key": None})}
    monkeypatch.setattr(registry, "_limits", MappingProxyType(limits))
    tasks.enqueue_more.using(limit=limits[limit.name]).enqueue(limit.name, 4)
    assert states() == ["succeeded"] * expected + ["ready"]


@IMMEDIATE
def test_job_left_by_immediate_runs_with_run_jobs(db):
    tasks.enqueue_more.using(limit=TWO).enqueue("two", 4)
    assert states() == ["succeeded", "succeeded", "ready"]
    with override_settings(PGQUEUE={}):
        assert run_jobs() == 3
    assert states() == ["succeeded"] * 5


def test_immediate_keeps_workers_from_the_key_until_the_commit(engine):
    others = add(engine, "two", 2)
    with IMMEDIATE, transaction.atomic():
        assert tasks.noop.using(limit=TWO).enqueue().state == "succeeded"
        assert ids(claim(engine, TWO, "two")) == []
    assert ids(claim(engine, TWO, "two")) == others
    with IMMEDIATE:
        assert tasks.noop.using(limit=TWO).enqueue().state == "ready"


def idle_limit():
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        return cursor.fetchone()[0]


def test_immediate_leaves_the_callers_transaction_its_idle_limit(db):
    """Otherwise the server would end the caller's session after 5 s between two statements."""
    with IMMEDIATE:
        assert tasks.noop.using(limit=TWO).enqueue().state == "succeeded"
    assert idle_limit() == "0"


def test_run_jobs_leaves_the_callers_transaction_its_idle_limit(db):
    tasks.noop.using(limit=TWO).enqueue()
    assert run_jobs() == 1
    assert idle_limit() == "0"


def test_immediate_leaves_job_of_key_that_another_session_claims(engine):
    with IMMEDIATE, engine.transaction():
        lifecycle_limits.lock_keys(engine, ["two"])
        assert tasks.noop.using(limit=TWO).enqueue().state == "ready"
    with IMMEDIATE:
        assert tasks.noop.using(limit=TWO).enqueue().state == "succeeded"


def test_immediate_at_repeatable_read_leaves_limited_jobs(engine):
    with IMMEDIATE, transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert tasks.noop.using(limit=TWO).enqueue().state == "ready"
        assert tasks.noop.enqueue().state == "succeeded"


def _policy(limit):
    names = ("concurrency", "rate", "burst", "ordered", "share")
    return {name: getattr(limit, name) for name in names}
