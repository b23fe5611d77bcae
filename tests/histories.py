"""What the state machines of workflows and of steps share: actions with weights, and the ends of attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from django_pgqueue import lifecycle
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import Cancelled, ExecutionKey, Released, TransitionResult
from django_pgqueue.states import State
from tests import helpers

F = TypeVar("F", bound=Callable[..., None])


def action(weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """Mark a method as an action, with the strategies of its arguments.

    A machine has one rule, which draws the action by its weight. Of several rules, Hypothesis leaves some out of each
    history, and few histories would claim jobs, end them and retry them.
    """

    def mark(method: F) -> F:
        method.weight, method.arguments = weight, arguments  # type: ignore[attr-defined]  # read by names_of()
        return method

    return mark


def names_of(machine: type[RuleBasedStateMachine]) -> list[str]:
    """Return the names of the actions of a machine, each as often as its weight says."""
    return [name for name, method in vars(machine).items() for _ in range(getattr(method, "weight", 0))]


def run_action(machine: RuleBasedStateMachine, name: str, data: st.DataObject) -> None:
    method = getattr(machine, name)
    method(**{argument: data.draw(strategy, label=argument) for argument, strategy in method.arguments.items()})


STATES: Final = {"succeed": State.SUCCEEDED, "die": State.DEAD, "stop": State.CANCELLED}
"""The states of jobs whose attempts end so. After "fail" and "release" they are ready."""


def end_attempt(engine: EngineConnection, key: ExecutionKey, ending: str, delay_seconds: float) -> TransitionResult:
    """Write the end of an execution. `delay_seconds` is the time before the next attempt after "fail"."""
    transitions: dict[str, Callable[[], Any]] = {
        "succeed": lambda: lifecycle.succeed(engine, helpers.succeeded(key)),
        "die": lambda: lifecycle.fail(engine, helpers.failed(key, None)),
        "fail": lambda: lifecycle.fail(engine, helpers.failed(key, delay_seconds)),
        "release": lambda: lifecycle.release(engine, [Released(key)]),
        "stop": lambda: lifecycle.end_cancelled(engine, [Cancelled(key, None, 0.0)]),
    }
    result: TransitionResult = transitions[ending]()[key.execution_id]
    return result


def state_after(ending: str, *, is_asked: bool) -> State:
    """Return the state of the job after an attempt has ended. `is_asked`: somebody has requested its cancellation."""
    state = STATES.get(ending, State.READY)
    return State.CANCELLED if is_asked and state is not State.SUCCEEDED else state
