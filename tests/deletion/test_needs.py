"""What unfinished work needs stays: each way of removal × each need.

A removal at the end of a retention (prune, archive) obeys every need. `delete()` is a decision of its caller, so it
also removes a dead job that others wait behind. An erasure keeps the row: it leaves the values that others still read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from django_pgqueue import Batch, history, send_event
from django_pgqueue.lifecycle import events, operator, pruning, schedules
from django_pgqueue.lifecycle import history as lifecycle_history
from django_pgqueue.lifecycle.pruning import needs_of
from django_pgqueue.models import Job, JobBatch, JobStep, ScheduleRun, SentEvent
from django_pgqueue.states import NEED_TEXTS, Need, State
from django_pgqueue.testing import run_jobs, time_travel
from tests import helpers
from tests.app import tasks
from tests.graphs import tasks as graph_tasks
from tests.statements import STATEMENTS
from tests.steps import tasks as step_tasks

from .scenes import finished, pending_saga, waiting_chain

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("known_tasks")]
OLD = timedelta(days=365)


def blocking_key() -> Job:
    """Return a dead job of a key with `on_dead="block"`, and let a later job wait behind it."""
    job = finished("dead")
    Job.objects.filter(pk=job.pk).update(limit_key="import:7", limit_order=2)
    return job


def dead_compensation(state: str = "dead") -> Job:
    """Return a dead compensation, before which the compensation of an earlier step waits."""
    step_tasks.CODE["undo"] = step_tasks.fail_to
    step_tasks.order.enqueue()
    run_jobs()
    job = Job.objects.get(task_name=step_tasks.undo_once.name)
    Job.objects.filter(pk=job.pk).update(state=state)
    assert JobStep.objects.filter(compensation__isnull=False).count() == 1
    return job


def cancelled_compensation() -> Job:
    return dead_compensation("cancelled")


def node_of_dead_workflow() -> Job:
    """Return a succeeded job whose result a retry of a dead one would need."""
    job = waiting_chain()
    Job.objects.filter(batch_id=job.batch_id).exclude(pk=job.pk).update(state="dead", finished_at=timezone.now())
    return job


SCENES: dict[str, Callable[[], Job]] = {
    "workflow": waiting_chain,
    "dead workflow": node_of_dead_workflow,
    "compensation": pending_saga,
    "order": blocking_key,
    "saga": dead_compensation,
    "cancelled saga": cancelled_compensation,
    "nothing": finished,
}
NEED_OF = {
    "workflow": Need.WORKFLOW,
    "dead workflow": Need.WORKFLOW,
    "compensation": Need.COMPENSATION,
    "order": Need.ORDER,
    "saga": Need.SAGA,
    "cancelled saga": Need.SAGA,
    "nothing": None,
}


def ended(job: Job) -> dict[int, datetime]:
    assert job.finished_at is not None
    return {job.pk: job.finished_at}


def prune(job: Job, **options: Any) -> bool:
    pruning.prune(connection, State(job.state), 86400.0, **options)
    return not Job.objects.filter(pk=job.pk).exists()


WAYS: dict[str, Callable[[Job], bool]] = {
    "prune": prune,
    "prune one task": lambda job: prune(job, task_name=job.task_name),
    "ARCHIVE": lambda job: bool(lifecycle_history.archive(connection, ended(job))),
    "READ_FOR_ARCHIVE": lambda job: bool(lifecycle_history.read_for_archive(connection, ended(job))),
    "REMOVE": lambda job: bool(lifecycle_history.remove_archived(connection, ended(job))),
    "DELETE": lambda job: bool(operator.delete(connection, [job.pk], lock_seconds=0.0)),
    "ERASE": lambda job: history.erase(jobs=[job.pk]).erased == 1,
}
OBEYED = {
    **dict.fromkeys(WAYS, set(SCENES) - {"nothing"}),
    "DELETE": {"workflow", "dead workflow", "compensation"},
    "ERASE": {"workflow", "compensation"},
}


@pytest.mark.promise("needed-job-stays")
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("way", WAYS)
def test_removal_leaves_exactly_what_is_needed(way, scene):
    job = SCENES[scene]()
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now() - OLD)
    job.refresh_from_db()
    assert needs_of(connection, [job.pk])[job.pk] == (job.state, NEED_OF[scene])
    assert WAYS[way](job) == (scene not in OBEYED[way])


def test_every_removal_of_jobs_is_in_the_matrix():
    removing = {name for name, text in STATEMENTS.items() if "DELETE FROM pgqueue_job WHERE" in text}
    assert removing - WAYS.keys() == {"SUCCEED_AND_DISCARD"}, "it removes a job that has just succeeded, and no node"
    assert set(NEED_TEXTS) == set(Need)
    assert set(NEED_OF.values()) == {*Need, None} - {Need.UNFINISHED}


@pytest.mark.parametrize("state", ["waiting", "ready", "running"])
def test_unfinished_job_is_never_removed_and_named_so(state):
    job = tasks.noop.enqueue()
    Job.objects.filter(pk=job.pk).update(state=state)
    assert needs_of(connection, [job.pk, 10**12]) == {job.pk: (state, Need.UNFINISHED)}
    assert needs_of(connection, []) == {}


def test_job_is_removed_when_nothing_needs_it_any_more():
    job = dead_compensation()
    step_tasks.CODE.pop("undo")
    assert job.retry() or Job.objects.get(pk=job.pk).retry()
    run_jobs()
    Job.objects.all().update(finished_at=timezone.now() - OLD)
    assert sum(pruning.prune(connection, state, 86400.0).removed for state in State) == 3


# ------------------------------------------------------------------ the answers


@pytest.mark.promise("needed-job-is-reported")
def test_archive_and_erasure_count_the_needed_jobs():
    job, _ = waiting_chain(), finished()
    Job.objects.filter(state="succeeded").update(finished_at=timezone.now() - OLD)
    assert history.archive(older_than=timedelta(days=30)) == history.Archived(1, 1, 0, 1)
    erased = history.erase(jobs=[job.pk])
    assert (erased.erased, erased.left, erased.needed) == (0, 1, 1)
    assert history.erase(jobs=[job.pk], results=False).erased == 1
    run_jobs()
    assert Job.objects.get(task_name=graph_tasks.double.name).result == 6
    assert history.erase(jobs=[job.pk]).erased == 1


@pytest.mark.promise("needed-job-is-reported")
@pytest.mark.django_db(transaction=True)
def test_commands_say_what_stays_and_why():
    needed = blocking_key()
    Job.objects.filter(pk=needed.pk).update(finished_at=timezone.now() - OLD)
    for options in (["--yes"], ["--dry-run"]):
        found = _prune(*options)
        assert "0 jobs to delete." in found
        assert "1 job past the retention stays, because unfinished work needs it." in found
    out = StringIO()
    call_command("pgqueue", "archive", "--table", "--older-than", "1d", "--state", "dead", "--yes", stdout=out)
    assert "Unchanged: 1 job stays, because unfinished work needs it." in out.getvalue()
    assert "run the command again" not in out.getvalue()


def _prune(*options: str) -> str:
    out = StringIO()
    call_command("pgqueue", "prune", *options, stdout=out)
    return out.getvalue()


# ------------------------------------------------------------------ rows that are not jobs


def wait_for_event(key: str = "7") -> Job:
    job = step_tasks.waits.enqueue(key, 90 * 86400.0)
    run_jobs()
    return job


@pytest.mark.promise("event-kept-for-its-waiter")
@pytest.mark.parametrize("state", ["suspended", "woken", "running"])
def test_event_stays_while_a_job_has_not_received_it(state):
    job = wait_for_event()
    Job.objects.filter(pk=job.pk).update(queue_name="paused")
    send_event("go", "7", "payload")
    send_event("go", "other", None)
    if state != "suspended":
        Job.objects.filter(pk=job.pk).update(run_after=timezone.now() - timedelta(minutes=1))
    if state == "running":
        Job.objects.filter(pk=job.pk).update(state="running")
    with time_travel(days=31):
        assert events.prune_events(connection, 30 * 86400.0) == (1, 1, None)
        if state == "running":
            Job.objects.filter(pk=job.pk).update(state="ready")
        run_jobs(until=60)
        job.refresh_from_db()
        assert (job.state, job.result) == ("succeeded", "payload")
        assert events.prune_events(connection, 30 * 86400.0) == (1, 0, None)


@pytest.mark.parametrize("end", ["cancelled", "dead", "gone"])
def test_event_of_a_job_that_has_ended_is_removed(end):
    job = wait_for_event()
    if end == "gone":
        Job.objects.filter(pk=job.pk)._raw_delete("default")
    else:
        Job.objects.filter(pk=job.pk).update(state=end, finished_at=timezone.now())
    send_event("go", "7", "payload")
    with time_travel(days=31):
        assert events.prune_events(connection, 30 * 86400.0).removed == 1


def test_event_that_was_received_is_removed_while_the_job_waits_again():
    step_tasks.CODE["code"] = lambda context: [context.wait_for_event("go", "7", name=each) for each in "ab"]
    job = step_tasks.scripted.enqueue()
    run_jobs()
    send_event("go", "7", 1)
    run_jobs()
    assert JobStep.objects.filter(job=job, finished_at=None).count() == 1
    with time_travel(days=31):
        assert events.prune_events(connection, 30 * 86400.0) == (1, 0, None)


def test_kept_events_in_front_do_not_stop_the_removal_of_others():
    wait_for_event()
    for key in ("7", "7", "other", "other", "young"):
        send_event("go", key, None)
    SentEvent.objects.exclude(key="young").update(sent_at=timezone.now() - OLD)
    after_id, removed = 0, 0
    while (page := events.prune_events(connection, 86400.0, after_id, limit=2)).last_id is not None:
        removed += page.removed
        after_id = page.last_id
    assert removed + page.removed == 2
    assert SentEvent.objects.count() == 3


@pytest.mark.promise("tick-kept-for-its-job")
@pytest.mark.parametrize("has_ended", [False, True])
def test_tick_stays_while_its_job_is_unfinished(has_ended):
    """Otherwise `if_running="skip"` would let a second job run beside it."""
    schedule_id = helpers.make_schedule(connection)
    job = tasks.noop.enqueue()
    ScheduleRun.objects.create(schedule_id=schedule_id, tick_at=timezone.now() - OLD, job_id=job.pk)
    ScheduleRun.objects.create(schedule_id=schedule_id, tick_at=timezone.now() - OLD - timedelta(days=1))
    ScheduleRun.objects.create(schedule_id=schedule_id, tick_at=timezone.now())
    if has_ended:
        run_jobs()
    schedules.prune_schedule_runs(connection, 86400.0, kept=1)
    assert ScheduleRun.objects.count() == (1 if has_ended else 2)


@pytest.mark.promise("callback-kept-for-retried-job")
@pytest.mark.parametrize("is_nested", [False, True])
def test_callback_is_not_erased_while_a_retried_job_can_call_it(is_nested):
    with Batch(on_success=tasks.noop.s("success")) as outer:
        inner = Batch(parent=outer).open() if is_nested else outer
        tasks.fail.using(batch=inner, max_attempts=1).enqueue()
        inner.close() if is_nested else None
    run_jobs()
    assert JobBatch.objects.get(pk=outer.id).completed_at is not None
    assert Job.objects.dead().retry() == 1
    history.erase(before=timezone.now() + timedelta(days=1))
    Job.objects.ready().update(task_name=tasks.noop.name)
    run_jobs(until=7200)
    assert Job.objects.filter(batch_id=None).get().args == ["success"]
    assert history.erase(before=timezone.now() + timedelta(days=1)).callbacks == 1
