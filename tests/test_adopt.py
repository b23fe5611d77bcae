"""`manage.py pgqueue adopt` takes over a database: what it shows, cancels, pauses and refuses."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_pgqueue import Batch, chain
from django_pgqueue.lifecycle import claims, schedules, workers
from django_pgqueue.management.subcommands import adopt_command
from django_pgqueue.management.subcommands.subcommand import ExitCode
from django_pgqueue.models import AuditEntry, Installation, Job, JobBatch, Pause, Schedule
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.runtime.clone_guard import difference
from tests import helpers
from tests.app import tasks
from tests.worker.test_clone_guard import restore_dump


def adopt(*arguments: str) -> str:
    output = StringIO()
    call_command("pgqueue", "adopt", *arguments, stdout=output, stderr=output)
    return output.getvalue()


@pytest.fixture
def dump(engine):
    """A restored dump with two jobs that wait, one that was running, and a schedule that has missed its tick."""
    restore_dump(engine)
    helpers.make_jobs(engine, 2)
    helpers.make_job(engine, queue_name="later", run_after="2100-01-01T00:00:00Z")
    helpers.claim_one(engine, lease_seconds=-1.0)
    helpers.make_schedule(engine, due_in=-60.0, queue_name="reports")
    return engine


def states() -> list[str]:
    return list(Job.objects.order_by("pk").values_list("state", flat=True))


def test_adopt_makes_this_installation_the_only_one(dump):
    output = adopt()
    assert "belongs to another installation: server 7, not " in output
    [recorded] = Installation.objects.all()
    assert recorded.system_identifier != "7"
    assert " on " in recorded.adopted_by
    assert difference(dump) == ""
    assert states() == ["running", "ready", "ready"]
    assert Schedule.objects.get().enabled


@pytest.mark.parametrize("change", ["system_identifier = '7'", "database_oid = 5", "environment = 'other'"])
def test_adopt_removes_installation_that_differs_in_one_part(engine, change):
    difference(engine)
    engine.execute(f"UPDATE pgqueue_installation SET {change}")
    assert difference(engine)
    adopt()
    assert difference(engine) == ""
    assert Installation.objects.count() == 1


def test_adopt_shows_what_the_database_contains(dump):
    lines = [line.split(None, 1) for line in adopt("--dry-run").splitlines()]
    shown = {words[1]: words[0] for words in lines if words[0].isdigit()}
    assert shown == {
        "jobs that are due": "1",
        "jobs that are due later": "1",
        "jobs of workflows that wait for other jobs": "0",
        "running jobs": "1",
        "batches that have not succeeded": "0",
        "steps that can be undone": "0",
        "schedules": "1",
        "workers with a recent heartbeat": "0",
    }


@pytest.mark.parametrize("option", ["--cancel-waiting", "--pause"])
def test_adopt_dry_run_changes_nothing(dump, option):
    assert "Nothing was changed" in adopt("--dry-run", option)
    assert states() == ["running", "ready", "ready"]
    assert Schedule.objects.get().enabled
    assert not Pause.objects.exists()
    assert Installation.objects.get().system_identifier == "7"


@pytest.mark.promise("adopt")
def test_adopt_cancel_waiting_leaves_no_job_to_run(dump):
    """The job that was running is rescued, and must not run again."""
    with pytest.raises(CommandError, match="Pass --yes"):
        adopt("--cancel-waiting")
    assert states() == ["running", "ready", "ready"]
    output = adopt("--cancel-waiting", "--yes")
    entry = AuditEntry.objects.get(action="cancel")
    assert (entry.action, entry.reason, entry.job_count, entry.outcome) == ("cancel", "pgqueue adopt", 3, "done")
    assert "Cancelled 3 jobs." in output
    assert "Paused 1 schedule." in output
    assert states() == ["running", "cancelled", "cancelled"]
    helpers.rescue(dump)
    assert states() == ["cancelled", "cancelled", "cancelled"]
    assert not Schedule.objects.get().enabled


@pytest.fixture
def stored_calls(dump):
    """An unfinished workflow with callbacks, and a job with a step to undo, whose calls have queues of their own."""
    calls = {f"on_{end}": tasks.noop.using(queue_name=f"of_{end}").s(end) for end in ("failure", "complete", "success")}
    chain(tasks.add.s(1)).then(tasks.add).enqueue(**calls)
    with Batch(on_complete=tasks.noop.s("nothing left")) as batch:
        tasks.noop.using(batch=batch).enqueue()
    job = tasks.noop.enqueue()
    dump.execute(
        "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, finished_at, compensation, "
        """compensation_arguments) VALUES (%s, 'charge', 1, 'step', 1, now(), now(), '{"task_name": "refund", """
        """"queue_name": "undo", "priority": 0, "max_attempts": 1}', '{"args": [], "kwargs": {}}')""",
        [job.pk],
    )
    return dump


