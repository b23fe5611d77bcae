"""Durable steps, events and compensations against a model: after each random transition, all rows must match the model.

A Hypothesis state machine lets attempts store steps, sleep, wait for events and end in every way. Lost attempts go on
as well, and must store nothing. An event is sent before, while or after a job is suspended for it. The sender and the
completer look for each other, or are killed before that and leave it to the sweep. `step_model` says what each
transition has to do. In addition, the machine checks what durable steps promise: after a sweep, no job waits whose
event has come, steps are undone in reverse order, one after another, and no job with a pending compensation is removed.

CI runs 50 examples. For a long run, use `pytest tests/test_stateful_steps.py --stateful-examples 10000`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from django_pgqueue import lifecycle
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import clock
from django_pgqueue.lifecycle import Cancelled, ExecutionKey, Lane, Released, TransitionStatus, events, sagas, steps
from django_pgqueue.lifecycle.steps import EndedStep, SuspendedExecution, SweepMark
from django_pgqueue.states import FINISHED, State, StepKind
from django_pgqueue.steps import FOREVER_SECONDS, Suspension
from tests import helpers
from tests.step_model import EVENT, Job, Model, Step

pytestmark = pytest.mark.slow

TICK = 1000.0
FOREVER = int(FOREVER_SECONDS / TICK)
POSITIONS = {name: float(place) for place, name in enumerate(["a", "b", "c", "nap", *(f"wait{n}" for n in range(9))])}
"""The steps of every job, in their order. The first three can be undone."""
KEYS = st.sampled_from("xy")
JOB = st.tuples(st.sampled_from(["u", None]), st.sampled_from([None, 1, 2]))
"""The unique key of a job, and the ticks until it expires."""
ENDINGS = st.sampled_from(["succeed", "succeed", "die", "die", "die", "fail", "release", "stop"])
UNDO: dict[str, Any] = {"task_name": helpers.NOOP, "queue_name": "undo", "priority": 0, "max_attempts": 3}
TICKS = "floor(extract(epoch FROM {} - %(start)s) / 1000)::int"
JOBS = f"""
SELECT id, queue_name, state, {TICKS.format("run_after")}, {TICKS.format("expires_at")},
       {TICKS.format("finished_at")}, cancel_requested_at IS NOT NULL, unique_key
