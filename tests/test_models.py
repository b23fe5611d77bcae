"""The models: operations on one job and on querysets, permissions of the admin, and constraints of the tables."""

import psycopg
import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from django_pgqueue import JobLocked, models
from django_pgqueue.lifecycle import completions, operator
from django_pgqueue.lifecycle.types import Released, TransitionStatus
from django_pgqueue.models import DeadJob, Execution, Job, Worker, operations_link
from django_pgqueue.states import State
from tests import helpers
from tests.app import tasks


def test_job_cancel_retry_and_run_now_apply_once(committing):
    job = tasks.noop.using(run_after=3600).enqueue()
    assert job.run_now()
    assert not job.run_now()
    assert not job.retry()
    assert job.cancel()
    assert not job.cancel()
    job.refresh_from_db()
    assert job.state == State.CANCELLED
    assert job.retry()
    job.refresh_from_db()
    assert (job.state, job.finished_at) == (State.READY, None)


def test_job_cancel_rolls_back_with_the_transaction(committing, second):
    job = tasks.noop.enqueue()
    with transaction.atomic():
        assert job.cancel()
        assert helpers.state_of(second, job.pk) == "ready"
        transaction.set_rollback(True)
    assert helpers.state_of(second, job.pk) == "ready"


def test_job_never_enqueued_refuses_operations():
    for operation in (Job().retry, Job().cancel, Job().run_now):
        with pytest.raises(ValueError, match="enqueue"):
            operation()


def test_job_cancel_locked_row_raises_job_locked(committing, second, monkeypatch):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.02)
    job = tasks.noop.enqueue()
    with helpers.transaction(second, "SELECT FROM pgqueue_job FOR UPDATE"), pytest.raises(JobLocked):
        job.cancel()


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_queryset_cancel_skips_locked_jobs(committing, second, monkeypatch, batch):
    """A batch can also be a single job."""
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(operations_link, "BATCH_SIZE", batch)
    ids = tasks.noop.enqueue_many([((), {})] * 5)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [ids[2]])
        assert Job.objects.all().cancel() == 4
    assert Job.objects.get(state="ready").pk == ids[2]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_queryset_operations_count_their_jobs_in_batches(committing, monkeypatch, batch):
    monkeypatch.setattr(operations_link, "BATCH_SIZE", batch)
    mine = tasks.noop.using(queue_name="mail", run_after=3600).enqueue_many([((), {})] * 7)
    others = tasks.noop.enqueue_many([((), {})] * 3)
    mail = Job.objects.filter(queue_name="mail")
    assert mail.run_now() == 7
    assert mail.run_now() == 0
    assert mail.filter(pk__in=mine[:4]).cancel() == 4
    assert mail.cancel() == 3
    assert mail.order_by("-priority").retry() == 7
    assert set(Job.objects.filter(state="ready").values_list("pk", flat=True)) == {*mine, *others}


def test_queryset_operation_that_empties_filter_is_complete(committing, monkeypatch):
    monkeypatch.setattr(operations_link, "BATCH_SIZE", 2)
    tasks.noop.enqueue_many([((), {})] * 5)
    assert Job.objects.filter(state="ready").cancel() == 5
    assert Job.objects.filter(state="cancelled").retry() == 5


def test_queryset_cancel_slice_is_refused(committing):
    tasks.noop.enqueue_many([((), {})] * 5)
    with pytest.raises(TypeError, match="slice"):
        Job.objects.order_by("pk")[:2].cancel()
    assert Job.objects.filter(state="ready").count() == 5


def test_queryset_operations_not_in_templates_or_on_manager():
    for name in ("retry", "cancel", "run_now", "set_max_attempts"):
        assert getattr(models.JobQuerySet, name).alters_data
        assert not hasattr(Job.objects, name)


@pytest.mark.django_db
def test_permissions_are_the_expected_set():
    found = set(Permission.objects.filter(content_type__app_label="pgqueue").values_list("codename", flat=True))
    of_jobs = {"view_job", "retry_job", "cancel_job", "run_job", "view_arguments"}
    of_jobs |= {"acknowledge_job", "move_job", "erase_job", "delete_job", "edit_and_retry_job", "enqueue_job"}
    of_jobs |= {"set_max_attempts_job"}
    of_schedules = {f"{verb}_schedule" for verb in ("view", "add", "change", "delete", "run", "pause")}
    of_workers = {"view_worker", "stop_worker", "view_stack"}
    of_limits = {"view_limitoverride", "change_limits"}
    others = {"view_execution", "view_pause", "pause_queue", "view_jobbatch", "close_batch"}
    assert found == of_jobs | of_schedules | of_workers | of_limits | others


@pytest.mark.django_db
def test_makemigrations_check_finds_no_change():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.django_db
def test_job_delete_removes_its_executions(engine):
    worker = Worker.objects.create(hostname="here", pid=1, version="1", concurrency=1)
    job = Job.objects.create(task_name="x", arguments={}, state="dead", finished_at="2026-01-01T00:00Z")
    times = {"lease_expires_at": "2026-01-01T00:00Z", "finished_at": "2026-01-01T00:00Z", "outcome": "failed"}
    Execution.objects.create(job=job, worker=worker, attempt=1, **times)
    job.delete()
    assert not Execution.objects.exists()
    assert (str(worker), str(job)) == ("here:1", "x #None")


