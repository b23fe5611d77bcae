"""Test which declarations of tasks with `chunk` are valid, and what their jobs' rows have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_pgqueue import Chunk, InvalidTask, Limit, every
from django_pgqueue.arguments.plan import new_plan
from django_pgqueue.backend import compat
from django_pgqueue.backend import task as backend_task
from django_pgqueue.declared.chunks import annotations_of_item
from django_pgqueue.models import Job, Schedule
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs

from . import tasks


def takes_chunk(chunk: Any) -> None: ...
def takes_two(chunk: Any, number: int) -> None: ...
def takes_any(*chunks: Any) -> None: ...
def takes_keyword(*, chunk: Any) -> None: ...
def takes_context(context: Any) -> None: ...


LIMIT = Limit("a", concurrency=1)
ONE = "must have one parameter"


@pytest.mark.parametrize(
    "options", [{"chunk": 1}, {"chunk": 1000, "chunk_wait": 3600}, {"chunk": 2, "chunk_wait": 0.2}]
)
def test_valid_options_are_accepted(options):
    task: Task[..., None] = Task(func=takes_chunk, **options)
    assert task.chunk_wait_seconds == options.get("chunk_wait", 0)
    assert Task(func=takes_chunk, chunk=2, chunk_wait=timedelta(minutes=1)).chunk_wait_seconds == 60.0


@pytest.mark.promise("defect-true-as-number")
@pytest.mark.parametrize(
    ("func", "options", "message"),
    [
        (takes_chunk, {"chunk": 0}, "chunk 0 must be a whole number from 1 to 1000"),
        (takes_chunk, {"chunk": 1001}, "chunk 1001 must be a whole number from 1 to 1000"),
        (takes_chunk, {"chunk": True}, "chunk True must be a whole number from 1 to 1000"),
        (takes_chunk, {"chunk": "9"}, "chunk '9' must be a whole number from 1 to 1000"),
        (takes_chunk, {"chunk": 2, "chunk_wait": -1}, "chunk_wait: "),
        (takes_chunk, {"chunk": 2, "chunk_wait": "1 s"}, "chunk_wait: "),
        (takes_chunk, {"chunk": 2, "chunk_wait": 3601}, "chunk_wait 3601 must be at most 3600 seconds"),
        (takes_chunk, {"chunk_wait": 1}, "chunk_wait needs chunk"),
        (takes_chunk, {"chunk": 2, "limit": LIMIT}, "a task with chunk cannot have a limit"),
        (takes_context, {"chunk": 2, "takes_context": True}, "a task with chunk gets no context"),
        (takes_two, {"chunk": 2}, ONE),
        (takes_any, {"chunk": 2}, ONE),
        (takes_keyword, {"chunk": 2}, ONE),
    ],
)
def test_invalid_options_are_refused(func, options, message):
    with pytest.raises(InvalidTask, match=message):
        Task(func=func, **options)


def test_using_cannot_give_a_limit_to_a_task_with_chunk(monkeypatch):
    monkeypatch.setattr(registry, "_limits", {"a": LIMIT})
    with pytest.raises(InvalidTask, match="cannot have a limit"):
        tasks.double.using(limit=LIMIT)
    with pytest.raises(TypeError, match="unexpected keyword argument 'chunk'"):
        tasks.double.using(chunk=3)


def test_task_of_the_framework_cannot_have_chunk():
    with pytest.raises((TypeError, InvalidTask, compat.InvalidTask), match="chunk"):
        backend_task(chunk=3)(takes_chunk)


def test_annotations_are_those_of_one_job():
    assert annotations_of_item({"chunk": Chunk[int], "return": list[str]}) == {"chunk": int, "return": str}
    assert annotations_of_item({"chunk": Chunk, "return": None}) == {"chunk": Any, "return": None}
    assert annotations_of_item({"a": list[int], "return": list[str]}) == {"a": list[int], "return": list[str]}
    assert new_plan(tasks.store.func, 0).positional[0][1].expected == "Reading"


def test_earlier_names_have_chunk_keys_too():
    assert {key for key in registry.chunk_keys() if "chunks." in key[:8]} == {"+chunks.renamed", "+chunks.former"}


@pytest.mark.django_db
def test_schedule_adds_a_job_for_a_chunk(monkeypatch):
    from django_pgqueue.schedules import declarations

    monkeypatch.setattr(declarations, "_declared", {})
    times = declarations.check_schedule(tasks.double, every(minutes=5, args=[7]))
    declarations.declare(tasks.double, times)
    assert run_jobs(schedules=True, until=301) >= 1
    assert Schedule.objects.get().is_limited
    assert set(Job.objects.values_list("limit_key", flat=True)) == {"+tests.chunks.tasks.double"}
    assert tasks.seen[0] == [7]
