"""Test rows that a program added by SQL with the chunk key of another task: they never run as jobs of that task."""

from __future__ import annotations

import json

import pytest
from django.db import connection

from django_pgqueue import Limit
from django_pgqueue.lifecycle import pauses
from django_pgqueue.lifecycle.types import Lane
from django_pgqueue.models import Job
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks as app_tasks
from tests.worker.test_fetcher import make_fetcher, take

from . import tasks
from .test_claims import KEY, LANE, add, claim, ids

__all__ = ["make_fetcher"]

INSERT = (
    "INSERT INTO pgqueue_job (task_name, arguments, limit_key, run_after) "
    "VALUES (%s, %s, %s, statement_timestamp() + make_interval(secs => %s)) RETURNING id"
)
ADD = app_tasks.add.name


def add_odd(session, task_name=ADD, *, args=(1,), key=KEY, delay=-60.0):
    """Add a row of a task with the chunk key of another one, which comes first by its due time."""
    call = json.dumps({"args": args, "kwargs": {}})
    with session.cursor() as cursor:
        cursor.execute(INSERT, [task_name, call, key, delay])
        return cursor.fetchone()[0]


def add_large(session, size):
    """Add a row of the chunk's own task that has more arguments than a worker reads, unless `size` is small."""
    return add_odd(session, tasks.double.name, args=["x" * size])


def state_of(job_id):
    job = Job.objects.get(pk=job_id)
    return job.state, job.result


@pytest.mark.django_db
class TestClaim:
    def test_odd_row_that_comes_first_is_claimed_alone(self):
        jobs = add(connection, 3)
        odd = add_odd(connection)
        first = claim(connection)
        assert (ids(first), first.first.task_name, first.first.others) == ([odd], ADD, None)
        assert ids(claim(connection)) == jobs

    def test_chunk_ends_before_an_odd_row(self):
        before = add(connection, 2, delay=-90.0)
        odd, behind = add_odd(connection), add(connection, 2)
        assert [ids(claim(connection, 9)) for _ in range(3)] == [before, [odd], behind]

    def test_odd_row_does_not_let_a_waiting_chunk_start(self):
        jobs = add(connection, 2)
        odd = add_odd(connection)
        assert ids(claim(connection, wait=30.0)) == [odd]
        assert claim(connection, wait=30.0).first is None
        assert ids(claim(connection)) == jobs

    def test_odd_row_of_a_paused_task_is_left_out(self):
        jobs = add(connection, 3)
        add_odd(connection)
        assert ids(claim(connection, paused_tasks=[ADD])) == jobs


@pytest.mark.django_db
class TestRun:
    @pytest.mark.promise("large-rows")
    def test_row_with_too_large_arguments_ends_alone(self):
        large, jobs = add_large(connection, 2 * get_settings().most_stored_bytes), add(connection, 2)
        assert run_jobs() == 3
        assert (state_of(large), tasks.seen) == (("dead", None), [[1, 2]])
        assert [state_of(job) for job in jobs] == [("succeeded", 2), ("succeeded", 4)]

    @pytest.mark.promise("row-runs-its-own-task")
    def test_odd_row_runs_as_a_job_of_its_own_task(self):
        odd = add_odd(connection, args=[20, 3])
        jobs = add(connection, 4)
        assert run_jobs() == 5
        assert state_of(odd) == ("succeeded", 23)
        assert tasks.seen == [[1, 2, 3], [4]]
        assert [state_of(job) for job in jobs] == [("succeeded", 2 * number) for number in (1, 2, 3, 4)]

    def test_odd_row_of_another_task_with_chunk_runs_alone(self):
        odd = [add_odd(connection, tasks.on_loop.name, args=[number]) for number in (5, 6)]
        jobs = add(connection, 2)
        run_jobs()
        assert tasks.seen == [[5], [6], [1, 2]]
        assert [state_of(job)[1] for job in [*odd, *jobs]] == [-5, -6, 2, 4]

    def test_odd_row_of_an_unknown_task_is_released_alone(self):
        odd = add_odd(connection, "nobody.knows")
        jobs = add(connection, 3)
        run_jobs()
        job = Job.objects.get(pk=odd)
        assert (job.state, job.attempt, job.executions.get().outcome) == ("ready", 0, "released")
        assert "no task named 'nobody.knows'" in job.executions.get().error
        assert [state_of(job)[0] for job in jobs] == ["succeeded"] * 3

    def test_odd_row_of_an_async_task_runs_as_its_own_task(self):
        odd = add_odd(connection, app_tasks.async_add.name, args=[1])
        jobs = add(connection, 1)
        run_jobs()
        assert [state_of(job)[0] for job in [odd, *jobs]] == ["succeeded"] * 2
        assert tasks.seen == [[1]]

    def test_row_with_a_former_name_runs_with_the_task(self):
        """The key of one name and the other name of the task: the row runs alone, in the same function."""
        odd = add_odd(connection, "chunks.former", key="+chunks.renamed")
        run_jobs()
        assert state_of(odd)[0] == "succeeded"


@pytest.mark.promise("row-runs-its-own-task")
@pytest.mark.django_db
def test_rows_with_the_key_of_a_foreign_limit_run_in_own_task(monkeypatch):
    """The row decides which limit admits it. The task of a row decides which function runs."""
    monkeypatch.setattr(registry, "_limits", {"odd": Limit("odd", concurrency=1)})
    of_chunk = add_odd(connection, tasks.double.name, args=[4], key="odd")
    plain = add_odd(connection, args=[4, 3], key="odd")
    run_jobs()
    assert [state_of(job) for job in (of_chunk, plain)] == [("succeeded", 8), ("succeeded", 7)]


def test_odd_row_moves_only_the_cursor_of_its_lane(engine, make_fetcher):
    odd = add_odd(engine)
    add(engine, 1)
    fetcher = make_fetcher(capacity=1)
    fetcher.tick()
    [claimed] = take(fetcher)
    assert claimed.job_id == odd
    assert Lane("default", 0) not in fetcher.lanes._cursors
    assert fetcher.lanes._cursors[LANE].job_id == odd


def test_paused_odd_row_does_not_stop_the_lane(engine, make_fetcher):
    add_odd(engine)
    jobs = add(engine, 3)
    pauses.pause(engine, Pausable.TASK, ADD)
    fetcher = make_fetcher()
    fetcher.tick()
    assert [member.job_id for job in take(fetcher) for member in job.members] == jobs


def test_odd_row_that_cannot_be_claimed_is_set_aside_alone(engine, make_fetcher):
    odd, jobs = add_odd(engine), add(engine, 3)
    fetcher = make_fetcher()
    claimed = []
    with helpers.users_trigger(engine, f"OLD.id = {odd} AND NEW.state = 'running'"):
        for _ in range(8):
            fetcher.tick()
            claimed += [member.job_id for job in take(fetcher) for member in job.members]
    assert claimed == jobs


def test_until_empty_leaves_a_paused_odd_row(engine, make_fetcher):
    add_odd(engine)
    pauses.pause(engine, Pausable.TASK, ADD)
    fetcher = make_fetcher()
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.empty_scans >= 2)[1])
    assert not fetcher.pool.submitted