FROM pgqueue_job ORDER BY id
"""
STEPS = """
SELECT job_id, name, finished_at IS NOT NULL, event_key, event_id, tries, compensation IS NOT NULL, compensation_id
FROM pgqueue_step ORDER BY job_id, name
"""


class Steps(RuleBasedStateMachine):
    """The rules. `self.open` has the open executions with the ticks at which their leases end."""

    engine: EngineConnection

    @initialize(jobs=st.lists(JOB, min_size=2, max_size=3))
    def begin(self, jobs: list[tuple[str | None, int | None]]) -> None:
        clock.shift_seconds = 0.0
        helpers.clear_tables(self.engine)
        self.engine.execute("DELETE FROM pgqueue_step; DELETE FROM pgqueue_event")
        self.start = helpers.scalar(self.engine, "SELECT statement_timestamp()")
        self.model = Model()
        self.keys: dict[int, tuple[ExecutionKey, int]] = {}
        self.open: dict[int, int] = {}
        for job in jobs:
            self.enqueue(job)
        self.claim(3, 2)

    def teardown(self) -> None:
        clock.shift_seconds = 0.0

    # ------------------------------------------------------------------ the application

    @rule(job=JOB)
    def enqueue(self, job: tuple[str | None, int | None]) -> None:
        """Enqueue a job. With a unique key, it replaces the call of a ready job, also of a suspended one."""
        unique, ticks = job
        now, holder = self.model.now, self.model.holder(unique)
        expires = {"expires_seconds": ticks and ticks * TICK}
        if unique is None:
            added = helpers.make_job(self.engine, **expires)
        else:
            enqueued = helpers.enqueue_unique(self.engine, unique, replace=True, **expires)
            if holder is not None and holder.state is State.RUNNING:
                assert enqueued is None
                return
            added = enqueued.job_id
        assert holder is None or added == holder.id
        self.model.jobs[added] = Job(added, now, unique, ticks and now + ticks)

    @rule(key=KEYS, is_killed=st.booleans())
    def send(self, key: str, is_killed: bool) -> None:
        """Send an event. Then the sender wakes the jobs that wait for it, or it is killed."""
        event_id = events.send_event(self.engine, EVENT, key, None)
        self.model.events[event_id] = key
        if not is_killed:
            woken = self.model.wake(self.model.sleepers(key))
            assert lifecycle.wake(self.engine, EVENT, key) == (woken, None)

    # ------------------------------------------------------------------ attempts

    @rule(count=st.integers(1, 4), lease=st.integers(0, 2))
    def claim(self, count: int, lease: int) -> None:
        due = {job.id for job in self.model.jobs.values() if job.state is State.READY and job.due <= self.model.now}
        lanes = helpers.DEFAULT_LANE, Lane("undo", 0)
        claimed = helpers.claim_all(self.engine, *lanes, limit=count, lease_seconds=(lease + 0.5) * TICK)
        assert {each.job_id for each in claimed} <= due
        assert len(claimed) == min(count, len(due))
        for each in claimed:
            job = self.model.jobs[each.job_id]
            self.model.move(job, State.RUNNING)
            self.keys[each.execution_id] = each.key, job.id
            self.open[each.execution_id] = self.model.now + lease
            loaded = {step.name: step.is_finished for step in steps.load_steps(self.engine, job.id)}
            assert loaded == {
                name: step.is_finished for name, step in job.steps.items() if step.compensation_id is None
            }

    def attempt(self, data: st.DataObject) -> tuple[int, ExecutionKey, Job | None]:
        """Return an execution, open or lost, with its job if it is open."""
        execution_id = data.draw(st.sampled_from([*self.open, *sorted(self.keys)[-3:]]), label="execution")
        key, job_id = self.keys[execution_id]
        return execution_id, key, self.model.jobs[job_id] if execution_id in self.open else None

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), name=st.sampled_from("abc"), compensates=st.booleans())
    def store(self, data: st.DataObject, name: str, compensates: bool) -> None:
        _, key, job = self.attempt(data)
        call = {"compensation": json.dumps({**UNDO, "delay_seconds": 0}), "compensation_arguments": json.dumps([name])}
        step = EndedStep(name, POSITIONS[name], StepKind.STEP, None, 0.0)
        status = steps.store_step(self.engine, key, step._replace(**call if compensates else {}))
        assert status is (TransitionStatus.DONE if job else TransitionStatus.LOST)
        if job:
            job.steps[name] = Step(True, tries=1, compensates=compensates)

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), key=KEYS, ticks=st.sampled_from([1, FOREVER]), is_killed=st.booleans(),
          between=st.sampled_from([None, "sent", "woken"]))  # fmt: skip
    def wait_for_event(self, data: st.DataObject, key: str, ticks: int, is_killed: bool, between: str | None) -> None:
        """Receive the event, or suspend the attempt. An event can come between the look for it and the suspension."""
        execution_id, execution, job = self.attempt(data)
        name = f"wait{sum(step.key is not None and step.is_finished for step in job.steps.values()) if job else 0}"
        if job:
            found = events.find_event(self.engine, job.id, EVENT, key)
            assert (found and found.event_id) == self.model.next_event(job, key)
            if found:
                step = EndedStep(name, POSITIONS[name], StepKind.EVENT, None, 0.0, 1, EVENT, key, found.event_id)
                assert steps.store_step(self.engine, execution, step) is TransitionStatus.DONE
                job.steps[name] = Step(True, key, found.event_id, 1)
                return
        if between is not None:
            self.send(key, between == "sent")
        wait = Suspension(name, POSITIONS[name], StepKind.EVENT, ticks * TICK, ticks < FOREVER, 0, "", EVENT, key)
        self.suspend(execution_id, execution, job, wait)
        if not is_killed and job:
            woken = self.model.wake(each for each in self.model.missed() if each is job)
            assert steps.wake_suspended(self.engine, [job.id]) == set(woken)

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), name=st.sampled_from(["nap", "c"]), ticks=st.integers(0, 2))
    def sleep(self, data: st.DataObject, name: str, ticks: int) -> None:
        """Suspend an attempt for a time: it sleeps, or its step failed and is tried again."""
        execution_id, execution, job = self.attempt(data)
        if job is None or name not in job.steps or not job.steps[name].is_finished:
            kind = StepKind.SLEEP if name == "nap" else StepKind.STEP
            suspension = Suspension(name, POSITIONS[name], kind, ticks * TICK, tries=int(name == "c"))
            self.suspend(execution_id, execution, job, suspension)

    def suspend(self, execution_id: int, key: ExecutionKey, job: Job | None, suspension: Suspension) -> None:
        result = lifecycle.suspend(self.engine, [SuspendedExecution(key, suspension, *helpers.AGES)])[execution_id]
        assert (result.status is TransitionStatus.DONE) == (job is not None)
        if job:
            del self.open[execution_id]
            job.steps[suspension.name] = Step(False, suspension.event_key, tries=suspension.tries)
            due = job.due if job.asked else self.model.now + int(suspension.delay_seconds / TICK)
            state = self.model.move(job, State.CANCELLED if job.asked else State.READY, due=due, expires=None)
            assert result.state is state

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), ending=ENDINGS, is_killed=st.booleans())
    def end(self, data: st.DataObject, ending: str, is_killed: bool) -> None:
        """End an attempt. Then the worker adds a compensation, if one has to follow, or it is killed."""
        execution_id, key, job = self.attempt(data)
        endings: dict[str, Callable[[], Any]] = {
            "succeed": lambda: lifecycle.succeed(self.engine, helpers.succeeded(key)),
            "die": lambda: lifecycle.fail(self.engine, helpers.failed(key, None)),
            "fail": lambda: lifecycle.fail(self.engine, helpers.failed(key, TICK)),
            "release": lambda: lifecycle.release(self.engine, [Released(key)]),
            "stop": lambda: lifecycle.end_cancelled(self.engine, [Cancelled(key, None, 0.0)]),
        }
        result = endings[ending]()[execution_id]
        assert (result.status is TransitionStatus.DONE) == (job is not None)
        if job is None:
            return
        del self.open[execution_id]
        states = {"succeed": State.SUCCEEDED, "die": State.DEAD, "stop": State.CANCELLED}
        state = states.get(ending, State.READY)
        state = State.CANCELLED if job.asked and state is not State.SUCCEEDED else state
        self.model.move(job, state, due=self.model.now + 1 if (ending, state) == ("fail", State.READY) else job.due)
        if not is_killed:
            self.compensate([job.id] if job.undoes is None else [job.undoes])

    def compensate(self, job_ids: list[int]) -> None:
        undone = self.model.next_compensations(job_ids)
        done = sagas.compensate(self.engine, job_ids)
        assert ([each.compensated_id for each in done.added], done.refused) == ([*undone], [])
        for each in done.added:
            name = undone[each.compensated_id]
            assert helpers.job_row(self.engine, each.job_id)["arguments"] == [name]
            self.model.add_compensation(self.model.jobs[each.compensated_id], name, each.job_id)

    # ------------------------------------------------------------------ operators

    def any_job(self, data: st.DataObject) -> Job:
        return self.model.jobs[data.draw(st.sampled_from(sorted(self.model.jobs)[-4:]), label="job")]

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job, wanted = self.any_job(data), {}
        if job.state is State.READY:
            wanted[job.id] = self.model.move(job, State.CANCELLED, asked=True)
        elif job.state is State.RUNNING and not job.asked:
            wanted[job.id] = self.model.move(job, State.RUNNING, asked=True)
        assert lifecycle.cancel(self.engine, [job.id]) == wanted

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job = self.any_job(data)
        is_retried = self.model.can_be_retried(job)
        assert lifecycle.retry(self.engine, [job.id]) == ({job.id: State.READY} if is_retried else {})
        if is_retried:
            self.model.retry(job)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        job = self.any_job(data)
        gone = {job.id: job.state} if self.model.can_be_removed(job) else {}
        assert lifecycle.delete(self.engine, [job.id], lock_seconds=0.0) == gone
        for job_id in gone:
            del self.model.jobs[job_id]

    # ------------------------------------------------------------------ time, and the sweeps

    @rule(ticks=st.integers(1, 2))
    def time_goes_on(self, ticks: int) -> None:
        self.model.now += ticks
        clock.shift_seconds = self.model.now * TICK

    @rule(delay=st.sampled_from([0, None]))
    def maintain(self, delay: int | None) -> None:
        """Rescue, expire and prune jobs."""
        now, jobs = self.model.now, self.model.jobs
        lost = [each for each, lease in self.open.items() if lease < now]
        rescued = lifecycle.rescue(self.engine, lambda execution: delay, error="lost")
        assert {each.execution_id for each, _ in rescued} == set(lost)
        for execution_id in lost:
            del self.open[execution_id]
            job = jobs[self.keys[execution_id][1]]
            state = State.CANCELLED if job.asked else State.READY if delay == 0 else State.DEAD
            self.model.move(job, state, due=now if state is State.READY else job.due)
        late = [job for job in jobs.values() if job.state is State.READY and job.expires and job.expires <= now]
        expired = {job_id for job_id, _ in lifecycle.expire(self.engine, worker_id=1, error="late")}
        assert expired == {self.model.move(job, State.CANCELLED) and job.id for job in late}
        for state in sorted(FINISHED):
            old = [job.id for job in jobs.values() if job.state is state and (job.finished or 0) <= now - 2]
            gone = [job_id for job_id in old if self.model.can_be_removed(jobs[job_id])]
            assert lifecycle.prune(self.engine, state, 2 * TICK, other_task_names=[]).removed == len(gone)
            for job_id in gone:
                del jobs[job_id]

    @rule()
    def sweep(self) -> None:
        """Run both sweeps. Then nothing may be left that nobody has noticed."""
        missed, woken, mark = self.model.wake(self.model.missed()), list[int](), SweepMark()
        while mark is not None:
            page = steps.wake_missed(self.engine, mark, limit=2)
            mark, woken = page.mark, woken + page.job_ids
        assert sorted(woken) == missed
        assert self.model.missed() == []
        pending = [job.id for job in self.model.jobs.values() if job.has_compensations()]
        assert sagas.pending_sagas(self.engine, 0, 1000) == sorted(pending)
        self.compensate(sorted(pending))
        assert self.model.next_compensations([*self.model.jobs]) == {}

    # ------------------------------------------------------------------ invariants

    @invariant()
    def tables_match_the_model(self) -> None:
        if hasattr(self, "model"):
            jobs = [self.model.jobs[job_id] for job_id in sorted(self.model.jobs)]
            assert self.engine.execute(JOBS, {"start": self.start}).fetchall() == [job.row() for job in jobs]
            rows = [(job.id, name, *step.row()) for job in jobs for name, step in sorted(job.steps.items())]
            assert self.engine.execute(STEPS).fetchall() == rows

    @invariant()
    def later_steps_are_undone_first(self) -> None:
        for job in self.model.jobs.values() if hasattr(self, "model") else ():
            undone = [step.compensation_id for _, step in sorted(job.steps.items()) if step.compensation_id is not None]
            assert all(earlier > later for earlier, later in pairwise(undone))


@pytest.mark.quick
@pytest.mark.promise("event-is-never-lost")
@pytest.mark.promise("compensation-once")
@pytest.mark.timeout(400)  # as test_stateful.py
def test_steps_any_order_of_transitions_match_model(engine, request):
    Steps.engine = engine
    examples = request.config.getoption("--stateful-examples") or settings().max_examples // 8
    run_machine(Steps, settings=settings(max_examples=examples, stateful_step_count=50))
