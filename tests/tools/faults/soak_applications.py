"""Faults of the soak that applications and operators cause: full log pipes, triggers, bad rows, double clicks."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import psycopg

from django_pgqueue.lifecycle import operator
from django_pgqueue.states import Seen
from tests.tools.faults.lives import BY_OPERATOR
from tests.tools.faults.soak_faults import injectable

if TYPE_CHECKING:
    from tests.tools.faults.soak import Crew

MUFFLED: Final = (sys.executable, "-m", "tests.tools.faults.muffled")
STOP_SECONDS: Final = 20.0
BAD_CALLS: Final = (
    ("gone.task", '{"args": [], "kwargs": {}}'),
    ("tests.tools.faults.app.tasks.plain", "[1]"),
    ("tests.tools.faults.app.tasks.plain", '{"args": [1, 2, 3, 4, 5], "kwargs": {}}'),
)
REFUSE: Final = """
CREATE OR REPLACE FUNCTION fault_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state AND OLD.state = 'running' AND OLD.id % 7 = {} THEN
        RAISE EXCEPTION 'the application refuses job %', OLD.id USING ERRCODE = '{}';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER fault_refuse BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION fault_refuse();
"""
ACCEPT: Final = "DROP TRIGGER IF EXISTS fault_refuse ON pgqueue_job"


@injectable
def log_pipe_full(crew: Crew) -> None:
    """Start a worker whose log nobody reads, let it work, and stop it: it must end in time."""
    worker = crew.run.worker("--processes", "1", prefix=MUFFLED, ready=False)
    worker.wait_for_child()
    time.sleep(crew.chance.uniform(2, 6))
    code = crew.run.stop(worker, within=STOP_SECONDS)
    crew.run.note("muffled", code=code)


@injectable
def completions_refused(crew: Crew) -> None:
    """Have a trigger of the application refuse every change of some running jobs for a while."""
    with contextlib.suppress(psycopg.errors.DeadlockDetected):
        code = crew.chance.choice(["P0001", "54000", "42501", "23514"])
        crew.run.sql(REFUSE.format(crew.chance.randrange(7), code))
    time.sleep(crew.chance.uniform(0.5, 4))
    _accept(crew)


def _accept(crew: Crew) -> None:
    while True:
        try:
            crew.run.sql(ACCEPT)
        except (psycopg.errors.DeadlockDetected, psycopg.OperationalError):
            time.sleep(0.1)
        else:
            return


@injectable
def rows_by_hand(crew: Crew) -> None:
    """Insert jobs that no worker can run: an unknown task, arguments of another shape, a counter at its end."""
    for task_name, arguments in BAD_CALLS:
        [[job_id]] = crew.run.sql(
            "INSERT INTO pgqueue_job (task_name, arguments, queue_name, priority, max_attempts, enqueued_at, run_after)"
            " VALUES (%s, %s, 'default', 0, 2, now(), now()) RETURNING id",
            [task_name, arguments],
        )
        crew.run.note(BY_OPERATOR, act="sql", jobs=[job_id])
        crew.unrunnable.append(job_id)


def end_unrunnable(crew: Crew) -> None:
    """Cancel the jobs that nobody can run; by itself such a job would be dead only after an hour."""
    crew.run.act("cancel", crew.unrunnable)


@injectable
def two_operators(crew: Crew) -> None:
    """Have two people retry the same finished jobs at the same moment: each job runs again once at the most."""
    rows = crew.run.sql(
        "SELECT id, state, finished_at FROM pgqueue_job WHERE state = 'dead' ORDER BY random() LIMIT 20"
    )
    shown = {job_id: Seen(state, finished_at) for job_id, state, finished_at in rows}  # on both screens
    if not shown:
        return
    crew.run.note(BY_OPERATOR, act="retry", jobs=list(shown))
    retried: list[int] = []

    def press() -> None:
        with crew.run.connect() as session:
            retried.extend(operator.retry(session, list(shown), seen=shown))

    people = [threading.Thread(target=press) for _ in range(2)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    twice = sorted({job for job in retried if retried.count(job) > 1})
    crew.run.note("retried", jobs=retried)
    assert not twice, f"jobs {twice} were retried by both"
