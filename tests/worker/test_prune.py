"""Retention: by state, by task, for ever, and not at all."""

from __future__ import annotations

import contextlib
import time
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.test import override_settings

from django_pgqueue import lifecycle
from django_pgqueue.db.statements import clock
from django_pgqueue.models import Execution, Job
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.maintenance import maintenance as module
from django_pgqueue.worker.maintenance.maintenance import Duty, Maintenance
from django_pgqueue.worker.maintenance.pruner import Pruner, kinds
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.health_memory import HealthMemory
from tests import helpers
from tests.app import tasks

DAY = 24 * 3600


@pytest.fixture
def finished(committing):
    """A job of each kind that is over."""
    jobs = {
        "succeeded": tasks.noop.enqueue(),
        "dead": tasks.raise_directive.enqueue("dead"),
        "cancelled": tasks.raise_directive.enqueue("cancel"),
        "own": tasks.kept_for_ever.enqueue(),
        "own dead": tasks.kept_for_ever.enqueue(fail=True),
    }
    run_jobs()
    return jobs


def left(jobs):
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
def test_what_is_past_its_retention_goes(finished, engine, days, kept):
    clock.shift_seconds = days * DAY
    Pruner().prune(engine)
    assert left(finished) == kept


@override_settings(PGQUEUE={"RETENTION": {"succeeded": "forever", "dead": 1}})
def test_the_settings_decide_for_tasks_without_a_retention_of_their_own(finished, engine):
    clock.shift_seconds = 100 * DAY
    Pruner().prune(engine)
    assert left(finished) == {"succeeded", "own"}


def test_the_command_says_what_it_would_remove_and_then_does(finished):
    clock.shift_seconds = 8 * DAY
    out = StringIO()
    call_command("pgqueue", "prune", "--dry-run", stdout=out)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["1", "succeeded", "all", "other", "tasks"] in lines
    assert left(finished) == set(finished)
    out = StringIO()
    call_command("pgqueue", "prune", stdout=out)
    assert "Deleted 3 finished jobs." in out.getvalue()


@pytest.fixture
def heap(committing, engine):
    """Puts finished jobs there that are past their retention, each with an execution; 1,000 of them are a batch."""

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
def pruned(monkeypatch):
    """Each prune statement that is sent: its task and state, and what it removed."""
    seen: list[tuple[str | None, str, int]] = []
    prune = lifecycle.prune

    def noting(connection, state, *args, **options):
        answer = prune(connection, state, *args, **options)
        seen.append((options["task_name"], state.value, answer.removed))
        return answer

    monkeypatch.setattr(lifecycle, "prune", noting)
    return seen


def test_a_round_goes_on_while_batches_are_full_and_each_kind_has_its_turn(heap, engine, pruned):
    heap(2500, "cancelled")
    heap(1500)
    pruner = Pruner()
    pruner.go_on(engine)
    assert pruner.under_way
    assert pruner.prune(engine) == 4000 - 1000  # a round of its own, to the end
    assert not pruner.under_way
    general = [(state, removed) for task, state, removed in pruned if task is None and removed]
    assert general == [
        ("cancelled", 1000),
        ("cancelled", 1000),
        ("succeeded", 1000),
        ("cancelled", 500),
        ("succeeded", 500),
    ]
    assert not Job.objects.exists()
    assert not Execution.objects.exists()


def test_a_round_with_nothing_to_remove_is_one_statement_for_each_kind(committing, engine, pruned):
    Pruner().go_on(engine)
    assert [one[:2] for one in pruned] == [(kind.task_name, kind.state.value) for kind in kinds()]


def test_marks_pass_over_what_somebody_holds_until_the_next_round(heap, engine, second):
    heap(2500)
    pruner = Pruner()
    with helpers.transaction(second):
        second.execute("SELECT id FROM pgqueue_execution ORDER BY id LIMIT 3 FOR UPDATE")
        assert pruner.prune(engine) == 2497
        mark = pruner._marks[None, State.SUCCEEDED]
        assert mark > Job.objects.latest("finished_at").finished_at
    assert pruner.prune(engine) == 3
    assert not Job.objects.exists()


def test_workers_that_prune_at_once_take_different_jobs_and_wait_for_nobody(heap, engine, second):
    heap(2500)
    with helpers.transaction(second):
        assert lifecycle.prune(second, State.SUCCEEDED, DAY).removed == 1000
        engine.statement_timeout_seconds = 2.0
        assert Pruner().prune(engine) == 1500
        second.execute("COMMIT")
    assert not Job.objects.exists()


