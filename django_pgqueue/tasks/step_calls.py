"""The methods of `TaskContext` for durable steps: `step()`, `sleep()`, `wait_for_event()`, and their async forms.

They check the arguments and pass the call to the runner of the attempt, which the worker sets. Without a job, as in a
unit test that calls the function of a task, a step is a plain call, and a sleep returns at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_pgqueue.declared.steps import (
    EventKey,
    Step,
    StepError,
    StepRunner,
    as_step,
    checked_name,
    key_text,
    seconds_until,
)

if TYPE_CHECKING:
    from django_pgqueue.durations import Duration

P = ParamSpec("P")
T = TypeVar("T")


class StepCalls:
    """The base class of `TaskContext` with the methods for durable steps."""

    __slots__ = ()

    def step(self, step: Step[T] | str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function once for the job: return the stored value if an earlier attempt has stored it.

        The value is stored when the function returns, by one statement that commits at once. The call returns it as
        JSON represents it, so a tuple becomes a list. If the worker is lost between the return and that statement, the
        function runs again; `Step(…, atomic=True)` prevents that for what it writes to the job's database.

        Args:
            step: Name of the step, which is unique in the job, or a `Step` with options.
            function: The function. Its arguments follow.

        Returns:
            The value that the function returned, or that it returned in an earlier attempt.

        Raises:
            StepError: A step cannot be used here, or the code does not fit the stored steps. The message says why.
            LeaseLost: The job belongs to another worker now. Nothing was stored.
        """
        runner = self._runner_in_thread("step", "astep")
        step = as_step(step)
        _check_function("step", step, function)
        return function(*args, **kwargs) if runner is None else runner.step(step, function, args, kwargs)

    @overload
    async def astep(
        self, step: Step[T] | str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def astep(self, step: Step[T] | str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def astep(self, step: Step[Any] | str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do the same as `step()` in a coroutine. A coroutine function is awaited; a plain one runs in a thread."""
        runner, step = self._runner(), as_step(step)
        _check_function("astep", step, function)
        if runner is not None:
            return await runner.astep(step, function, args, kwargs)
        return await (function if iscoroutinefunction(function) else sync_to_async(function))(*args, **kwargs)

    def sleep(self, name: str, wake: Duration | datetime) -> None:
        """Suspend the job, and continue behind this call when the time has passed.

        A suspended job is in no slot. It survives restarts and deploys of its workers. The attempt is not counted: the
        function starts again from the beginning, and its stored steps return their values.

        Args:
            name: Name of the step, which is unique in the job.
            wake: How long to sleep, in seconds or as a timedelta; or an aware datetime.

        Raises:
            StepError: A step cannot be used here, or the code does not fit the stored steps. The message says why.
        """
        runner = self._runner_in_thread("sleep", "asleep")
        if runner is not None:
            runner.sleep(name, wake)
        else:
            _check_sleep(name, wake)

    async def asleep(self, name: str, wake: Duration | datetime) -> None:
        """Do as `sleep()` from a coroutine."""
        runner = self._runner()
        if runner is not None:
            await runner.asleep(name, wake)
        else:
            _check_sleep(name, wake)

    def wait_for_event(
        self, event: str, key: EventKey = None, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        """Return the payload of an event. If it has not come, suspend the job until `send_event()` sends it.

        The job receives the earliest event with this name and key that it has not received, also one that was sent
        before this call. Other jobs that wait for the event receive it too.

        Args:
            event: Name of the event.
            key: Key of the event: a string, a whole number or a UUID.
            timeout: How long to wait from the first call on, in seconds or as a timedelta. None: without limit.
            name: Name of the step, which is unique in the job. By default the name of the event.

        Returns:
            The payload.

        Raises:
            EventTimeout: The event did not come in time.
            StepError: A step cannot be used here, or the code does not fit the stored steps. The message says why.
        """
        runner = self._runner_in_thread("wait_for_event", "await_event")
        if runner is None:
            raise _no_job(event, key)
        return runner.wait_for_event(event, key, timeout, event if name is None else name)

    async def await_event(
        self, event: str, key: EventKey = None, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        """Do as `wait_for_event()` from a coroutine."""
        runner = self._runner()
        if runner is None:
            raise _no_job(event, key)
        return await runner.await_event(event, key, timeout, event if name is None else name)

    def _runner(self) -> StepRunner | None:
        """Return what runs the steps of this attempt. None without a job: steps are plain calls then."""
        raise NotImplementedError

    def _runner_in_thread(self, method: str, form: str) -> StepRunner | None:
        """Return the runner. On the event loop, where Django refuses every query, name the form for coroutines."""
        runner = self._runner()
        if runner is not None and _is_on_event_loop():
            raise SynchronousOnlyOperation(
                f"context.{method}() was called in a coroutine: await context.{form}() there"
            )
        return runner


def _is_on_event_loop() -> bool:
    """Return whether Django refuses queries here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")


def _check_function(method: str, step: Step[Any], function: object) -> None:
    """Refuse the result of a call in place of the function."""
    if not callable(function):
        raise TypeError(
            f"the step {step.name!r} needs a function that it can call, not {type(function).__name__}: pass the "
            f"function and its arguments, as in {method}({step.name!r}, charge_card, order_id)"
        )


def _check_sleep(name: str, wake: Duration | datetime) -> None:
    """Check the arguments of a sleep without a job, which returns at once."""
    checked_name(name, "step")
    seconds_until(wake)


def _no_job(event: str, key: EventKey) -> StepError:
    checked_name(event, "event")
    key_text(key)
    return StepError("without a job, no event can be received: run the task with `testing.run_jobs()` instead")
