"""Durable steps, events and compensations against a model: after each random transition, all rows must match the model.

A Hypothesis state machine lets attempts store steps, sleep, wait for events and end in every way. Lost attempts go on
as well, and store nothing. Events are sent before, while and after a job is suspended for them. Senders and workers can
be killed before they look for what follows. After a sweep, no job waits whose event has come. Steps are undone in
reverse order, and no job with a pending compensation is removed.

CI runs 80 examples. For a long run, use `pytest tests/test_stateful_steps.py --stateful-examples 10000`.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from hypothesis.stateful import run_state_machine_as_test as run_machine

from django_pgqueue.declared.steps import FOREVER_SECONDS, Suspension
from django_pgqueue.lifecycle import events, operator, sagas, steps
from django_pgqueue.lifecycle.steps import EndedStep, SuspendedExecution, SweepMark
from django_pgqueue.lifecycle.types import ExecutionKey, Lane, TransitionStatus
from django_pgqueue.states import FINISHED, State, StepKind
from tests import helpers
from tests.histories import TICK, History, action, end_attempt, state_after
from tests.step_model import EVENT, JOBS, STEPS, Job, Model, Step

pytestmark = pytest.mark.slow

FOREVER = int(FOREVER_SECONDS / TICK)
POSITIONS = {name: float(place) for place, name in enumerate(["a", "b", "c", "nap", *(f"wait{n}" for n in range(60))])}
"""The steps of every job, in their order. The first three can be undone."""
NAMES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([True, True, False])), min_size=1, max_size=2)
"""The steps that an attempt stores, and whether they have compensations."""
KEYS = st.sampled_from("xxxy")
MOST = 5
"""Jobs. With more of them, transitions would rarely meet on one job."""
JOB = st.tuples(st.sampled_from(["u", None]), st.sampled_from([None, 1, 2]))
"""Its unique key, and the ticks until it expires."""
ENDINGS = st.sampled_from(["succeed", "succeed", "die", "die", "die", "fail", "release", "stop"])
UNDO: dict[str, Any] = {"task_name": helpers.NOOP, "queue_name": "undo", "priority": 0, "max_attempts": 3}


class Steps(History):
    model: Model

    @initialize(jobs=st.lists(JOB, min_size=2, max_size=3))
    def begin(self, jobs: list[tuple[str | None, int | None]]) -> None:
        self.begin_anew(Model(), "step", "event")
        self.claimed = 0
        for job in jobs:
            self.enqueue(job)
        self.claim(3, 2)

    # ------------------------------------------------------------------ the application

    @action(2, job=JOB)
    def enqueue(self, job: tuple[str | None, int | None]) -> None:
        """Enqueue a job. With a unique key, it replaces the call of a ready job, unless that has to be undone."""
        if len(self.model.jobs) > MOST:
            return
        unique, ticks = job
        now, holder = self.model.now, self.model.holder(unique)
        expires: dict[str, Any] = {"expires_seconds": ticks and ticks * TICK}
        if unique is None:
            added = helpers.make_job(self.engine, **expires)
        else:
            enqueued = helpers.enqueue_unique(self.engine, unique, replace=True, **expires)
            if holder is not None and (holder.state is State.RUNNING or holder.has_compensations()):
                assert enqueued is None
                return
            added = enqueued.job_id
        assert holder is None or added == holder.id
        self.model.jobs[added] = Job(added, now, unique, ticks and now + ticks)

    @action(2, key=KEYS, is_killed=st.booleans())
    def send(self, key: str, is_killed: bool) -> None:
        """Send an event. Then the sender wakes the jobs that wait for it, or it is killed."""
        event_id = events.send_event(self.engine, EVENT, key, None)
        self.model.events[event_id] = key
        if not is_killed:
            woken = self.model.wake(self.model.sleepers(key))
            assert steps.wake(self.engine, EVENT, key) == (woken, None)

    # ------------------------------------------------------------------ attempts

    @action(4, count=st.integers(1, 4), lease=st.integers(0, 2))
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

    def attempt(self) -> tuple[int, ExecutionKey, Job | None]:
        """Return an execution, open or lost, with its job if it is open."""
        execution_id = self.data.draw(
            st.sampled_from([*self.open, *self.open, *sorted(self.keys)[-2:]]), label="execution"
        )
        key, job_id = self.keys[execution_id]
        return execution_id, key, self.model.jobs[job_id] if execution_id in self.open else None

    @action(10, names=NAMES, ending=st.one_of(ENDINGS, st.just("wait")), is_killed=st.booleans())
    def work(self, names: list[tuple[str, bool]], ending: str, is_killed: bool) -> None:
        """Make a whole attempt, so that histories are dense."""
        last = max(self.keys)
        self.claim(1, 2)
        if max(self.keys) > last:
            self.claimed = max(self.keys)
            is_undoing = self.model.jobs[self.keys[self.claimed][1]].undoes is not None
            self.store(names)
            if ending == "wait":
                self.wait_for_event("x", FOREVER, is_killed, None)
            else:
                self.end("succeed" if is_undoing else ending, is_killed)
            self.claimed = 0

    @action(3, names=NAMES)
    def store(self, names: list[tuple[str, bool]]) -> None:
        """Store steps, with a compensation or without one. A step that is stored again never loses its compensation."""
        _, key, job = self.attempt()
        for name, compensates in names:
            self.store_step(key, job, name, compensates)

    def store_step(self, key: ExecutionKey, job: Job | None, name: str, compensates: bool) -> None:
        call: dict[str, Any] = {
            "compensation": json.dumps({**UNDO, "delay_seconds": 0}),
            "compensation_arguments": json.dumps({"args": [name], "kwargs": {}}),
        }
        step = EndedStep(name, POSITIONS[name], StepKind.STEP, None, 0.0)
        status = steps.store_step(self.engine, key, step._replace(**call if compensates else {}))
        assert status is (TransitionStatus.DONE if job else TransitionStatus.LOST)
        if job:
            had_one = name in job.steps and job.steps[name].compensates
            job.steps[name] = Step(True, tries=1, compensates=compensates or had_one)

    @action(
        5,
        key=KEYS,
        ticks=st.sampled_from([1, 1, FOREVER]),
        is_killed=st.booleans(),
        between=st.sampled_from([None, "sent", "woken"]),
    )
    def wait_for_event(self, key: str, ticks: int, is_killed: bool, between: str | None) -> None:
        """Receive up to two events, or suspend the attempt. An event can come between the look and the suspension."""
        execution_id, execution, job = self.attempt()
        if job and self.receive(execution, job, key) and self.receive(execution, job, key):
            return
        name = self.next_wait(job) if job else "wait0"
        if job and name in job.steps:
            wake = job.steps[name].wake
            ticks = FOREVER if wake is None else wake - self.model.now
        if between is not None:
            self.send(key, between == "sent")
        wait = Suspension(name, POSITIONS[name], StepKind.EVENT, ticks * TICK, ticks < FOREVER, 0, "", EVENT, key)
        self.suspend(execution_id, execution, job, wait)
        if not is_killed and job:
            woken = self.model.wake(each for each in self.model.missed() if each is job)
            assert steps.wake_suspended(self.engine, [job.id]) == set(woken)

    def next_wait(self, job: Job) -> str:
        return f"wait{sum(step.key is not None and step.is_finished for step in job.steps.values())}"

    def receive(self, execution: ExecutionKey, job: Job, key: str) -> bool:
        """Receive an event, if there is one that the job has not received."""
        name, found = self.next_wait(job), events.find_event(self.engine, job.id, EVENT, key)
        assert (found and found.event_id) == self.model.next_event(job, key)
        if found:
            step = EndedStep(name, POSITIONS[name], StepKind.EVENT, None, 0.0, 1, EVENT, key, found.event_id)
            assert steps.store_step(self.engine, execution, step) is TransitionStatus.DONE
            job.steps[name] = Step(True, key, found.event_id, 1)
        return found is not None

    @action(1, name=st.sampled_from(["nap", "c"]), ticks=st.integers(0, 2))
    def sleep(self, name: str, ticks: int) -> None:
        """Suspend an attempt for a time: it sleeps, or its step failed and is tried again."""
        execution_id, execution, job = self.attempt()
        if job is None or name not in job.steps or not job.steps[name].is_finished:
            kind = StepKind.SLEEP if name == "nap" else StepKind.STEP
            suspension = Suspension(name, POSITIONS[name], kind, ticks * TICK, tries=int(name == "c"))
            self.suspend(execution_id, execution, job, suspension)

    def suspend(self, execution_id: int, key: ExecutionKey, job: Job | None, suspension: Suspension) -> None:
        result = steps.suspend(self.engine, [SuspendedExecution(key, suspension, *helpers.AGES)])[execution_id]
        assert (result.status is TransitionStatus.DONE) == (job is not None)
        if job:
            del self.open[execution_id]
            ticks, stored = int(suspension.delay_seconds / TICK), job.steps.get(suspension.name)
            wake = self.model.now + ticks if suspension.has_end else None
            if stored is not None and suspension.kind is not StepKind.STEP:
                wake = stored.wake
            step = Step(False, suspension.event_key, tries=suspension.tries, wake=wake)
            due = job.due if job.asked else self.model.now + ticks if wake is None else wake
            state = self.model.suspend(job, suspension.name, step, due)
            assert result.state is state

    @action(6, ending=ENDINGS, is_killed=st.booleans())
    def end(self, ending: str, is_killed: bool) -> None:
        """End an attempt. Then the worker adds a compensation, if one has to follow, or it is killed."""
        execution_id, key, job = self.attempt()
        result = end_attempt(self.engine, key, ending, TICK)
        assert (result.status is TransitionStatus.DONE) == (job is not None)
        if job is None:
            return
        del self.open[execution_id]
        state = state_after(ending, is_asked=job.asked)
        self.model.move(job, state, due=self.model.now + 1 if (ending, state) == ("fail", State.READY) else job.due)
        if not is_killed:
            self.compensate([job.id] if job.undoes is None else [job.undoes])

    def compensate(self, job_ids: list[int]) -> None:
        undone = self.model.next_compensations(job_ids)
        done = sagas.compensate(self.engine, job_ids)
        assert ([each.compensated_id for each in done.added], done.refused) == ([*undone], [])
        for each in done.added:
            name = undone[each.compensated_id]
            assert helpers.job_row(self.engine, each.job_id)["arguments"]["args"] == [name]
            self.model.add_compensation(self.model.jobs[each.compensated_id], name, each.job_id)

    # ------------------------------------------------------------------ operators

    @action(
        4,
        how=st.sampled_from(["cancel", "retry", "retry", "retry", "delete"]),
        fits=st.sampled_from([True, True, False]),
    )
    def operate(self, how: str, fits: bool) -> None:
        """Cancel, retry or delete a job, usually one whose state allows it."""
        jobs = [job for job in self.model.jobs.values() if not fits or (job.state in FINISHED) == (how != "cancel")]
        if jobs:
            job = self.data.draw(st.sampled_from(jobs[-4:]), label="job")
            {"cancel": self.cancel, "retry": self.retry, "delete": self.delete}[how](job)

    def cancel(self, job: Job) -> None:
        wanted = {}
        if job.state is State.READY:
            wanted[job.id] = self.model.move(job, State.CANCELLED, asked=True)
        elif job.state is State.RUNNING and not job.asked:
            wanted[job.id] = self.model.move(job, State.RUNNING, asked=True)
        assert operator.cancel(self.engine, [job.id]) == wanted

    def retry(self, job: Job) -> None:
        is_retried = self.model.can_be_retried(job)
        assert operator.retry(self.engine, [job.id]) == ({job.id: State.READY} if is_retried else {})
        if is_retried:
            self.model.retry(job)

    def delete(self, job: Job) -> None:
        gone = {job.id: job.state} if self.model.can_be_deleted(job) else {}
        assert operator.delete(self.engine, [job.id], lock_seconds=0.0) == gone
        self.model.remove(gone)

    # ------------------------------------------------------------------ time, and the sweeps

    @action(2)
    def sweep(self) -> None:
        """Run both sweeps. Then nothing may be left that nobody has noticed."""
        missed, woken = self.model.wake(self.model.missed()), list[int]()
        mark: SweepMark | None = SweepMark()
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
    examples = request.config.getoption("--stateful-examples") or settings().max_examples // 5
    run_machine(Steps, settings=settings(max_examples=examples, stateful_step_count=60))
