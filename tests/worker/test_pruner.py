"""Test that finished jobs are removed after their retention, which depends on the state and the task.

Also test how the maintenance service spreads this and its other duties over time.
"""

from __future__ import annotations

import contextlib
import time
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.test import override_settings

from django_pgqueue.db.statements import clock
from django_pgqueue.lifecycle import pruning
from django_pgqueue.models import Execution, Job
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.maintenance import maintenance as module
from django_pgqueue.worker.maintenance import pruner as pruner_module
from django_pgqueue.worker.maintenance import rescuer
from django_pgqueue.worker.maintenance.maintenance import Duty, Maintenance
from django_pgqueue.worker.maintenance.pruner import Pruner, kinds
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.shared_memory import HealthMemory
from tests import helpers
from tests.app import tasks
from tests.test_linear_statements import buffers_of

DAY = 24 * 3600


@pytest.fixture
def finished(committing):
    """A finished job of each kind."""
    jobs = {
        "succeeded": tasks.noop.enqueue(),
        "dead": tasks.raise_directive.enqueue("dead"),
        "cancelled": tasks.raise_directive.enqueue("cancel"),
        "own": tasks.kept_for_ever.enqueue(),
        "own dead": tasks.kept_for_ever.enqueue(fail=True),
    }
    run_jobs()
    return jobs


def remaining(jobs):
    ids = set(Job.objects.values_list("pk", flat=True))
    assert set(Execution.objects.values_list("job_id", flat=True)) <= ids
    return {name for name, job in jobs.items() if job.pk in ids}


@pytest.mark.parametrize(
    ("days", "kept"),
    [
        (0.0001, {"succeeded", "dead", "cancelled", "own", "own dead"}),
        (1, {"succeeded", "dead", "cancelled", "own"}),
        (8, {"dead", "own"}),
        (91, {"own"}),
    ],
)
def test_prune_job_past_its_retention_is_removed(finished, engine, days, kept):
    clock.shift_seconds = days * DAY
    Pruner().prune(engine)
    assert remaining(finished) == kept


@override_settings(PGQUEUE={"RETENTION": {"succeeded": "forever", "dead": 1}})
def test_prune_task_without_retention_uses_the_settings(finished, engine):
    clock.shift_seconds = 100 * DAY
    Pruner().prune(engine)
    assert remaining(finished) == {"succeeded", "own"}


def test_prune_command_dry_run_lists_and_run_deletes(finished):
    clock.shift_seconds = 8 * DAY
    out = StringIO()
    call_command("pgqueue", "prune", "--dry-run", stdout=out)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["1", "succeeded", "all", "other", "tasks"] in lines
    assert remaining(finished) == set(finished)
    out = StringIO()
    call_command("pgqueue", "prune", "--yes", stdout=out)
    assert "Deleted 3 finished jobs." in out.getvalue()


@pytest.fixture
def make_finished_jobs(committing, engine):
    """Return a function that inserts finished jobs, each with an execution. 1,000 of them are a batch."""

    def put(jobs: int, state: str = "succeeded", age_days: int = 100) -> None:
        engine.execute(
            "WITH job AS (INSERT INTO pgqueue_job (task_name, arguments, state, finished_at)"
            " SELECT %(task)s, '{}', %(state)s, now() - %(days)s * interval '1 day' + n * interval '1 ms'"
            " FROM generate_series(1, %(jobs)s) n RETURNING id, finished_at)"
            " INSERT INTO pgqueue_execution (job_id, attempt, worker_id, outcome, claimed_at, finished_at,"
            " lease_expires_at) SELECT id, 1, 1, 'failed', finished_at, finished_at, finished_at FROM job",
            {"task": tasks.noop.name, "state": state, "days": age_days, "jobs": jobs},
        )

    return put


