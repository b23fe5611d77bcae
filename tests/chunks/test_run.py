"""Test how the jobs of a chunk run and end, in the test's own transaction."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import Group
from django.test import override_settings

from django_pgqueue import Chunk, ChunkJob, DuplicateJob, control, enqueue_many, middleware, signals
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs, time_travel

from . import tasks

pytestmark = pytest.mark.django_db


def states(jobs):
    by_id = {job.pk: job.state for job in Job.objects.all()}
    return [by_id[job.pk] for job in jobs]


def test_jobs_run_in_chunks_with_results_in_order():
    jobs = [tasks.double.enqueue(number) for number in range(7)]
    assert run_jobs() == 7
    assert tasks.seen == [[0, 1, 2], [3, 4, 5], [6]]
    assert [Job.objects.get(pk=job.pk).result for job in jobs] == [0, 2, 4, 6, 8, 10, 12]
    assert {job.executions.get().outcome for job in Job.objects.all()} == {"succeeded"}


def test_chunk_has_jobs_of_one_queue_and_priority():
    for number, queue_name, priority in ((1, "default", 0), (2, "mail", 0), (3, "default", 5), (4, "default", 0)):
        tasks.double.using(queue_name=queue_name, priority=priority).enqueue(number)
    run_jobs()
    assert sorted(tasks.seen) == [[1, 4], [2], [3]]
    assert tasks.seen[0] == [3]


def test_items_are_converted_as_the_annotation_says():
    reading = tasks.Reading(7, Decimal("1.5"), datetime(2026, 5, 6, tzinfo=UTC))
    job = tasks.store.enqueue(reading)
    assert job.arguments["args"] == [{"sensor": 7, "value": "1.5", "at": "2026-05-06T00:00:00+00:00"}]
    run_jobs()
    assert tasks.seen == [[reading]]
    with pytest.raises(TypeError, match="argument 'chunk' must be Reading, not int"):
        tasks.store.enqueue(3)


def test_rows_are_loaded_and_jobs_with_missing_ones_left_out():
    groups = [Group.objects.create(name=f"group {number}") for number in range(3)]
    jobs = [tasks.rename.enqueue(group) for group in groups]
    Group.objects.filter(pk=groups[1].pk).delete()
    run_jobs()
    assert states(jobs) == ["succeeded", "cancelled", "succeeded"]
    assert set(Group.objects.values_list("name", flat=True)) == {f"renamed {groups[0].pk}", f"renamed {groups[2].pk}"}


def test_single_jobs_end_as_the_function_marks_them():
    items = ["ok", "fail", "retry", "dead", "snooze", "cancel", "fine"]
    jobs = [tasks.mark.enqueue(item) for item in items]
    run_jobs()
    assert states(jobs) == ["succeeded", "ready", "ready", "dead", "ready", "cancelled", "succeeded"]
    assert [Job.objects.get(pk=job.pk).result for job in (jobs[0], jobs[-1])] == ["OK", "FINE"]
    outcomes = [Job.objects.get(pk=job.pk).executions.get().outcome for job in jobs]
    assert outcomes == ["succeeded", "failed", "failed", "failed", "snoozed", "cancelled", "succeeded"]
    assert [Job.objects.get(pk=job.pk).attempt for job in jobs] == [1, 1, 1, 1, 0, 1, 1]


def test_exception_of_the_call_fails_all_jobs_that_are_not_marked():
    limits = {"a": 1, "raise": 5, "dead": 5, "snooze": 5}
    jobs = [tasks.mark.using(max_attempts=limit).enqueue(item) for item, limit in limits.items()]
    with pytest.raises(LookupError):
        run_jobs(raising=True)
    assert states(jobs) == ["dead", "ready", "dead", "ready"]
    classes = [Job.objects.get(pk=job.pk).executions.get().exception_class for job in jobs]
    assert classes == ["builtins.LookupError", "builtins.LookupError", "django_pgqueue.exceptions.Dead", ""]


def test_retry_runs_in_another_chunk():
    job = tasks.mark.using(max_attempts=2).enqueue("retry")
    first = tasks.mark.enqueue("first")
    run_jobs()
    with time_travel(seconds=61):
        later = tasks.mark.enqueue("later")
        run_jobs()
    assert states([job, first, later]) == ["dead", "succeeded", "succeeded"]
    assert [each.executions.count() for each in (job, first, later)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("value", "message"), [([1, 2, 3], "3 results for a chunk of 2 jobs"), ({"a": 1}, "a dict for a chunk of 2 jobs")]
)
def test_wrong_results_make_all_jobs_dead(value, message):
    jobs = [tasks.wrong.enqueue(value) for _ in range(2)]
    run_jobs()
    assert states(jobs) == ["dead", "dead"]
    assert message in Job.objects.get(pk=jobs[1].pk).executions.get().error


def test_result_that_cannot_be_stored_makes_only_its_job_dead():
    jobs = [tasks.wrong.enqueue(value) for value in ([1, "x" * 5000], None)]
    with override_settings(PGQUEUE={"TASK_MODULES": [tasks.__name__], "MAX_RESULT_BYTES": 1000}):
        run_jobs()
    assert states(jobs) == ["succeeded", "dead"]


def test_job_that_does_not_fit_is_left_out():
    jobs = [tasks.double.enqueue(1), tasks.double.enqueue(2)]
    Job.objects.filter(pk=jobs[0].pk).update(arguments={"args": [1, 2], "kwargs": {}})
    run_jobs()
    assert states(jobs) == ["ready", "succeeded"]
    assert "takes one argument" in Job.objects.get(pk=jobs[0].pk).executions.get().error
    assert tasks.seen == [[2]]


def test_expired_job_is_left_out():
    jobs = [tasks.with_options.enqueue(1), tasks.with_options.enqueue(2)]
    Job.objects.filter(pk=jobs[0].pk).update(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    run_jobs()
    assert states(jobs) == ["cancelled", "succeeded"]
    assert len(tasks.seen[0]) == 1


def test_cancelled_job_is_left_out():
    jobs = [tasks.double.enqueue(1), tasks.double.enqueue(2)]
    jobs[0].cancel()
    run_jobs()
    assert tasks.seen == [[2]]


def test_each_job_keeps_its_unique_key_search_key_and_headers():
    jobs = [tasks.with_options.using(headers={"tenant": f"t{number}"}).enqueue(number) for number in (0, 1)]
    assert tasks.with_options.enqueue(2).is_duplicate
    with pytest.raises(DuplicateJob):
        tasks.with_options.using(on_conflict="raise").enqueue(3)
    assert [Job.objects.with_search_key("chunk", str(number)).get().pk for number in (0, 1)] == [job.pk for job in jobs]
    run_jobs()
    assert tasks.seen == [["t0", "t1"]]


def test_enqueue_many_adds_one_job_for_each_item():
    tasks.double.enqueue_many([(1,), (2,)])
    enqueue_many([tasks.double.s(3), tasks.double.using(priority=1).s(4)])
    assert set(Job.objects.values_list("limit_key", flat=True)) == {"+tests.chunks.tasks.double"}
    run_jobs()
    assert tasks.seen == [[4], [1, 2, 3]]


def test_run_jobs_does_not_exceed_max_jobs():
    tasks.double.enqueue_many([(number,) for number in range(5)])
    assert run_jobs(max_jobs=2) == 2
    assert tasks.seen == [[0, 1]]


def test_run_jobs_does_not_wait_for_a_full_chunk():
    tasks.patient.enqueue(1)
    tasks.patient.using(run_after=30).enqueue(2)
    assert run_jobs() == 1
    assert run_jobs(until=40) == 1


def test_paused_task_has_no_chunks():
    tasks.double.enqueue(1)
    control.pause(task=tasks.double.name)
    assert run_jobs() == 0
    control.resume(task=tasks.double.name)
    assert run_jobs() == 1


def test_job_under_an_earlier_name_runs():
    job = tasks.renamed.enqueue(1)
    Job.objects.filter(pk=job.pk).update(task_name="chunks.former", limit_key="+chunks.former")
    assert run_jobs() == 1


def test_job_without_a_chunk_key_runs_as_a_chunk_of_one():
    """It was added before the task had the option `chunk`."""
    for number in (1, 2):
        Job.objects.filter(pk=tasks.double.enqueue(number).pk).update(limit_key=None)
    run_jobs()
    assert tasks.seen == [[1], [2]]


def test_immediate_mode_runs_a_chunk_of_one():
    with override_settings(PGQUEUE={"TASK_MODULES": [tasks.__name__], "IMMEDIATE": True}):
        assert tasks.double.enqueue(4).result == 8
    assert tasks.seen == [[4]]


def test_coroutine_runs_in_a_chunk():
    jobs = [tasks.on_loop.enqueue(number) for number in (1, 2)]
    run_jobs()
    assert [Job.objects.get(pk=job.pk).result for job in jobs] == [-1, -2]


def test_middleware_runs_once_with_the_headers_that_all_jobs_share():
    contexts = []

    class Recorder:
        @contextmanager
        def run(self, context):
            contexts.append((context.job_id, dict(context.headers)))
            contexts.extend((job.job_id, dict(job.headers)) for job in context.chunk)
            assert not context.chunk[0].chunk
            yield

    middleware.add("chunks", Recorder())
    try:
        headers = ({"tenant": "a", "trace": "1", "n": 1}, {"tenant": "a", "trace": "2", "n": True}, {"tenant": "a"})
        jobs = [tasks.double.using(headers=each).enqueue(1) for each in headers]
        run_jobs()
    finally:
        middleware.remove("chunks")
    of_jobs = [(job.pk, each) for job, each in zip(jobs, headers, strict=True)]
    assert contexts == [(jobs[0].pk, {"tenant": "a"}), *of_jobs]
    assert states(jobs) == ["succeeded"] * 3


def test_signals_are_sent_for_each_job():
    started, ended = [], []
    signals.job_started.connect(lambda job_id, **_: started.append(job_id), weak=False, dispatch_uid="chunks")
    signals.job_succeeded.connect(lambda job_id, **_: ended.append(job_id), weak=False, dispatch_uid="chunks")
    try:
        jobs = [tasks.double.enqueue(number) for number in range(3)]
        run_jobs()
    finally:
        for signal in (signals.job_started, signals.job_succeeded):
            signal.disconnect(dispatch_uid="chunks")
    assert started == ended == [job.pk for job in jobs]


def test_coroutine_gets_rows():
    jobs = [tasks.rows_on_loop.enqueue(Group.objects.create(name=f"group {number}")) for number in range(2)]
    run_jobs()
    assert [Job.objects.get(pk=job.pk).result for job in jobs] == ["group 0", "group 1"]


def test_kept_log_lines_are_those_of_the_first_job():
    jobs = [tasks.talk.enqueue(number) for number in range(2)]
    run_jobs()
    lines = [len(Job.objects.get(pk=job.pk).executions.get().log_lines) for job in jobs]
    assert lines == [1, 0]


def test_direct_call_makes_a_chunk_of_one():
    assert tasks.double(4) == tasks.double.call(4) == 8
    assert asyncio.run(tasks.on_loop(4)) == asyncio.run(tasks.on_loop.acall(4)) == tasks.on_loop.call(4) == -4
    with pytest.raises(ValueError, match="no"):
        tasks.mark("fail")


def test_fail_needs_an_exception_and_a_job_of_the_chunk():
    job: ChunkJob[int] = ChunkJob(item=1)
    chunk = Chunk([job])
    with pytest.raises(TypeError, match="needs an exception, not str"):
        chunk.fail(job, "no")
    with pytest.raises(ValueError, match="not a job of this chunk"):
        chunk.fail(ChunkJob(item=1), ValueError())
    assert (chunk[0], chunk[:1], repr(chunk)) == (job, (job,), "Chunk([None])")


# ------------------------------------------------------------------ one transaction


def rows():
    return set(Group.objects.values_list("name", flat=True))


@pytest.mark.promise("atomic-chunk-unstorable-result")
@pytest.mark.parametrize("items", [["a", "set", "b"], ["set", "a", "nan", "b"], ["a", "set", "fail", "b"]], ids=str)
def test_atomic_chunk_with_unstorable_result_undoes_its_job(items):
    """The whole call is undone, the job with the result is dead, and the others run again without it."""
    jobs = [tasks.return_in_transaction.using(max_attempts=1).enqueue(item) for item in items]
    run_jobs()
    ends = {"a": "succeeded", "b": "succeeded", "set": "dead", "nan": "dead", "fail": "dead"}
    assert states(jobs) == [ends[item] for item in items]
    assert sorted(Group.objects.values_list("name", flat=True)) == ["a", "b"]
    assert tasks.seen == [items, ["a", "b"]]
    by_item = {item: Job.objects.get(pk=job.pk) for item, job in zip(items, jobs, strict=True)}
    assert [(each.outcome, each.error) for each in by_item["a"].executions.order_by("id")] == [
        ("released", "the call is undone, because the result of another job of its chunk cannot be stored"),
        ("succeeded", ""),
    ]
    assert (by_item["a"].attempt, by_item["a"].result) == (1, "A")
    assert "cannot be stored" in by_item["set"].executions.get().error


def test_atomic_chunk_with_only_unstorable_results_is_undone():
    jobs = [tasks.return_in_transaction.enqueue(item) for item in ("set", "nan")]
    run_jobs()
    assert (states(jobs), Group.objects.count(), len(tasks.seen)) == (["dead", "dead"], 0, 1)


def test_atomic_chunk_commits_the_jobs_that_succeed():
    jobs = [tasks.in_transaction.enqueue(item) for item in ("ok", "fail", "fine")]
    run_jobs()
    assert states(jobs) == ["succeeded", "ready", "succeeded"]
    assert rows() == {f"row {job.pk}" for job in jobs}


@pytest.mark.parametrize("items", [("ok", "raise"), ("fail", "dead")])
def test_atomic_chunk_rolls_back_if_no_job_succeeds(items):
    jobs = [tasks.in_transaction.enqueue(item) for item in items]
    run_jobs()
    assert "succeeded" not in states(jobs)
    assert rows() == set()
