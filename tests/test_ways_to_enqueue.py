"""Every way to enqueue writes the same job: its row, its search keys, its uniqueness window, and the signal.

The tests enqueue one task by `enqueue()` and by another way, with all options that the other way accepts, and compare
what is written column by column. `Way.differs` lists the columns that differ on purpose, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_pgqueue import Batch, Limit, Step, Workflow, enqueue_many, every, signals
from django_pgqueue.ends.compensations import HEADER
from django_pgqueue.enqueue.copies import insert_copy, task_like
from django_pgqueue.lifecycle import completions, sagas, schedules, search_keys, steps
from django_pgqueue.lifecycle.steps import EndedStep
from django_pgqueue.models import Job, SearchKey, UniquenessWindow
from django_pgqueue.schedules import declarations
from django_pgqueue.schedules.run_and_resume import run_now
from django_pgqueue.states import StepKind
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.steps import store as step_store
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from tests import helpers
from tests.app import middleware, tasks

pytestmark = pytest.mark.django_db(transaction=True)

SET_BY_USING: dict[str, Any] = {"run_after": timedelta(minutes=5), "headers": {"given": 1.5}}
KEYS: dict[str, dict[str, Any]] = {
    "no key": {},
    "key": {"unique_key": "k"},
    "key while ready": {"unique_key": lambda a: f"k{a}", "unique_while": "ready"},
    "key for a period": {"unique_key": "k", "unique_while": 60},
    "replacing key": {"unique_key": "k", "on_conflict": "replace"},
    "replacing key for a period": {"unique_key": "k", "unique_while": 60, "on_conflict": "replace"},
}
LIMITS: dict[str, dict[str, Any]] = {
    "limit": {"limit": Limit("customers", key="{a}", rate="9/m", burst=5, weight=lambda a: 2, ordered=True)},
    "chunk": {"chunk": 5},
}


def bill(a: int) -> None: ...
def other() -> None: ...


bill.__module__ = other.__module__ = tasks.__name__  # where workers find tasks
OTHER: Task[..., Any] = Task(func=other)


@dataclass
class Way:
    """A way to add a job for the call `bill(4711)`.

    Args:
        add: Adds the job of a task. Its id is that of the last signal.
        accepts: The options that this way accepts, of those that `using()` sets, and "key" for a unique key.
        differs: The columns that differ on purpose, each with a function of the found and the expected value.
        encodes: Whether the codec of the project encodes the arguments.
    """

    add: Callable[[Any, Task[..., Any]], object]
    accepts: set[str] = field(default_factory=set)
    differs: dict[str, Callable[[Any, Any], bool]] = field(default_factory=dict)
    encodes: bool = True


# ------------------------------------------------------------------ the ways


def by_enqueue_on_commit(engine, task):
    with transaction.atomic():
        task.enqueue_on_commit(4711)


def by_copy(engine, task):
    original = task.enqueue(4711)
    engine.execute("UPDATE pgqueue_job SET state = 'dead', finished_at = now() WHERE id = %s", [original.pk])
    engine.execute("DELETE FROM pgqueue_uniqueness_window")
    like = task_like(task, Job.objects.get(), original.headers, "default")
    job = insert_copy(like, original, [4711], {})
    assert not job.is_duplicate
    like.send_enqueued(job)


def by_waiting_node(engine, task):
    workflow = Workflow()
    workflow.add(task.s(4711), after=[workflow.add(OTHER.s())])
    workflow.enqueue()


def by_node(engine, task):
    workflow = Workflow()
    workflow.add(task.s(4711))
    workflow.enqueue()


def by_callback(engine, task):
    with Batch(on_success=task.s(4711)):
        pass


def by_compensation(engine, task):
    [job_id] = helpers.make_jobs(engine)
    claimed = helpers.claim_one(engine)
    options, arguments = step_store.compensation_of(Step("charge", compensate=task), 4711, connection, job_id)
    step = EndedStep("charge", 1, StepKind.STEP, None, 0.1, compensation=options)
    steps.store_step(engine, claimed.key, step._replace(compensation_arguments=arguments))
    completions.fail(engine, helpers.failed(claimed.key, None))
    [added] = sagas.compensate(engine, [job_id]).added
    signals.job_enqueued.send(
        sender=added.task_name, job_id=added.job_id, database="default", queue_name=added.queue_name
    )


def define(engine, task) -> int | None:
    seen_at, _ = schedules.read_schedules(engine)
    definition = declarations.define("nightly", task, every(hours=1, args=(4711,)))
    return schedules.add_schedule(engine, definition, origin="code", next_run_at=seen_at)


def by_schedule_of_code(engine, task):
    define(engine, task)
    Scheduler().turn(engine)


def by_schedule_of_admin(engine, task):
    helpers.make_schedule(engine, task_name=task.name, arguments='{"args":[4711],"kwargs":{}}')
    Scheduler().turn(engine)


def by_run_now(engine, task):
    schedule_id = define(engine, task)
    assert schedule_id is not None
    run_now(connection, helpers.schedule_of(engine, schedule_id))


# A workflow has a batch of its own.
GRAPH = {"in_graph": lambda found, _: found is True, "batch_id": lambda found, expected: found not in (None, expected)}
WAYS = {
    "enqueue_on_commit": Way(by_enqueue_on_commit, {"run_after", "headers", "batch", "key"}),
    "enqueue_many": Way(lambda engine, task: task.enqueue_many([(4711,)]), {"run_after", "headers", "batch", "key"}),
    "enqueue_many of several tasks": Way(
        lambda engine, task: enqueue_many([OTHER.using(unique_key="o").s(), OTHER.s(), task.s(4711)]),
        {"run_after", "headers", "batch", "key"},
    ),
    # The copy is due now. It belongs to no batch, because the batch of its job may be complete.
    "copy": Way(by_copy, {"headers", "key"}),
    # `Workflow.add()` refuses unique keys and batches.
    "node": Way(by_node, {"run_after", "headers"}, GRAPH),
    "waiting node": Way(
        by_waiting_node, {"run_after", "headers"}, {**GRAPH, "state": lambda found, _: found == "waiting"}
    ),
    # `check_call()` refuses unique keys and batches.
    "callback": Way(by_callback, {"run_after", "headers"}),
    # The header names the job whose step is undone.
    "compensation": Way(
        by_compensation,
        {"run_after", "headers"},
        {"headers": lambda found, expected: found == {**expected, HEADER: found[HEADER]}},
    ),
    # `@task` does not accept what `using()` sets. The arguments of schedules have no codec: the code contains them.
    "schedule of code": Way(by_schedule_of_code, {"key"}, encodes=False),
    "schedule of the admin": Way(by_schedule_of_admin, {"key"}, encodes=False),
    "run now": Way(by_run_now, {"key"}, encodes=False),
}
CASES = [
    (way, key, limit) for way in WAYS for key in KEYS for limit in LIMITS if not KEYS[key] or "key" in WAYS[way].accepts
]


# ------------------------------------------------------------------ what is written


@contextmanager
def signals_sent() -> Iterator[list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []

    def receive(sender, signal, **arguments):
        sent.append({"sender": sender, **arguments})

    signals.job_enqueued.connect(receive)
    try:
        yield sent
    finally:
        signals.job_enqueued.disconnect(receive)


def written(engine, task: Task[..., Any], add: Callable[[Any, Task[..., Any]], object]) -> dict[str, Any]:
    """Add a job, and return what was written for it. Times are relative to the enqueue."""
    with signals_sent() as sent:
        add(engine, task)
    signal = next(each for each in reversed(sent) if each["sender"] == task.name)
    job_id = signal.pop("job_id")
    with engine.cursor() as cursor:
        row = cursor.execute("SELECT * FROM pgqueue_job WHERE id = %s", [job_id]).fetchone()
        found = dict(zip([column.name for column in cursor.description], row, strict=True))
    del found["id"]
    enqueued_at = found.pop("enqueued_at")
    for name in ("run_after", "expires_at"):
        found[name] = None if found[name] is None else found[name] - enqueued_at
    windows = UniquenessWindow.objects.filter(job_id=job_id)
    return {
        **found,
        "signal": signal,
        "search keys": dict(SearchKey.objects.filter(job_id=job_id).values_list("name", "value")),
        "windows": [(each.task_name, each.unique_key, each.ends_at - enqueued_at) for each in windows],
    }


@pytest.fixture
def make_task(monkeypatch):
    """Return a function that adds the task with these options to this process's code."""

    def make(options: dict[str, Any]) -> Task[..., Any]:
        of_row = {"queue_name": "mail", "priority": 7, "max_attempts": 3, "expires": timedelta(hours=2)}
        given: dict[str, Any] = {"search": ["a"], **of_row, **options}
        task: Task[..., Any] = Task(func=bill, **given)
        monkeypatch.setitem(registry._tasks, task.name, task)
        if task.limit is not None:
            monkeypatch.setattr(registry, "_limits", {task.limit.name: task.limit})
        return task

    monkeypatch.setattr(declarations, "definitions", lambda alias: {})
    return make


