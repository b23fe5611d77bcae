"""Schedules in random histories: several workers with what they have read, some of it long ago; a clock that goes where
it likes; pauses, changes, clean-up. However it goes, no tick is fired twice, and each job has its tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_pgqueue import lifecycle
from django_pgqueue.db import statements
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import Scheduled
from django_pgqueue.schedules import expressions, job_options
from django_pgqueue.worker.maintenance import scheduler
from tests import helpers

START = datetime(2030, 1, 1, tzinfo=UTC)
EXPRESSIONS = st.sampled_from(["every 1 hour", "every 2 hours", "30 * * * *", "0 */3 * * *"])
CLEAR = tuple(f"DELETE FROM pgqueue_{table}" for table in ("job", "schedule", "schedulerun", "hold"))
KEYS = {
    "b": lifecycle.JobOptions("default", 0, 1, unique_key="b", task_name=helpers.NOOP),
    "c": lifecycle.JobOptions("default", 0, 1, unique_key="c", task_name=helpers.NOOP, period_seconds=7200.0),
}
"""The second schedule's jobs are unique while they wait, the third's for two hours."""


class Schedules(RuleBasedStateMachine):
    """Three schedules, three workers. `self.fired` is every (schedule, tick) that a worker was told it had fired."""

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
        """Jobs that an operator had made; `self.foreign` were enqueued with the key of a schedule."""
        self.foreign = 0
        self.now = START + timedelta(minutes=7)
        self.put_clock()
        options: dict[str, Any] = {"missed": missed, "if_running": if_running}
        for name, expression in (("a", "every 1 hour"), ("b", "30 * * * *"), ("c", "@hourly")):
            helpers.make_schedule(self.engine, name, expression=expression, **options)
        self.look(0)

    def teardown(self) -> None:
        statements.clock.shift_seconds = 0.0

    def options(self, connection: Connection, one: Scheduled, application: object = None) -> lifecycle.JobOptions:
        return KEYS.get(one.name, lifecycle.JobOptions("default", 0, 1))

    def put_clock(self) -> None:
        real = helpers.scalar(self.engine, "SELECT statement_timestamp()")
        statements.clock.shift_seconds = (self.now - real).total_seconds()

    @rule(minutes=st.sampled_from([1, 20, 60, 60, 150, 24 * 60, -1, -60, -400, -24 * 60]))
    def time_goes(self, minutes: int) -> None:
        self.now = max(self.now + timedelta(minutes=minutes), START)
        self.put_clock()

    @rule(worker=st.integers(0, 2))
    def look(self, worker: int) -> None:
        self.read[worker] = lifecycle.read_schedules(self.engine)[1]

    @rule(worker=st.integers(0, 2))
    def work(self, worker: int) -> None:
        """Fire by what this worker has read, be it as old as it may."""
        fire = lifecycle.fire

        def noting(connection, one, *, tick_at, **options):
            fired = fire(connection, one, tick_at=tick_at, **options)
            if fired is not None and fired.what == "fired":
                self.fired.append((one.schedule_id, tick_at))
            return fired

        with mock.patch.object(lifecycle, "fire", noting), mock.patch.object(job_options, "options_of", self.options):
            for one in self.read.get(worker, []):
                if one.enabled:
                    scheduler.fire_due(self.engine, one)

    @rule(data=st.data(), expression=EXPRESSIONS)
    def change(self, data: st.DataObject, expression: str) -> None:
        one = data.draw(st.sampled_from(lifecycle.read_schedules(self.engine)[1]))
        definition = helpers.definition(one.name, expression=expression, missed=one.missed)
        following_at = expressions.next_after(expression, "UTC", one.seen_at)
        assert lifecycle.change_schedule(
            self.engine, one.schedule_id, definition, revision=one.revision, next_run_at=following_at
        )

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(lifecycle.read_schedules(self.engine)[1]))
        if one.enabled:
            assert lifecycle.pause_schedule(self.engine, one.schedule_id)
        else:
            following_at = expressions.next_after(one.expression, one.time_zone, one.seen_at)
            assert lifecycle.resume_schedule(self.engine, one.schedule_id, following_at)

    @rule(data=st.data())
    def run_now(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(lifecycle.read_schedules(self.engine)[1]))
        ran = lifecycle.run_schedule(self.engine, one, self.options(self.engine, one))
        self.own += ran is not None and ran.what == "fired"

    @rule()
    def enqueue(self) -> None:
        """Take the keys of the schedules, if they are free."""
        others = [
            helpers.enqueue_unique(self.engine, "b"),
            *helpers.enqueue_for_period(self.engine, "c", period_seconds=7200.0),
        ]
        self.foreign += sum(one is not None for one in others)

    @rule()
    def finish(self) -> None:
        self.engine.execute("UPDATE pgqueue_job SET state = 'succeeded', finished_at = now()")

    @rule()
    def clean_up(self) -> None:
        """Only what is old, and not the last ones: nothing that could come again in these histories."""
        lifecycle.prune_schedule_runs(self.engine, scheduler.RUN_RETENTION_SECONDS, kept=scheduler.RUNS_KEPT)

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
    def none_is_fired_before_its_time(self) -> None:
        if hasattr(self, "fired"):
            early = "SELECT count(*) FROM pgqueue_schedulerun WHERE tick_at > fired_at"
            assert helpers.scalar(self.engine, early) == 0


@pytest.mark.promise("tick-any-order")
@pytest.mark.timeout(400)  # hundreds of histories, on a machine that may be busy
def test_whatever_is_done_in_whatever_order_no_tick_is_fired_twice(engine):
    Schedules.engine = engine
    run_state_machine_as_test(Schedules, settings=settings(max_examples=settings().max_examples // 8))