@pytest.mark.django_db
def test_dead_job_is_a_proxy_of_job():
    assert DeadJob._meta.proxy
    assert DeadJob._meta.db_table == Job._meta.db_table


@pytest.mark.django_db
@pytest.mark.parametrize(
    "columns",
    [
        {"state": "succeeded"},
        {"state": "ready", "finished_at": "2030-01-01T00:00Z"},
        {"run_after": "9500-01-01T00:00Z"},
        {"run_after": "1999-01-01T00:00Z"},
    ],
)
def test_job_inconsistent_row_is_refused(columns):
    with pytest.raises(IntegrityError):
        Job.objects.create(task_name="x", arguments={}, **columns)


@pytest.mark.parametrize(
    "columns", ["outcome = 'failed'", "finished_at = now()", "finished_at = NULL, outcome = 'succeeded'"]
)
def test_execution_partly_closed_row_is_refused(engine, job_in, columns):
    job_in("running")
    with pytest.raises(psycopg.errors.CheckViolation):
        engine.execute(f"UPDATE pgqueue_execution SET {columns}")


@pytest.mark.promise("only-the-named-execution-counts")
def test_execution_that_its_job_does_not_name_changes_nothing(engine, job_in):
    specimen = job_in("running")
    [execution_id] = engine.execute(
        "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, lease_expires_at) VALUES (%s, 1, 1, now()) "
        "RETURNING id",
        [specimen.job_id],
    ).fetchone()
    other = helpers.key_of(engine, execution_id)
    for transition, rows in (
        (completions.succeed, helpers.succeeded(other)),
        (completions.fail, helpers.failed(other)),
        (completions.release, [Released(other)]),
    ):
        assert transition(engine, rows)[execution_id].status is TransitionStatus.LOST
    assert (
        completions.succeed(engine, helpers.succeeded(specimen.key))[specimen.execution_id].status
        is TransitionStatus.DONE
    )


def test_job_result_keeps_its_json_text(committing, engine):
    job = tasks.noop.enqueue(1e16, -0.0, {"b": 1, "a": 2})
    claimed = helpers.claim_one(engine)
    completions.succeed(engine, helpers.succeeded(claimed.key, result='{"z": 1e16, "a": -0.0}'))
    job.refresh_from_db()
    assert list(job.result) == ["z", "a"]
    assert isinstance(job.result["z"], float)
    with connection.cursor() as cursor:
        assert cursor.execute("SELECT result::text FROM pgqueue_job").fetchone()[0] == '{"z": 1e16, "a": -0.0}'


def test_indexes_are_the_expected_set(engine):
    rows = engine.execute(
        "SELECT indexname FROM pg_indexes WHERE tablename IN ('pgqueue_job', 'pgqueue_execution')"
    ).fetchall()
    names = {name for (name,) in rows}
    assert names == {
        "pgqueue_job_pkey", "pgqueue_job_ready", "pgqueue_job_finished", "pgqueue_job_dead", "pgqueue_job_task",
        "pgqueue_job_expiring", "pgqueue_job_unique", "pgqueue_job_limited", "pgqueue_job_ordered", "pgqueue_job_batch",
        "pgqueue_job_waiting", "pgqueue_job_keyed", "pgqueue_job_running", "pgqueue_job_running_key",
        "pgqueue_execution_pkey", "pgqueue_execution_job",
    }  # fmt: skip


@pytest.mark.parametrize("until", ["infinity", "-infinity", "294276-01-01"])
@pytest.mark.promise("bad-row-constraints")
def test_pause_infinite_end_is_refused(engine, until):
    with pytest.raises(psycopg.errors.CheckViolation):
        engine.execute("INSERT INTO pgqueue_pause (kind, name, paused_until) VALUES ('queue', 'q', %s)", [until])


def test_indexed_names_have_collation_c(engine):
    """Otherwise an upgrade of glibc can corrupt the index that claims use."""
    columns = engine.execute(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE collation_name = 'C' AND table_name LIKE 'pgqueue_%' ORDER BY 1, 2"
    ).fetchall()
    assert columns == [
        *(("pgqueue_archived_job", name) for name in ("queue_name", "task_name")),
        ("pgqueue_breaker_count", "limit_key"),
        *(("pgqueue_event", name) for name in ("key", "name")),
        ("pgqueue_execution", "limit_key"),
        *(("pgqueue_installation", name) for name in ("environment", "system_identifier")),
        *(("pgqueue_job", name) for name in ("limit_key", "queue_name", "task_name", "unique_key")),
        ("pgqueue_limit_override", "limit_key"),
        ("pgqueue_limit_state", "limit_key"),
        ("pgqueue_open_breaker", "limit_key"),
        ("pgqueue_pause", "name"),
        ("pgqueue_schedule", "name"),
        *(("pgqueue_search_key", name) for name in ("name", "value")),
        *(("pgqueue_step", name) for name in ("event_key", "event_name", "name")),
        *(("pgqueue_uniqueness_window", name) for name in ("task_name", "unique_key")),
    ]
