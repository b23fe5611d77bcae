"""Schedules of a scenario: rows as the admin makes them, whose jobs say by their tags that a schedule made them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django_pgqueue.lifecycle import schedules
from django_pgqueue.lifecycle.schedules import Definition
from django_pgqueue.schedules import next_ticks
from tests import helpers
from tests.tools.faults.invariants_asked import FROM_SCHEDULE
from tests.tools.faults.run import TASKS, Run


def add(run: Run, name: str, expression: str, **changes: Any) -> int:
    """Add a schedule of the suite's `plain`, from its next tick on; return its id."""
    seen_at, _ = schedules.read_schedules(run.connection)
    one = definition(name, expression, **changes)
    next_run_at = next_ticks.next_after(expression, one.time_zone, seen_at)
    made = schedules.add_schedule(run.connection, one, origin="admin", next_run_at=next_run_at)
    assert made is not None, name
    return made


def definition(name: str, expression: str, **changes: Any) -> Definition:
    """What such a schedule is."""
    arguments = json.dumps({"args": [], "kwargs": {"tag": f"{FROM_SCHEDULE}{name}"}})
    return helpers.definition(
        name, **{"task_name": TASKS + "plain", "expression": expression, "arguments": arguments} | changes
    )


def of(run: Run, schedule_id: int) -> list[datetime]:
    """The ticks of a schedule that have a job, in their order."""
    rows = run.sql(
        "SELECT tick_at FROM pgqueue_schedulerun WHERE schedule_id = %s AND job_id IS NOT NULL ORDER BY 1",
        [schedule_id],
    )
    return [row[0] for row in rows]


def next_of(run: Run, schedule_id: int) -> datetime:
    """When a schedule runs next."""
    return helpers.schedule_of(run.connection, schedule_id).next_run_at


def stop(run: Run, schedule_id: int) -> list[datetime]:
    """Fire no more, and wait for all that was; return the ticks."""
    assert schedules.pause_schedule(run.connection, schedule_id)
    run.wait_until_done()
    return of(run, schedule_id)


def latest_seconds(run: Run) -> float:
    """How long after its time a tick was fired, at the most."""
    late: timedelta = run.scalar("SELECT max(fired_at - tick_at) FROM pgqueue_schedulerun")
    return late.total_seconds()