def test_a_kind_that_fails_does_not_keep_the_others_from_their_turn(heap, engine, monkeypatch):
    heap(10, "dead")
    prune = lifecycle.prune

    def failing(connection, state, *args, **options):
        if state is State.CANCELLED:
            raise psycopg.errors.QueryCanceled
        return prune(connection, state, *args, **options)

    monkeypatch.setattr(lifecycle, "prune", failing)
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
    """Maintenance as a worker has it, of which nothing is due; it runs when started."""
    service = Maintenance(Link("default", "maintenance"))
    yield service
    service.stop()
    if service.ident:
        service.join(5)
    service.link.close()


def duty_of(maintenance, name):
    return next(duty for duty in maintenance.duties if duty.name == name)


def test_a_backlog_goes_in_one_go_and_rescue_comes_in_between(heap, maintenance, monkeypatch, caplog):
    heap(6000)
    removed_at_rescue = []
    monkeypatch.setattr(
        duty_of(maintenance, "rescue"), "function", lambda: removed_at_rescue.append(maintenance.pruner.removed)
    )
    prune = duty_of(maintenance, "prune")
    prune.due_at = 0.0
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        while prune.due_at < time.monotonic() + 1:  # it is due again in less than its interval of a minute
            prune.due_at = duty_of(maintenance, "rescue").due_at = 0.0
            maintenance.tick()
    assert removed_at_rescue == [0, 1000, 2000, 3000, 4000, 5000, 6000]
    assert not Job.objects.exists()
    assert caplog.messages == ["pruned 6000 finished jobs"]


def test_a_stop_ends_pruning_after_the_batch(heap, maintenance, monkeypatch):
    heap(4000)
    prune = lifecycle.prune

    def stopping(*args, **options):
        maintenance.stop()
        return prune(*args, **options)

    monkeypatch.setattr(lifecycle, "prune", stopping)
    duty_of(maintenance, "prune").due_at = 0.0
    maintenance.start()
    maintenance.join(5)
    assert not maintenance.is_alive()
    assert maintenance.pruner.removed <= 1000


@override_settings(PGQUEUE={"PRUNE_INTERVAL": 0.001})
def test_a_round_that_does_not_end_is_told_of_and_looks_at_the_other_kinds_again(heap, maintenance, pruned, caplog):
    heap(3000)
    prune = duty_of(maintenance, "prune")
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        for _ in range(3):
            prune.due_at = 0.0
            maintenance.tick()
    assert caplog.messages == ["pruned 1000 finished jobs"] * 3
    assert [state for task, state, _ in pruned if task is None] == ["cancelled", "dead", "succeeded"] * 3


@pytest.mark.parametrize(
    ("outcome", "at_least", "less_than"),
    [("all done", 2.0, 10.0), ("fails", 0.4, 1.0), ("more to do", 0.4, 1.0)],
)
def test_a_slow_duty_rests_ten_times_as_long_unless_it_failed_or_has_more_to_do(outcome, at_least, less_than):
    def slow():
        time.sleep(0.2)
        if outcome == "fails":
            raise OSError("the database is away")
        return outcome == "more to do"

    duty = Duty("slow", 60.0 if outcome == "more to do" else 0.5, slow)
    maintenance = Maintenance(Link("default", "maintenance"))
    maintenance.duties = [duty]
    duty.due_at = 0.0
    began = time.monotonic()
    with contextlib.suppress(OSError):
        maintenance.tick()
    assert at_least < duty.due_at - began < less_than


def test_holds_that_are_over_are_forgotten_all_of_them(maintenance, engine):
    helpers.enqueue_for_period(engine, *map(str, range(2500)), period_seconds=0.001)
    helpers.enqueue_for_period(engine, "held")
    holds = duty_of(maintenance, "holds")
    holds.due_at = 0.0
    while holds.due_at < time.monotonic() + 60:  # it goes on while there are more
        holds.due_at = 0.0
        maintenance.tick()
    assert helpers.scalar(engine, "SELECT string_agg(unique_key, '') FROM pgqueue_hold") == "held"


def test_a_look_for_lost_workers_that_was_answered_has_an_age(maintenance, monkeypatch):
    monkeypatch.setattr(module, "health_memory", HealthMemory())
    rescue = duty_of(maintenance, "rescue").function
    rescue()
    assert set(module.health_memory.ages_seconds.values()) == {None}, "too soon after a connect"
    maintenance.link.connected_at -= 3600.0
    rescue()
    assert 0 <= module.health_memory.ages_seconds["rescue"] < 60