@pytest.fixture
def prunes(monkeypatch):
    """Each prune statement that was sent: its task, its state and the number of jobs that it removed."""
    seen: list[tuple[str | None, str, int]] = []
    prune = pruning.prune

    def record_prune(connection, state, *args, **options):
        result = prune(connection, state, *args, **options)
        seen.append((options["task_name"], state.value, result.removed))
        return result

    monkeypatch.setattr(pruning, "prune", record_prune)
    return seen


def test_prune_full_batches_of_two_kinds_take_turns(make_finished_jobs, engine, prunes):
    make_finished_jobs(2500, "cancelled")
    make_finished_jobs(1500)
    pruner = Pruner()
    pruner.go_on(engine)
    assert pruner.under_way
    assert pruner.prune(engine) == 4000 - 1000  # a complete round
    assert not pruner.under_way
    general = [(state, removed) for task, state, removed in prunes if task is None and removed]
    assert general == [
        ("cancelled", 1000),
        ("cancelled", 1000),
        ("succeeded", 1000),
        ("cancelled", 500),
        ("succeeded", 500),
    ]
    assert not Job.objects.exists()
    assert not Execution.objects.exists()


def test_prune_nothing_due_sends_one_statement_per_kind(committing, engine, prunes):
    Pruner().go_on(engine)
    assert [statement[:2] for statement in prunes] == [(kind.task_name, kind.state.value) for kind in kinds()]


def test_prune_locked_rows_are_removed_in_the_next_round(make_finished_jobs, engine, second):
    """The mark moves past locked rows, so the rows behind them are removed. The next round removes the others."""
    make_finished_jobs(2500)
    pruner = Pruner()
    with helpers.transaction(second):
        second.execute("SELECT id FROM pgqueue_execution ORDER BY id LIMIT 3 FOR UPDATE")
        assert pruner.prune(engine) == 2497
        mark = pruner._marks[None, State.SUCCEEDED]
        assert mark.run_after > Job.objects.latest("finished_at").finished_at
    assert pruner.prune(engine) == 3
    assert not Job.objects.exists()


KEPT = 20_000


@pytest.mark.slow
@pytest.mark.promise("prune-passes-kept-jobs")
@pytest.mark.parametrize("reason", ["task", "workflow"])
@pytest.mark.parametrize("at_once", [False, True])
def test_prune_second_round_does_not_read_kept_jobs_again(make_finished_jobs, engine, monkeypatch, reason, at_once):
    """Their task keeps succeeded jobs for ever, but no dead ones, or a job of their workflow waits.

    `at_once`: all of them have ended at the same moment.
    """
    make_finished_jobs(KEPT)
    if reason == "task":
        engine.execute("UPDATE pgqueue_job SET task_name = %s", [tasks.kept_for_ever.name])
    else:
        engine.execute("UPDATE pgqueue_job SET in_graph = true, batch_id = 7")
        helpers.make_nodes(engine, needs=helpers.make_nodes(engine), batch_id=7)
    if at_once:
        engine.execute("UPDATE pgqueue_job SET finished_at = now() - interval '99 days' WHERE state = 'succeeded'")
    engine.execute("VACUUM ANALYZE pgqueue_job")
    pruner = Pruner()
    first, second = (buffers_of(engine, monkeypatch, lambda: pruner.prune(engine), 10**9) for _ in range(2))
    assert first > KEPT / 100
    assert second < 200
    make_finished_jobs(3, age_days=95)
    assert pruner.prune(engine) == 3
    assert Job.objects.filter(state="succeeded").count() == KEPT


@pytest.mark.promise("prune-passes-kept-jobs")
def test_prune_kept_job_is_looked_at_again_after_an_hour(make_finished_jobs, engine, monkeypatch):
    clock = helpers.Clock(monkeypatch, pruner_module)
    make_finished_jobs(2)
    engine.execute("UPDATE pgqueue_job SET in_graph = true, batch_id = 7")
    helpers.make_nodes(engine, needs=helpers.make_nodes(engine), batch_id=7)
    pruner = Pruner()
    assert pruner.prune(engine) == 0
    engine.execute("DELETE FROM pgqueue_job WHERE finished_at IS NULL")
    assert pruner.prune(engine) == 0
    clock.pass_by(pruner_module.MARK_LIMIT_SECONDS + 1)
    assert pruner.prune(engine) == 2


