"""Schedules in random histories: no tick is fired twice, and each job has its tick.

Several workers fire the schedules that they have read, some of them long ago. In between, the clock moves forwards and
backwards, and schedules are paused, changed and cleaned up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_pgqueue.db import statements
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import schedules
from django_pgqueue.lifecycle import ticks as lifecycle_ticks
from django_pgqueue.lifecycle.enqueueing import NewJob
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.schedules import job_options, next_ticks
from django_pgqueue.worker.maintenance import firing, scheduler
from tests import helpers

pytestmark = pytest.mark.slow

START = datetime(2030, 1, 1, tzinfo=UTC)
EXPRESSIONS = st.sampled_from(["every 1 hour", "every 2 hours", "30 * * * *", "0 */3 * * *"])
CLEAR = tuple(f"DELETE FROM pgqueue_{table}" for table in ("job", "schedule", "schedulerun", "uniqueness_window"))
KEYS = {
    "b": helpers.new_job("b"),
    "c": helpers.new_job("c", 7200.0),
}
"""The jobs of the second schedule are unique while they wait, those of the third for two hours."""


@contextmanager
def raise_errors(schedule: Scheduled, *, is_over: bool = True) -> Iterator[None]:
    """Contain no error: none is expected here."""
    yield


class Schedules(RuleBasedStateMachine):
    """Three schedules and three workers. `self.fired` has every (schedule, tick) that was reported as fired."""

    engine: EngineConnection

    @initialize(
        missed=st.sampled_from(["skip", "latest", "all"]), if_running=st.sampled_from(["overlap", "skip", "queue"])
    )
    def begin(self, missed: str, if_running: str) -> None:
        statements.clock.shift_seconds = 0.0
        for statement in CLEAR:
            self.engine.execute(statement)
        self.fired: list[tuple[int, datetime]] = []
        self.read: dict[int, list[Scheduled]] = {}
        self.own = 0
        """How many jobs an operator started. `self.foreign` counts the jobs enqueued with a schedule's key."""
        self.foreign = 0
        self.now = START + timedelta(minutes=7)
        self.put_clock()
        options: dict[str, Any] = {"missed": missed, "if_running": if_running}
        for name, expression in (("a", "every 1 hour"), ("b", "30 * * * *"), ("c", "@hourly")):
            helpers.make_schedule(self.engine, name, expression=expression, **options)
        self.read_schedules(0)

    def teardown(self) -> None:
        statements.clock.shift_seconds = 0.0

    def next_job(self, connection: Connection, schedule: Scheduled, application: object = None) -> NewJob:
        return KEYS.get(schedule.name, helpers.new_job())

    def put_clock(self) -> None:
        real = helpers.scalar(self.engine, "SELECT statement_timestamp()")
        statements.clock.shift_seconds = (self.now - real).total_seconds()

    @rule(minutes=st.sampled_from([1, 20, 60, 60, 150, 24 * 60, -1, -60, -400, -24 * 60]))
    def time_goes(self, minutes: int) -> None:
        self.now = max(self.now + timedelta(minutes=minutes), START)
        self.put_clock()

    @rule(worker=st.integers(0, 2))
    def read_schedules(self, worker: int) -> None:
        self.read[worker] = schedules.read_schedules(self.engine)[1]

    @rule(worker=st.integers(0, 2))
    def work(self, worker: int) -> None:
        """Fire the schedules as this worker has read them, however long ago that was."""
        fire_many = lifecycle_ticks.fire_many

        def record(ticks, results):
            for tick in ticks:
                fired = results.get(tick.scheduled.schedule_id)
                if fired is not None and fired.what == "fired":
                    self.fired.append((tick.scheduled.schedule_id, tick.tick_at))
            return results

        with (
            mock.patch.object(lifecycle_ticks, "fire_many", lambda on, ticks: record(ticks, fire_many(on, ticks))),
            mock.patch.object(job_options, "next_job", self.next_job),
        ):
            enabled = [schedule for schedule in self.read.get(worker, []) if schedule.enabled]
            firing.fire_all(self.engine, enabled, job_options.IN_THIS_THREAD, raise_errors)

    @rule(data=st.data(), expression=EXPRESSIONS)
    def change(self, data: st.DataObject, expression: str) -> None:
        schedule = data.draw(st.sampled_from(schedules.read_schedules(self.engine)[1]))
        definition = helpers.definition(schedule.name, expression=expression, missed=schedule.missed)
        following_at = next_ticks.next_after(expression, "UTC", schedule.seen_at)
        assert schedules.change_schedule(
            self.engine, schedule.schedule_id, definition, revision=schedule.revision, next_run_at=following_at
        )

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        schedule = data.draw(st.sampled_from(schedules.read_schedules(self.engine)[1]))
        if schedule.enabled:
            assert schedules.pause_schedule(self.engine, schedule.schedule_id)
        else:
            following_at = next_ticks.next_after(schedule.expression, schedule.time_zone, schedule.seen_at)
            assert schedules.resume_schedule(self.engine, schedule.schedule_id, following_at)

    @rule(data=st.data())
    def run_now(self, data: st.DataObject) -> None:
        schedule = data.draw(st.sampled_from(schedules.read_schedules(self.engine)[1]))
        ran = lifecycle_ticks.run_schedule(self.engine, schedule, self.next_job(self.engine, schedule))
        self.own += ran is not None and ran.what == "fired"

    @rule()
    def enqueue(self) -> None:
        """Enqueue jobs with the keys of the schedules, if the keys are free."""
        others = [
            helpers.enqueue_unique(self.engine, "b"),
            *helpers.enqueue_for_period(self.engine, "c", period_seconds=7200.0),
        ]
        self.foreign += sum(added is not None for added in others)

    @rule()
    def finish(self) -> None:
        self.engine.execute("UPDATE pgqueue_job SET state = 'succeeded', finished_at = now()")

    @rule()
    def clean_up(self) -> None:
        """Prune old runs, but not the last ones. No tick that is removed can come again in these histories."""
        schedules.prune_schedule_runs(self.engine, scheduler.RUN_RETENTION_SECONDS, kept=scheduler.RUNS_KEPT)

    @invariant()
    def no_tick_is_fired_twice(self) -> None:
        if hasattr(self, "fired"):
            assert len(self.fired) == len(set(self.fired))
            jobs, keyed, runs, distinct = self.engine.execute(
                "SELECT (SELECT count(*) FROM pgqueue_job), (SELECT count(*) FROM pgqueue_job"
                " WHERE state = 'ready' AND unique_key IS NOT NULL), count(job_id), count(DISTINCT job_id)"
                " FROM pgqueue_schedulerun"
            ).fetchall()[0]
            assert jobs - self.foreign == runs == distinct == len(self.fired) + self.own
            assert keyed <= 1

    @invariant()
    def no_tick_is_fired_early(self) -> None:
        if hasattr(self, "fired"):
            early = "SELECT count(*) FROM pgqueue_schedulerun WHERE tick_at > fired_at"
            assert helpers.scalar(self.engine, early) == 0


@pytest.mark.promise("tick-any-order")
@pytest.mark.timeout(400)  # hundreds of histories, on a machine that may be busy
def test_schedules_any_order_of_actions_fires_no_tick_twice(engine):
    Schedules.engine = engine
    run_state_machine_as_test(Schedules, settings=settings(max_examples=settings().max_examples // 8))