def as_written(task: Task[..., Any], way: Way, batch: Batch) -> Task[..., Any]:
    """Return the task with the options of `using()` that a way accepts."""
    given = {**SET_BY_USING, "batch": batch}
    return task.using(**{name: value for name, value in given.items() if name in way.accepts})


@pytest.mark.parametrize(("way", "key", "limit"), CASES)
def test_each_way_writes_the_same_job_as_enqueue(engine, make_task, way, key, limit):
    task = make_task({**KEYS[key], **LIMITS[limit]})
    given = as_written(task, WAYS[way], Batch(description="its own").open())
    token = middleware.tenant.set("acme")
    with override_settings(PGQUEUE={"MIDDLEWARE": ["tests.app.middleware.Tenancy"]}):
        expected = written(engine, given, lambda engine, task: task.enqueue(4711))
        engine.execute("TRUNCATE pgqueue_job, pgqueue_search_key, pgqueue_uniqueness_window")
        found = written(engine, given, WAYS[way].add)
    middleware.tenant.reset(token)
    assert expected["search keys"] == {"a": "4711"}
    assert expected["headers"]["tenant"] == "acme"
    assert (expected["limit_key"], expected["queue_name"]) != (None, "default")
    assert (bool(expected["windows"]), expected["unique_key"] is not None) == (
        "period" in key,
        bool(KEYS[key]) and "period" not in key,
    )
    for name, is_right in WAYS[way].differs.items():
        assert is_right(found.pop(name), expected.pop(name)), name
    assert found == expected


