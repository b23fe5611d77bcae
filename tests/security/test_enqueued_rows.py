"""Test what the role that may only enqueue can do to the jobs of others: its rows run as what their own task says."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests import helpers
from tests.app import tasks as app_tasks
from tests.chunks import tasks as chunk_tasks

INSERT = (
    "INSERT INTO pgqueue_job (task_name, arguments, limit_key, run_after, batch_id) "
    "VALUES (%s, %s, %s, now() - make_interval(secs => %s), %s) RETURNING id"
)
ENDED = "SELECT count(*) FROM pgqueue_job WHERE state = 'succeeded'"


def insert(session, task_name, args, key, seconds_ago, batch_id=None):
    [[job_id]] = session.execute(INSERT, [task_name, f'{{"args": {args}, "kwargs": {{}}}}', key, seconds_ago, batch_id])
    return job_id


@pytest.mark.promise("row-runs-its-own-task")
@pytest.mark.process
def test_enqueuer_role_chunk_key_of_another_task_changes_no_job(superuser, as_role, start_as):
    """The row of `add` comes first in the chunks of `double`. Both tasks get their own jobs only."""
    with as_role("enqueuer"), closing(helpers.connect()) as session:
        doubles = [
            insert(session, chunk_tasks.double.name, [number], "+" + chunk_tasks.double.name, 0) for number in range(20)
        ]
        odd = insert(session, app_tasks.add.name, [20, 3], "+" + chunk_tasks.double.name, 3600)
        lost_batch = insert(session, app_tasks.add.name, [1, 1], None, 0, batch_id=4711)
    worker = start_as("worker", "--concurrency", "2", TASK_MODULES=[chunk_tasks.__name__])
    worker.wait_until(lambda: helpers.scalar(superuser, ENDED) == 22)
    results = dict(superuser.execute("SELECT id, result FROM pgqueue_job").fetchall())
    assert results == {job: 2 * number for number, job in enumerate(doubles)} | {odd: 23, lost_batch: 2}