def test_prune_two_workers_at_once_remove_different_jobs(make_finished_jobs, engine, second):
    """A worker skips the rows that another worker has locked, and does not wait for them."""
    make_finished_jobs(2500)
    with helpers.transaction(second):
        assert pruning.prune(second, State.SUCCEEDED, DAY).removed == 1000
        engine.statement_timeout_seconds = 20.0
        assert Pruner().prune(engine) == 1500
        second.execute("COMMIT")
    assert not Job.objects.exists()


def test_prune_one_kind_fails_others_are_removed(make_finished_jobs, engine, monkeypatch):
    make_finished_jobs(10, "dead")
    prune = pruning.prune

    def failing(connection, state, *args, **options):
        if state is State.CANCELLED:
            raise psycopg.errors.QueryCanceled
        return prune(connection, state, *args, **options)

    monkeypatch.setattr(pruning, "prune", failing)
    pruner = Pruner()
    failures = 0
    while Job.objects.exists():
        assert failures < 10
        with contextlib.suppress(psycopg.Error):
            pruner.go_on(engine)
            continue
        failures += 1
    assert failures


@pytest.fixture
def maintenance(committing):
    """The maintenance service of a worker with no duty due. A test starts it, or calls `tick()`."""
    service = Maintenance(Link("default", "maintenance"))
    yield service
    service.stop()
    if service.ident:
        service.join(5)
    service.link.close()


def duty_of(maintenance, name):
    return next(duty for duty in maintenance.duties if duty.name == name)


def test_maintenance_prune_backlog_rescues_between_batches(make_finished_jobs, maintenance, monkeypatch, caplog):
    """The batches of a backlog follow each other without the interval. Rescue has its turn between them."""
    make_finished_jobs(6000)
    removed_at_rescue = []
    monkeypatch.setattr(
        duty_of(maintenance, "rescue"), "function", lambda: removed_at_rescue.append(maintenance.pruner.removed)
    )
    prune = duty_of(maintenance, "prune")
    prune.due_at = 0.0
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        while prune.due_at < time.monotonic() + 30:  # with more to do it is due before its interval of a minute
            prune.due_at = duty_of(maintenance, "rescue").due_at = 0.0
            maintenance.tick()
    assert removed_at_rescue == [0, 1000, 2000, 3000, 4000, 5000, 6000]
    assert not Job.objects.exists()
    assert caplog.messages == ["pruned 6000 finished jobs"]


def test_maintenance_stopped_while_pruning_ends_after_batch(make_finished_jobs, maintenance, monkeypatch):
    make_finished_jobs(4000)
    prune = pruning.prune

    def stopping(*args, **options):
        maintenance.stop()
        return prune(*args, **options)

    monkeypatch.setattr(pruning, "prune", stopping)
    duty_of(maintenance, "prune").due_at = 0.0
    maintenance.start()
    maintenance.join(30)
    assert not maintenance.is_alive()
    assert maintenance.pruner.removed <= 1000


@override_settings(PGQUEUE={"PRUNE_INTERVAL": 0.001})
def test_maintenance_long_prune_round_is_logged_and_restarts(make_finished_jobs, maintenance, prunes, caplog):
    """A round that takes longer than the interval ends, so that a new round prunes the other kinds again."""
    make_finished_jobs(3000)
    prune = duty_of(maintenance, "prune")
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        for _ in range(3):
            prune.due_at = 0.0
            maintenance.tick()
    assert caplog.messages == ["pruned 1000 finished jobs"] * 3
    assert [state for task, state, _ in prunes if task is None] == ["cancelled", "dead", "succeeded"] * 3