@pytest.mark.promise("defect-copy-enqueues-callbacks")
@pytest.mark.promise("adopt")
def test_adopt_cancel_waiting_removes_callbacks_and_compensations(stored_calls):
    assert "Removed 4 callbacks of batches and 1 compensation of steps." in adopt("--cancel-waiting", "--yes")
    helpers.rescue(stored_calls)
    helpers.sweep_ends(stored_calls, "complete batches")
    helpers.sweep_ends(stored_calls, "compensations")
    assert set(states()) == {"cancelled"}
    assert JobBatch.objects.filter(completed_at__isnull=False).count() == 2


@pytest.mark.promise("adopt")
def test_adopt_pause_pauses_the_queues_of_stored_calls(stored_calls):
    adopt("--pause")
    paused = set(Pause.objects.values_list("name", flat=True))
    assert paused >= {"of_failure", "of_complete", "of_success", "undo"}


@pytest.mark.promise("adopt")
def test_adopt_pause_pauses_every_queue_of_the_dump(dump):
    assert "Paused the queues default, " in adopt("--pause")
    paused = set(Pause.objects.values_list("name", flat=True))
    assert paused >= {"default", "later", "reports"}  # of jobs, of a job that is due later, of a schedule
    assert {pause.reason for pause in Pause.objects.all()} == {"paused by pgqueue adopt"}
    assert not Schedule.objects.get().enabled
    helpers.rescue(dump)
    assert states() == ["ready", "ready", "ready"]
    assert set(claims.scan_lanes(dump).due_in.values()) == {float("inf")}


def test_adopt_without_option_rescues_the_running_job(dump):
    adopt()
    helpers.rescue(dump)
    assert states() == ["ready", "ready", "ready"]


@pytest.mark.parametrize("option", ["--cancel-waiting", "--pause"])
def test_adopt_own_database_changes_nothing(engine, option):
    """The command must be safe in the shell of production."""
    difference(engine)
    helpers.make_job(engine)
    assert "belongs to this installation already. Nothing was changed." in adopt(option)
    assert states() == ["ready"]
    assert not Pause.objects.exists()


@pytest.mark.promise("adopt")
def test_adopt_with_live_workers_is_refused_without_force(dump):
    worker_id = workers.register_worker(dump, hostname="h", pid=1, version="v", queue_names="", concurrency=1)
    with pytest.raises(CommandError, match=r"1 worker has sent a heartbeat .* in the last 120 s") as caught:
        adopt("--cancel-waiting", "--yes")
    assert caught.value.returncode == ExitCode.FAILED
    assert states() == ["running", "ready", "ready"]
    assert Installation.objects.get().system_identifier == "7"
    adopt("--force")
    assert difference(dump) == ""
    workers.unregister_worker(dump, worker_id)
    assert adopt_command._workers_alive("default") == 0


def test_adopt_database_without_installation_records_this_one(engine):
    assert "no worker has worked on it" in adopt()
    assert Installation.objects.count() == 1


def test_adopt_interrupted_leaves_the_other_installation(dump, monkeypatch):
    monkeypatch.setattr(schedules, "pause_schedule", lambda *_, **__: pytest.fail("interrupted"))
    with pytest.raises(pytest.fail.Exception):
        adopt("--cancel-waiting", "--yes")
    assert Installation.objects.get().system_identifier == "7"
    monkeypatch.undo()
    adopt("--cancel-waiting", "--yes")
    assert difference(dump) == ""


def test_adopt_environment_of_other_settings_warns(dump):
    with override_settings(PGQUEUE={"ENVIRONMENT": "staging"}):
        assert "Warning" not in adopt()
        assert "PGQUEUE['ENVIRONMENT'] is 'staging'" in adopt("--environment", "production")
        assert "environment 'production', not 'staging'" in difference(dump)


def test_adopt_invalid_environment_is_a_usage_error(db):
    with pytest.raises(CommandError, match="Invalid --environment 'a b'") as caught:
        adopt("--environment", "a b")
    assert caught.value.returncode == ExitCode.USAGE


def test_foreign_database_still_runs_jobs_of_tests(dump):
    """Only workers are guarded: `run_jobs()`, IMMEDIATE and `pgqueue run` do what their caller has asked for."""
    assert run_jobs() >= 1
    assert Installation.objects.get().system_identifier == "7"
