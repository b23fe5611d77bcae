"""Tasks that differ between two releases, whose workers and applications run side by side as real processes."""

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
"""What docs/production/upgrading.md says to do when the last old worker is gone."""


@pytest.mark.promise("new-jobs-wait-for-new-worker")
def test_what_the_new_code_enqueues_waits_uncounted_for_a_new_worker(releases, deployed):
    deployment = deployed(releases.next)
    old = deployment.worker(releases.previous)
    old.wait_until_ready()
    deployment.run(releases.next, 'wrap.enqueue(path); greet.enqueue(path, person="Ada"); send_invoice.enqueue(path)')
    given_back = "SELECT count(*) FROM pgqueue_job WHERE unknown_since IS NOT NULL AND state = 'ready'"
    old.wait_until(lambda: deployment.watcher.execute(given_back).fetchone() == (3,))
    delays = deployment.watcher.execute(DELAYS).fetchall()
    assert [delay for delay, _ in delays] == [15.0] * 3
    for (_, error), why in zip(delays, ("has no task", "arguments do not fit", "has no task"), strict=True):
        assert why in error
    assert deployment.lines() == [], "an old worker has entered a function"
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
def test_what_the_old_code_enqueued_runs_by_an_alias_and_by_defaults_and_else_is_dead_after_its_time(
    releases, deployed
):
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
