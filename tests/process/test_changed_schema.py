"""Real workers survive changes of the tables beside them, and blame no job for a failure of everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.models import Job
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.process

TYPES = {"task_name": 'varchar(100) COLLATE "C"', "attempt": "smallint"}
LATE = "SELECT min(run_after) < now() - interval '4 s' FROM pgqueue_job WHERE state = 'ready'"
OTHER_TYPES = {"task_name": 'varchar(120) COLLATE "C"', "attempt": "integer"}


def count(state: str) -> int:
    return Job.objects.filter(state=state).count()


def warm_up(worker) -> None:
    """Let the worker prepare its statements."""
    for number in range(1, 9):
        tasks.noop.enqueue()
        worker.wait_until(lambda number=number: count("succeeded") == number)


@contextlib.contextmanager
def other_type(engine: EngineConnection, column: str) -> Iterator[None]:
    """Give a column of the jobs another type, and its own type at the end."""
    engine.execute(f"ALTER TABLE pgqueue_job ALTER {column} TYPE {OTHER_TYPES[column]}")
    try:
        yield
    finally:
        engine.execute(f"ALTER TABLE pgqueue_job ALTER {column} TYPE {TYPES[column]}")


@pytest.mark.promise("failure-of-all-claims-blames-no-job")
@pytest.mark.parametrize("column", ["task_name", "attempt"])
def test_worker_column_type_changed_runs_all_jobs(start, engine, column):
    worker = start()
    warm_up(worker)
    with other_type(engine, column):
        for _ in range(3):
            tasks.noop.enqueue_many(((), {}) for _ in range(20))
            tasks.noop.enqueue()
        worker.wait_until(lambda: count("succeeded") == 8 + 63, 60)
    for _ in range(5):
        tasks.noop.enqueue()
    worker.wait_until(lambda: count("succeeded") == 8 + 63 + 5, 60)
    assert "cached plan" not in worker.said, "nobody must see that a prepared statement was outdated"


@pytest.mark.promise("failure-of-all-claims-blames-no-job")
def test_worker_column_gone_for_a_while_runs_all_jobs(start, engine):
    """Without the column, every claim fails. A renamed column returns exactly as it was."""
    worker = start()
    warm_up(worker)
    tasks.noop.using(run_after=timedelta(seconds=1)).enqueue_many(((), {}) for _ in range(20))
    engine.execute("ALTER TABLE pgqueue_job RENAME headers TO gone")
    try:
        worker.wait_until(lambda: "will be retried" in worker.said, 60)
        worker.wait_until(lambda: helpers.scalar(engine, LATE))
        assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state = 'dead'") == 0
    finally:
        engine.execute("ALTER TABLE pgqueue_job RENAME gone TO headers")
    worker.wait_until(lambda: count("succeeded") == 8 + 20, 90)
    assert count("dead") == 0


@pytest.mark.promise("failure-of-all-claims-blames-no-job", "failure-of-all-completions-blames-no-job")
@pytest.mark.parametrize("when", ["NEW.state = 'running'", "NEW.state = 'succeeded'"])
def test_worker_table_of_trigger_gone_runs_all_jobs(start, engine, when):
    worker = start()
    warm_up(worker)
    engine.execute("CREATE TABLE users_audit (job_id bigint)")
    engine.execute(
        "CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF {when} THEN INSERT INTO users_audit VALUES (NEW.id); END IF; RETURN NEW; END$$"
    )
    engine.execute("CREATE TRIGGER users_rule BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION users_rule()")
    try:
        tasks.noop.enqueue()
        worker.wait_until(lambda: count("succeeded") == 9)
        engine.execute("DROP TABLE users_audit")
        tasks.noop.enqueue_many(((), {}) for _ in range(20))
        said = "will be retried" if "running" in when else "the database refuses the results of"
        worker.wait_until(lambda: said in worker.said, 60)
        assert count("dead") == 0
        engine.execute("CREATE TABLE users_audit (job_id bigint)")
        worker.wait_until(lambda: count("succeeded") == 9 + 20, 90)
        assert count("dead") == 0
    finally:
        engine.execute("DROP FUNCTION users_rule CASCADE")
        engine.execute("DROP TABLE IF EXISTS users_audit")


@pytest.mark.promise("bad-row-claims")
def test_worker_trigger_refuses_one_job_only_it_is_dead(start, engine):
    worker = start()
    worker.wait_until_ready()
    with helpers.users_trigger(engine, "NEW.queue_name = 'bad' AND NEW.state = 'running'", "42P01"):
        bad = tasks.noop.using(queue_name="bad").enqueue()
        worker.wait_until(lambda: f"the claim of job {bad.pk} was refused" in worker.said)
        assert Job.objects.get(pk=bad.pk).state == "ready", "no other job shows that only this one is refused"
        for _ in range(3):
            tasks.noop.enqueue()
        worker.wait_until(lambda: (count("succeeded"), count("dead")) == (3, 1))
    assert Job.objects.get(state="dead").pk == bad.pk
