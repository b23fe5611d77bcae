"""What the state machines of workflows and of steps share: actions with weights, attempts, time, and maintenance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import clock
from django_pgqueue.lifecycle import completions, expiry, pruning, rescues
from django_pgqueue.lifecycle.types import Cancelled, ExecutionKey, Released, TransitionResult
from django_pgqueue.states import FINISHED, State
from tests import helpers

TICK: Final = 1000.0
"""Seconds. Nothing waits: `time_shift` moves the clock of the database."""
F = TypeVar("F", bound=Callable[..., None])


def action(weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """Mark a method as an action, with the strategies of its arguments.

    A machine has one rule, which draws the action by its weight. Of several rules, Hypothesis leaves some out of each
    history, and few histories would claim jobs, end them and retry them.
    """

    def mark(method: F) -> F:
        method.weight, method.arguments = weight, arguments  # type: ignore[attr-defined]  # read by History
        return method

    return mark


STATES: Final = {"succeed": State.SUCCEEDED, "die": State.DEAD, "stop": State.CANCELLED}
"""The states of jobs whose attempts end so. After "fail" and "release" they are ready."""


def end_attempt(engine: EngineConnection, key: ExecutionKey, ending: str, delay_seconds: float) -> TransitionResult:
    """Write the end of an execution. `delay_seconds` is the time before the next attempt after "fail"."""
    transitions: dict[str, Callable[[], Any]] = {
        "succeed": lambda: completions.succeed(engine, helpers.succeeded(key)),
        "die": lambda: completions.fail(engine, helpers.failed(key, None)),
        "fail": lambda: completions.fail(engine, helpers.failed(key, delay_seconds)),
        "release": lambda: completions.release(engine, [Released(key)]),
        "stop": lambda: completions.end_cancelled(engine, [Cancelled(key, None, 0.0)]),
    }
    result: TransitionResult = transitions[ending]()[key.execution_id]
    return result


def state_after(ending: str, *, is_asked: bool) -> State:
    """Return the state of the job after an attempt has ended. `is_asked`: somebody has requested its cancellation."""
    state = STATES.get(ending, State.READY)
    return State.CANCELLED if is_asked and state is not State.SUCCEEDED else state


class History(RuleBasedStateMachine):
    """A machine with actions, attempts and a clock. The jobs of `model` have a state, an expiry and an end.

    `keys` has the key and the job of each execution, and `open` the tick at which the lease of each open one ends.
    """

    engine: EngineConnection
    model: Any

    def begin_anew(self, model: Any, *tables: str) -> None:
        clock.shift_seconds = 0.0
        helpers.clear_tables(self.engine)
        for table in tables:
            self.engine.execute(f"DELETE FROM pgqueue_{table}")
        self.start = helpers.scalar(self.engine, "SELECT statement_timestamp()")
        self.model = model
        self.keys: dict[int, tuple[ExecutionKey, int]] = {}
        self.open: dict[int, int] = {}

    def teardown(self) -> None:
        clock.shift_seconds = 0.0

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """Run an action."""
        self.data = data
        methods = {**vars(History), **vars(type(self))}
        actions = {name: method for name, method in methods.items() if hasattr(method, "weight")}
        weighted = [name for name, method in actions.items() for _ in range(method.weight)]
        name = data.draw(st.sampled_from(weighted), label="action")
        drawn = {each: data.draw(strategy, label=each) for each, strategy in actions[name].arguments.items()}
        getattr(self, name)(**drawn)

    @action(2, ticks=st.integers(0, 2), delay=st.sampled_from([0, None]), prunes=st.sampled_from([False, False, True]))
    def time_goes_on(self, ticks: int, delay: int | None, prunes: bool) -> None:
        """Let time pass. Then rescue, expire and prune jobs."""
        self.model.now += ticks
        clock.shift_seconds = self.model.now * TICK
        self.rescue(delay)
        self.expire()
        for state in sorted(FINISHED) if prunes else ():
            self.prune(state)

    def rescue(self, delay: int | None) -> None:
        lost = [each for each, lease in self.open.items() if lease < self.model.now]
        rescued = rescues.rescue(self.engine, lambda execution: delay, error="lost")
        assert {each.execution_id for each, _ in rescued} == set(lost)
        for execution_id in lost:
            del self.open[execution_id]
            job = self.model.jobs[self.keys[execution_id][1]]
            state = State.CANCELLED if job.asked else State.READY if delay == 0 else State.DEAD
            self.model.move(job, state, due=self.model.now if state is State.READY else job.due)

    def expire(self) -> None:
        ready = [job for job in self.model.jobs.values() if job.state is State.READY and job.expires is not None]
        late = [job for job in ready if job.expires <= self.model.now]
        expired = {job_id for job_id, _ in expiry.expire(self.engine, worker_id=1, error="late")}
        assert expired == {self.model.move(job, State.CANCELLED) and job.id for job in late}

    def prune(self, state: State) -> None:
        old = [job for job in self.model.jobs.values() if job.state is state and job.finished < self.model.now]
        gone = [job.id for job in old if self.model.can_be_removed(job)]
        assert pruning.prune(self.engine, state, TICK, other_task_names=[]).removed == len(gone)
        self.model.remove(gone)