@pytest.mark.parametrize("way", WAYS)
def test_each_way_encodes_arguments_unless_code_contains_them(engine, make_task, way):
    task = make_task({})
    with override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]}):
        found = written(engine, task, WAYS[way].add)
    assert ("pgqueue_codec" in found["arguments"]) == WAYS[way].encodes
    assert found["search keys"] == {"a": "4711"}


@pytest.mark.parametrize(("key", "limit"), [(key, limit) for key in KEYS if "replacing" in key for limit in LIMITS])
@pytest.mark.parametrize("many", [False, True])
def test_replaced_job_is_written_as_a_new_one(engine, make_task, key, limit, many):
    task = make_task({**KEYS[key], **LIMITS[limit]})

    def add(engine, task):
        first = replace(task, max_attempts=1, priority=1, expires=None, headers={"old": 1}, limit=None, chunk=None)
        job = replace(first, search=[]).enqueue(1)
        search_keys.add_search_keys(connection, {job.pk: {"old": "1"}})
        assert (task.enqueue_many([(4711,)]) == [job.pk]) if many else (task.enqueue(4711) == job)

    given = task.using(**SET_BY_USING)
    expected = written(engine, given, lambda engine, task: task.enqueue(4711))
    engine.execute("TRUNCATE pgqueue_job, pgqueue_search_key, pgqueue_uniqueness_window")
    found = written(engine, given, add)
    for name in ("run_after", "expires_at"):  # they count from the replacement
        assert timedelta(0) <= found.pop(name) - expected.pop(name) < timedelta(minutes=1)
    assert found == expected


def test_schedule_stores_its_arguments_as_they_are_written(engine, make_task):
    """The arguments are not decoded and encoded again: 1.10 stays 1.10."""
    helpers.make_schedule(engine, arguments='{"args":[1.10],"kwargs":{}}')
    Scheduler().turn(engine)
    assert helpers.scalar(engine, "SELECT arguments::text FROM pgqueue_job") == '{"args":[1.10],"kwargs":{}}'
