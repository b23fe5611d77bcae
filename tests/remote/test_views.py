"""The life of a job over HTTP: claim, extend, complete, fail and release."""

import pytest
from django.db import connection

from django_pgqueue.history import erase
from django_pgqueue.models import Execution, Job
from django_pgqueue.settings.conf import get_settings
from tests import helpers
from tests.app import tasks

from .conftest import state_of

FOREVER = 3600.0
LARGE_ROW = (
    "INSERT INTO pgqueue_job (task_name, arguments) "
    """VALUES (%s, ('{"args":["' || repeat('x', %s) || '"],"kwargs":{}}')::json) RETURNING id"""
)


def outcomes(job):
    return list(Execution.objects.filter(job_id=job.pk).order_by("pk").values_list("outcome", flat=True))


def test_claim_returns_decoded_call_and_complete_stores_result(machine):
    job = tasks.add.enqueue(1, b=2)
    one = machine()
    [execution] = one.claim()
    assert (execution["job_id"], execution["task"]) == (job.pk, tasks.add.name)
    assert (execution["args"], execution["kwargs"], execution["attempt"]) == ([1], {"b": 2}, 1)
    assert state_of(job) == "running"
    assert one.end("complete", execution, result=3) == (200, ["done"])
    assert (state_of(job), job.result) == ("succeeded", 3)


def test_claim_by_two_machines_gives_each_job_once(machine):
    ids = {tasks.add.enqueue(number).pk for number in range(5)}
    first, second = machine(), machine()
    claimed = [execution["job_id"] for one in (first, second) for execution in one.claim(limit=3)]
    assert (len(claimed), set(claimed)) == (5, ids)
    assert first.claim() == []


def test_fail_follows_retry_policy_of_task_to_dead_letter(machine):
    job, one = tasks.fail.enqueue(), machine()
    for attempt in (1, 2):
        [execution] = one.claim()
        assert execution["attempt"] == attempt
        assert one.end("fail", execution, error="out of order", exception_class="node.Error") == (200, ["done"])
    assert state_of(job) == "dead"
    last = Execution.objects.filter(job_id=job.pk).latest("pk")
    assert (last.error, last.exception_class) == ("out of order", "node.Error")


@pytest.mark.promise("large-rows")
def test_claim_of_too_large_arguments_ends_their_job(machine):
    with connection.cursor() as cursor:
        cursor.execute(LARGE_ROW, [tasks.add.name, 2 * get_settings().most_stored_bytes])
        [large] = cursor.fetchone()
    job = tasks.add.enqueue(1)
    assert [execution["job_id"] for execution in machine().claim(limit=2)] == [job.pk]
    assert state_of(Job.objects.get(pk=large)) == "dead"
    assert "which is more than a worker reads" in Execution.objects.get(job_id=large).error


def test_fail_then_dead_or_cancel_ends_job_at_first_attempt(machine):
    dead, cancelled, one = tasks.add.enqueue(1), tasks.add.enqueue(2), machine()
    first, second = one.claim()
    assert one.end("fail", first, then="dead", error="no such order") == (200, ["done"])
    assert one.end("fail", second, then="cancel") == (200, ["done"])
    assert (state_of(dead), state_of(cancelled)) == ("dead", "cancelled")


def test_fail_with_own_delay_makes_job_due_then(machine):
    job, one = tasks.add.enqueue(1), machine()
    [execution] = one.claim()
    assert one.end("fail", execution, retry_in_seconds=FOREVER) == (200, ["done"])
    assert state_of(job) == "ready"
    assert one.claim() == []


def test_release_counts_no_attempt_and_delays_job(machine):
    job, one = tasks.add.enqueue(1), machine()
    [execution] = one.claim()
    assert one.end("release", execution, reason="shutting down") == (200, ["done"])
    [execution] = one.claim()
    assert execution["attempt"] == 1
    assert one.end("release", execution, delay_seconds=FOREVER) == (200, ["done"])
    assert (state_of(job), job.attempt, outcomes(job)) == ("ready", 0, ["released", "snoozed"])
    assert one.claim() == []


def test_release_of_unknown_task_waits_for_another_worker(machine):
    job, one = tasks.add.enqueue(1), machine()
    assert one.end("release", *one.claim(), unknown=True) == (200, ["done"])
    assert (state_of(job), job.attempt, one.claim()) == ("ready", 0, [])
    assert Job.objects.filter(pk=job.pk, unknown_since__isnull=False).exists()


def test_extend_moves_lease_writes_progress_and_reports_cancellation(machine, engine):
    job, one = tasks.add.enqueue(1), machine()
    [execution] = one.claim()
    helpers.end_lease(engine, execution["execution_id"])
    item = {"execution": execution["execution"], "progress": {"done": 1, "total": 4, "message": "reading"}}
    status, answer = one.post("extend", {"worker": one.handle, "executions": [item]})
    assert (status, answer["executions"][0]["result"]) == (200, "done")
    assert answer["executions"][0]["cancel_requested"] is False
    assert helpers.rescue(engine) == {}
    job.refresh_from_db()
    assert (job.progress.done, job.progress.total, job.progress.message) == (1.0, 4.0, "reading")
    job.cancel()
    _, answer = one.post("extend", {"worker": one.handle, "executions": [item]})
    assert answer["executions"][0]["cancel_requested"] is True


@pytest.mark.promise("remote-repeated-request-changes-nothing")
@pytest.mark.parametrize("ending", ["complete", "fail", "release"])
def test_ending_repeated_answers_already(machine, ending):
    job, one = tasks.add.enqueue(1), machine()
    [execution] = one.claim()
    assert one.end(ending, execution) == (200, ["done"])
    before = state_of(job), outcomes(job)
    assert one.end(ending, execution) == (200, ["already"])
    assert (state_of(job), outcomes(job)) == before


@pytest.mark.parametrize("has_codec", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ({"a": 1, "b": [2.5, None]}, {"b": [2.5, None], "a": 1}, "already"),
        (None, None, "already"),
        ("paid", "refused", "lost"),
        (None, 1, "lost"),
        (1, None, "lost"),
    ],
)
def test_completion_repeated_with_another_result_is_lost(machine, settings, has_codec, first, second, word):
    if has_codec:
        settings.PGQUEUE = {"CODECS": ["tests.app.codecs.Salted"]}
    job, one = tasks.add.enqueue(1), machine()
    [execution] = one.claim()
    assert one.end("complete", execution, result=first) == (200, ["done"])
    status = 200 if word == "already" else 409
    assert one.end("complete", execution, result=second) == (status, [word])
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", first)


def test_completion_repeated_after_erasure_answers_already(machine):
    job, one = tasks.add.enqueue(1), machine()
    [execution] = one.claim()
    assert one.end("complete", execution, result="paid") == (200, ["done"])
    erase(jobs=[job.pk])
    assert one.end("complete", execution, result="paid") == (200, ["already"])


def test_result_too_large_makes_dead_letter(machine, settings):
    settings.PGQUEUE = {"MAX_RESULT_BYTES": 100}
    job, one = tasks.add.enqueue(1), machine()
    assert one.end("complete", *one.claim(), result="x" * 200) == (200, ["done"])
    assert state_of(job) == "dead"
    assert "cannot be stored" in Execution.objects.get(job_id=job.pk).error
