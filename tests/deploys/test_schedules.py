"""Test the schedules of two releases, whose workers run side by side as real processes."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.process

GIVEN = """
SELECT arguments->'args'->>0 FROM pgqueue_job
WHERE task_name = 'shop.tasks.sweep' AND arguments->'args'->>0 <> 'new' ORDER BY id DESC LIMIT 1
"""
"""The last argument that the schedule `sweep` enqueued. `polish` has the same task and enqueues "new" meanwhile."""
TICKS = """
SELECT schedule.name, count(*), count(DISTINCT tick_at), count(DISTINCT job_id),
       extract(epoch FROM max(tick_at) - min(tick_at))::int + 1
FROM pgqueue_schedulerun AS run JOIN pgqueue_schedule AS schedule ON schedule.id = run.schedule_id
GROUP BY schedule.name ORDER BY schedule.name
"""
RUNS = "SELECT count(*) FROM pgqueue_schedulerun"
NEWEST = "SELECT max(id) FROM pgqueue_job"


@pytest.mark.promise("schedule-old-and-new-code")
def test_schedules_old_and_new_workers_keep_new_definition(releases, deployed, monkeypatch):
    """Old workers must not restore their definition, and each tick must fire exactly once."""
    monkeypatch.setenv("SHOP_SCHEDULED", "1")
    deployment = deployed(releases.next)
    query = deployment.watcher.execute
    old = deployment.worker(releases.previous, SCHEDULE_INTERVAL=0.2)
    old.wait_until(lambda: query(GIVEN).fetchone() == ("earlier",))
    new = deployment.worker(releases.next, SCHEDULE_INTERVAL=0.2)
    new.wait_until(lambda: query(GIVEN).fetchone() == ("later",))
    [[newest]] = query(NEWEST).fetchall()
    old.send(signal.SIGTERM)
    assert old.exit_code() == 0, old.said
    restarted = deployment.worker(releases.previous, SCHEDULE_INTERVAL=0.2)
    restarted.wait_until_ready()
    [[runs]] = query(RUNS).fetchall()
    restarted.wait_until(lambda: query(RUNS).fetchone()[0] > runs + 9)
    new.send_all(signal.SIGKILL)
    [[runs]] = query(RUNS).fetchall()
    restarted.wait_until(lambda: query(RUNS).fetchone()[0] > runs + 9)
    since = "SELECT DISTINCT arguments->'args'->>0 FROM pgqueue_job WHERE id > %s AND task_name = 'shop.tasks.sweep'"
    assert sorted(query(since, [newest]).fetchall()) == [("later",), ("new",)]
    found = query(TICKS).fetchall()
    assert [name for name, *_ in found] == ["polish", "shop.tasks.retire", "sweep"]
    for name, runs, ticks, jobs, seconds in found:
        assert runs == ticks == jobs == seconds, name