@pytest.mark.parametrize(
    ("outcome", "at_least", "less_than"),
    [("all done", 1.9, 10.0), ("fails", 0.2, 0.8), ("more to do", 0.1, 0.8)],
)
def test_maintenance_slow_duty_waits_ten_times_its_duration(outcome, at_least, less_than, monkeypatch):
    """A duty that failed, or that has more to do, waits for less time: its duration must not delay it so much."""
    clock = helpers.Clock(monkeypatch, module)

    def slow():
        clock.pass_by(0.2)
        if outcome == "fails":
            raise OSError("the database is away")
        return outcome == "more to do"

    duty = Duty("slow", 60.0 if outcome == "more to do" else 0.5, slow)
    maintenance = Maintenance(Link("default", "maintenance"))
    maintenance.duties = [duty]
    duty.due_at = 0.0
    with contextlib.suppress(OSError):
        maintenance.tick()
    assert at_least < duty.due_at - clock.now < less_than


def test_maintenance_first_run_of_a_duty_is_at_any_moment_of_its_interval():
    """Otherwise nobody does an hourly duty if a deploy or a recycling ends each process within the hour."""
    link, found = Link("default", "maintenance"), []
    for _ in range(300):
        duty = duty_of(Maintenance(link), "requeue")
        found.append((duty.due_at - time.monotonic()) / duty.interval_seconds)
    assert -0.01 < min(found) < 0.05 and 0.95 < max(found) <= 1


def test_maintenance_expired_windows_are_all_removed(maintenance, engine):
    helpers.enqueue_for_period(engine, *map(str, range(2500)), period_seconds=0.001)
    helpers.enqueue_for_period(engine, "held")
    windows = duty_of(maintenance, "windows")
    windows.due_at = 0.0
    while windows.due_at < time.monotonic() + 60:  # while there are more windows, the duty is due again at once
        windows.due_at = 0.0
        maintenance.tick()
    assert helpers.scalar(engine, "SELECT string_agg(unique_key, '') FROM pgqueue_uniqueness_window") == "held"


def test_maintenance_states_of_full_limit_keys_are_all_removed(maintenance, engine):
    engine.execute(
        "INSERT INTO pgqueue_limit_state (limit_key, full_at) SELECT 'rate:' || n, '2001-01-01' "
        "FROM generate_series(1, 2500) n UNION ALL SELECT 'used', now()"
    )
    limits = duty_of(maintenance, "limits")
    limits.due_at = 0.0
    while limits.due_at < time.monotonic() + 60:
        limits.due_at = 0.0
        maintenance.tick()
    assert helpers.scalar(engine, "SELECT string_agg(limit_key, '') FROM pgqueue_limit_state") == "used"


def test_maintenance_overrides_that_ended_long_ago_are_removed(maintenance, engine):
    engine.execute(
        "INSERT INTO pgqueue_limit_override (limit_key, share, valid_until) "
        "VALUES ('old', 2, '2001-01-01'), ('ended', 2, now()), ('stays', 2, NULL)"
    )
    duty_of(maintenance, "overrides").due_at = 0.0
    maintenance.tick()
    left = "SELECT string_agg(limit_key, ' ' ORDER BY limit_key) FROM pgqueue_limit_override"
    assert helpers.scalar(engine, left) == "ended stays"


def test_maintenance_rescue_after_slow_commit_looks_again_soon(engine, maintenance, monkeypatch):
    """A commit that hung for 20 s is no work: a look 200 s later would break the promise on lost jobs."""
    helpers.make_job(engine)
    helpers.claim_one(engine)
    helpers.end_lease(engine)
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rescuer.rescues, "prove_commit", lambda connection: now.__setitem__(0, now[0] + 20.0))
    duty = duty_of(maintenance, "rescue")
    maintenance._run_duty(duty)
    assert 0 < duty.due_at - now[0] <= 5.0


def test_maintenance_completed_rescue_reports_its_age(maintenance, monkeypatch):
    monkeypatch.setattr(rescuer, "health_memory", HealthMemory())
    duty_of(maintenance, "rescue").function()
    assert 0 <= rescuer.health_memory.ages_seconds["rescue"] < 60
