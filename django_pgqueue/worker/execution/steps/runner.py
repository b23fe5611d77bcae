"""Run the durable steps of one attempt: `TaskContext.step()`, `sleep()` and `wait_for_event()`, and their async forms.

`Attempt` makes a runner for each attempt whose task takes a context. The first step loads the stored steps of the job.
A stored step returns its value. Any other step runs, and one statement on the Django connection of the job's thread
stores it. That statement contains the fence, so a late attempt stores nothing.

A sleep, a wait and a retry of a step raise `Suspended`. The runner remembers the suspension, so the attempt ends as
suspended even if the task catches the exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.declared.retry import delay_after
from django_pgqueue.declared.steps import (
    FOREVER_SECONDS,
    EventKey,
    Step,
    StepError,
    StepsChanged,
    Suspended,
    Suspension,
    checked_name,
    key_text,
    seconds_until,
)
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.exceptions import Directive, JobLocked, LeaseLost, ResultNotStored
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.lifecycle import events, steps
from django_pgqueue.lifecycle.steps import EndedStep, StoredStep
from django_pgqueue.lifecycle.types import Claimed, TransitionStatus
from django_pgqueue.states import StepKind
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.context import TaskContext
from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.worker.execution import atomic, error_text
from django_pgqueue.worker.execution.report import STOPS
from django_pgqueue.worker.execution.stored_values import DoesNotFit, read_value

from . import store as step_store
from .store import encoded, read_back, remote, store, timed_out
from .threads import AsyncCalls, StepThread, inside, refuse_in_transaction, refuse_nested

logger = logging.getLogger("django_pgqueue.worker")
LOCK_PAUSE_SECONDS: Final = 0.005
"""How long to wait before a step is stored again, if a heartbeat has locked the execution."""


class StepPlace(NamedTuple):
    """The place of a step among the steps of its job, and the step if it is stored.

    `StepRunner` calls `enter()` for each step. It protects one rule: a job continues with code that still calls its
    stored steps in their order. A step that the code has gained gets a position between the stored ones.
    """

    name: str
    position: float
    stored: StoredStep | None


class StepOrder:
    """The steps of one attempt, in the order of their calls."""

    def __init__(self, stored: Sequence[StoredStep]) -> None:
        self._stored = stored
        self._indexes = {step.name: index for index, step in enumerate(stored)}
        self._called: set[str] = set()
        self._next = 0
        """The index behind the last stored step that was called."""
        self._position = 0.0
        self._added = 0
        """How many new steps were called since the last stored one."""

    def enter(self, name: str, kind: StepKind) -> StepPlace:
        """Return the place of the step that is called now.

        Raises:
            StepError: The attempt has called the step before.
            StepsChanged: The order or the kind of the stored steps does not fit the code.
        """
        if name in self._called:
            raise StepError(f"the step {name!r} is called twice in one attempt: give each step a name of its own")
        index = self._indexes.get(name)
        stored = None if index is None else self._stored[index]
        if index is None:
            self._position = self._new_position()
        elif index < self._next:
            raise StepsChanged(
                f"the step {name!r} is called after the step {self._stored[self._next - 1].name!r}, and this job has "
                "stored it before that step: restore the order of the steps, or give the moved step a new name"
            )
        else:
            assert stored is not None  # noqa: S101 -- for mypy: it has an index
            if stored.kind is not kind:
                raise StepsChanged(
                    f"the step {name!r} is called as {kind.value!r}, and this job has stored it as "
                    f"{stored.kind.value!r}: give the new step a name of its own"
                )
            self._next, self._position, self._added = index + 1, stored.position, 0
        self._called.add(name)
        return StepPlace(name, self._position, stored)

    def _new_position(self) -> float:
        """Return a position between the last called step and the next stored one.

        The nth new step takes 1/(n + 1) of what is left between them, so 1/(n + 1) of the whole remains, and a loop of
        a million new steps finds room. If each took one half, the positions would be equal after 50.
        """
        if self._next == len(self._stored):
            return self._position + 1.0
        self._added += 1
        return self._position + (self._stored[self._next].position - self._position) / (self._added + 1)

    def not_called(self) -> list[str]:
        """Return the stored steps that the code has not called."""
        return [step.name for step in self._stored if step.name not in self._called]


class AttemptSteps:
    """The steps of one attempt. The thread of the job uses it; for a coroutine, the thread of the asynchronous ORM."""

    def __init__(self, claimed: Claimed, alias: str, task: TaskDefinition, outer_blocks: int) -> None:
        """Create the runner in the job's thread. The caller of a foreground job has opened `outer_blocks` blocks."""
        self.claimed = claimed
        self.alias = alias
        self.task = task
        self.context = TaskContext()
        self.suspension: Suspension | None = None
        self._misfit: StepsChanged | DoesNotFit | None = None
        """The error of a step that does not fit the stored ones, or of a value that this process cannot read."""
        self.is_lost = False
        self.has_compensations = False
        """Whether a stored step has a compensation."""
        self.calls = AsyncCalls()
        self._outer_blocks = outer_blocks
        self._thread = StepThread(is_async=task.is_async)
        self._order: StepOrder | None = None
        self._loaded_at = 0.0

    def end(self) -> bool:
        """Return whether the attempt has used steps. Log the stored steps that it has not called.

        Call it after the task has returned. Raise `Suspended` or `StepsChanged` if the task has caught that exception.
        """
        self._raise_caught()
        if self._order is not None and (left_out := self._order.not_called()):
            logger.warning(
                "job %s (%s) has ended without its stored steps %s: the code does not call them any more",
                self.claimed.job_id,
                registry.in_words(self.claimed.task_name),
                ", ".join(map(repr, left_out)),
                extra=job_event("steps_not_called", self.claimed, steps=left_out),
            )
        return self._order is not None

    def _raise_caught(self) -> None:
        """Raise again what has ended the attempt, because the task has caught it."""
        if self._misfit is not None:
            raise self._misfit
        if self.suspension is not None:
            raise Suspended(self.suspension)

    def cause_of_end(self, exception: BaseException) -> BaseException:
        """Return what has ended the attempt: a step that does not fit or a suspension, whatever the task raises."""
        if error_text.is_a(exception, KeyboardInterrupt, *STOPS):
            return exception
        return self._misfit or (exception if self.suspension is None else Suspended(self.suspension))

    # ---------------------------------------------------------------- steps

    def step(self, step: Step[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the stored value of a step, or run its function and store the value."""
        place, began = self._enter(step.name, StepKind.STEP), time.monotonic()
        if place.stored is not None and place.stored.is_finished:
            return self._read(place.stored.result, step.name)
        step_store.check_compensation(step, self._connection)
        try:
            if step.atomic:
                return self._run_atomic(step, place, began, function, args, kwargs)
            with inside(self, step.name):
                value = function(*args, **kwargs)
        except Exception as error:
            self._suspend_for_retry(step, place, error)
            raise
        return self._store_value(step, place, began, value)

    async def astep(self, step: Step[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Do as `step()` for a coroutine function. Another function runs in a thread."""
        return await self.calls.beside(self._astep(step, function, args, kwargs))

    async def _astep(self, step: Step[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not iscoroutinefunction(function):
            return await sync_to_async(self.step)(step, function, args, kwargs)
        if step.atomic:
            raise StepError(
                f"the step {step.name!r} is atomic, and transactions do not work in coroutines: pass a plain function, "
                "which runs in a thread"
            )
        place, began = await sync_to_async(self._enter)(step.name, StepKind.STEP), time.monotonic()
        if place.stored is not None and place.stored.is_finished:
            return self._read(place.stored.result, step.name)
        await sync_to_async(lambda: step_store.check_compensation(step, self._connection))()
        try:
            with inside(self, step.name):
                value = await function(*args, **kwargs)
        except Exception as error:
            self._suspend_for_retry(step, place, error)
            raise
        return await sync_to_async(self._store_value)(step, place, began, value)

    def sleep(self, name: str, wake: Duration | datetime) -> None:
        """Return if the sleep is over. Otherwise suspend the job until then."""
        place = self._enter(checked_name(name, "step"), StepKind.SLEEP)
        left_seconds = seconds_until(wake) if place.stored is None else self._left(place) or 0.0
        if left_seconds > 0:
            self._suspend(Suspension(name, place.position, StepKind.SLEEP, left_seconds))

    async def asleep(self, name: str, wake: Duration | datetime) -> None:
        """Do as `sleep()` from a coroutine."""
        await self.calls.beside(sync_to_async(self.sleep)(name, wake))

    def wait_for_event(self, event_name: str, key: EventKey, timeout: Duration | None, name: str) -> Any:
        """Return the payload of the event if it has come. Otherwise suspend the job until it comes."""
        event_name, event_key = checked_name(event_name, "event"), key_text(key)
        place, began = self._enter(checked_name(name, "step"), StepKind.EVENT), time.monotonic()
        step = EndedStep(name, place.position, StepKind.EVENT, None, 0.0, 0, event_name, event_key)
        if place.stored is not None and place.stored.is_finished:
            if place.stored.event_id is None:
                raise timed_out(step)
            return self._read(place.stored.result, name)
        left_seconds = self._left(place) if place.stored is not None else None if timeout is None else seconds(timeout)
        found = events.find_event(self._connection, self.claimed.job_id, event_name, event_key)
        if found is None and (left_seconds is None or left_seconds > 0):
            delay_seconds, has_end = (FOREVER_SECONDS, False) if left_seconds is None else (left_seconds, True)
            self._suspend(
                Suspension(name, place.position, StepKind.EVENT, delay_seconds, has_end, 0, "", event_name, event_key)
            )
        step = step._replace(started_seconds_ago=time.monotonic() - began)
        if found is None:
            self._store(step)
            raise timed_out(step)
        self._store(step._replace(result=found.payload, event_id=found.event_id))
        return self._read(found.payload, name)

    async def await_event(self, event_name: str, key: EventKey, timeout: Duration | None, name: str) -> Any:
        """Do as `wait_for_event()` from a coroutine."""
        return await self.calls.beside(sync_to_async(self.wait_for_event)(event_name, key, timeout, name))

    # ---------------------------------------------------------------- the parts of a step

    @property
    def _connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    def _enter(self, name: str, kind: StepKind) -> StepPlace:
        """Return the place of a step. Raise an error if a step cannot be used now."""
        refuse_nested(self, name)
        self._thread.check(name)
        if self.calls.is_over:
            raise StepError(f"the step {name!r} is called after the function of the task has ended: await it there")
        self._raise_caught()
        if self.task.atomic:
            raise StepError(
                f"{self.task.name} has atomic=True, so all of it takes effect or nothing does: it cannot use steps. "
                "Remove the option, and pass Step(…, atomic=True) to single steps"
            )
        if not self.claimed.claimed_ms:  # the server keeps the identity of the execution
            raise remote(self.task.name)
        connection = self._connection
        refuse_in_transaction(connection, self._outer_blocks, name)
        if self._order is None:
            stored = steps.load_steps(connection, self.claimed.job_id)
            self.has_compensations = any(each.has_compensation for each in stored)
            self._order = StepOrder(stored)
            self._loaded_at = time.monotonic()
        try:
            return self._order.enter(name, kind)
        except StepsChanged as error:
            self._misfit = error
            raise

    def _read(self, text: str | None, name: str) -> Any:
        """Return the stored value of a step. If this process cannot read it, that ends the attempt."""
        try:
            return read_value(text, f"the value of the step {name!r}")
        except DoesNotFit as error:
            self._misfit = error
            raise

    def _left(self, place: StepPlace) -> float | None:
        """Return the seconds until a stored step wakes. None: it has no end."""
        wakes_in = place.stored.wakes_in_seconds if place.stored is not None else None
        return None if wakes_in is None else wakes_in - (time.monotonic() - self._loaded_at)

    def _run_atomic(
        self, step: Step[Any], place: StepPlace, began: float, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call the function and store the step in one transaction."""
        with atomic.transaction_of(self._connection, self.claimed, is_of_step=True) as commits:
            with inside(self, step.name):
                value = function(*args, **kwargs)
            if commits:
                atomic.expect_commit(self._connection)
            return self._store_value(step, place, began, value)

    def _store_value(self, step: Step[Any], place: StepPlace, began: float, value: Any) -> Any:
        """Store a value. Return it as a later attempt will read it."""
        text = encoded(place.name, value)
        tries = (place.stored.tries if place.stored is not None else 0) + 1
        ended = EndedStep(place.name, place.position, StepKind.STEP, text, time.monotonic() - began, tries)
        read = read_back(place.name, text)
        if step.compensate is not None:
            options, arguments = step_store.compensation_of(step, read, self._connection, self.claimed.job_id)
            ended = ended._replace(compensation=options, compensation_arguments=arguments)
        self._store(ended)
        self.has_compensations = self.has_compensations or ended.compensation is not None
        return read

    def _store(self, step: EndedStep) -> None:
        """Store a step. Raise `LeaseLost` if this attempt has lost its execution."""
        deadline = time.monotonic() + atomic.LOCK_SECONDS
        while True:
            status = store(self._connection, self.claimed.key, step)
            if status is TransitionStatus.DONE:
                return
            if status is not TransitionStatus.LOCKED:
                self.is_lost = True
                raise LeaseLost(
                    f"execution {self.claimed.execution_id} was closed by another worker; its step {step.name!r} is "
                    "not stored"
                )
            if time.monotonic() > deadline:
                raise JobLocked(
                    f"job {self.claimed.job_id} stayed locked by another session, so its step {step.name!r} was not "
                    "stored"
                )
            time.sleep(LOCK_PAUSE_SECONDS)

    def _suspend_for_retry(self, step: Step[Any], place: StepPlace, error: Exception) -> None:
        """Suspend the job until the next try of a step that has failed. Return if it is not tried again."""
        tries = (place.stored.tries if place.stored is not None else 0) + 1
        if tries > step.retries or isinstance(error, Directive | ResultNotStored | StepError | JobLocked):
            return
        if not self.task.is_retryable(error):
            return
        delay_seconds = delay_after(step.backoff_function, tries, error, lambda: self.context.task_result)
        if delay_seconds is not None:
            text = f"{error_text.class_path(error)}: {error_text.message(error)}"
            self._suspend(Suspension(step.name, place.position, StepKind.STEP, delay_seconds, tries=tries, error=text))

    def _suspend(self, suspension: Suspension) -> None:
        if self.suspension is None:  # a call beside this one may have suspended the job first
            self.suspension = suspension
        raise Suspended(self.suspension)
