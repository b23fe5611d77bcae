"""Test tasks that differ between two releases, whose workers and applications run side by side as real processes."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.process

JOBS = """
SELECT job.task_name, job.state, job.attempt, array_agg(execution.outcome ORDER BY execution.id)
FROM pgqueue_job AS job LEFT JOIN pgqueue_execution AS execution ON execution.job_id = job.id
GROUP BY job.id ORDER BY job.id
"""
DELAYS = """
SELECT extract(epoch FROM job.run_after - execution.finished_at)::float8, execution.error
FROM pgqueue_execution AS execution JOIN pgqueue_job AS job ON job.id = execution.job_id ORDER BY job.id
"""
DUE_LATER = "SELECT count(*) FROM pgqueue_job WHERE run_after > statement_timestamp()"
HURRY = 'Job.objects.filter(state="ready", unknown_since__isnull=False).run_now()'
"""The step of docs/production/upgrading.md for the time after the last old worker has stopped."""


@pytest.mark.promise("new-jobs-wait-for-new-worker")
def test_new_jobs_on_old_worker_wait_uncounted_for_new_worker(releases, deployed):
    deployment = deployed(releases.next)
    old = deployment.worker(releases.previous)
    old.wait_until_ready()
    deployment.run(releases.next, 'wrap.enqueue(path); greet.enqueue(path, person="Ada"); send_invoice.enqueue(path)')
    released = "SELECT count(*) FROM pgqueue_job WHERE unknown_since IS NOT NULL AND state = 'ready'"
    old.wait_until(lambda: deployment.watcher.execute(released).fetchone() == (3,))
    delays = deployment.watcher.execute(DELAYS).fetchall()
    assert [delay for delay, _ in delays] == [15.0] * 3
    for (_, error), reason in zip(delays, ("has no task", "arguments do not fit", "has no task"), strict=True):
        assert reason in error
    assert deployment.lines() == [], "the old worker must not call the function of a task"
    new = deployment.worker(releases.next)
    new.wait_until_ready()
    old.send(signal.SIGTERM)
    assert old.exit_code() == 0, old.said
    deployment.run(releases.next, HURRY)
    assert deployment.watcher.execute(DUE_LATER).fetchone() == (0,)
    new.wait_until(lambda: deployment.counts() == {"succeeded": 3})
    assert deployment.watcher.execute(JOBS).fetchall() == [
        (name, "succeeded", 1, ["released", "succeeded"])
        for name in ("shop.tasks.wrap", "shop.tasks.greet", "shop.tasks.send_invoice")
    ]
    assert sorted(deployment.lines()) == ["greet-Ada next", "send_invoice next", "wrap next"]


@pytest.mark.promise("old-jobs-run-or-die-with-reason")
def test_old_jobs_on_new_worker_run_or_become_dead(releases, deployed):
    """One job runs by an alias and one by a default value. The third does not fit and is dead after its time."""
    deployment = deployed(releases.next)
    deployment.run(releases.previous, 'send_bill.enqueue(path); paint.enqueue(path); greet.enqueue(path, name="Ada")')
    new = deployment.worker(releases.next, UNKNOWN_TASK_LIMIT=0.2)
    new.wait_until(lambda: deployment.counts() == {"succeeded": 2, "ready": 1})
    waited = "SELECT statement_timestamp() - unknown_since > interval '0.2 s' FROM pgqueue_job WHERE state = 'ready'"
    new.wait_until(lambda: deployment.watcher.execute(waited).fetchone() == (True,))
    deployment.run(releases.next, HURRY)
    new.wait_until(lambda: deployment.counts() == {"succeeded": 2, "dead": 1})
    assert deployment.watcher.execute(JOBS).fetchall() == [
        ("shop.tasks.send_bill", "succeeded", 1, ["succeeded"]),
        ("shop.tasks.paint", "succeeded", 1, ["succeeded"]),
        ("shop.tasks.greet", "dead", 1, ["released", "failed"]),
    ]
    assert sorted(deployment.lines()) == ["paint-red next", "send_invoice next"]
