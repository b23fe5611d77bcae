"""Durable steps: the options of a step, and what its name, the key of its event and its end may be.

`TaskContext.step()` and `send_event()` check their arguments here. The worker runs the steps (see
`worker.execution.step_runner`), and `lifecycle.steps` stores them. This module uses no clock and no database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, overload
from uuid import UUID

from django_pgqueue.durations import MAX_SECONDS, Duration, seconds
from django_pgqueue.exceptions import JobLocked, QueueError
from django_pgqueue.states import StepKind

from .retry import Backoff, as_backoff, check_backoff

MAX_NAME_LENGTH: Final = 100
"""Characters of a step's or an event's name at most."""
MAX_KEY_LENGTH: Final = 200
"""Characters of an event's key at most."""
FOREVER_SECONDS: Final = float(MAX_SECONDS)
"""After this time (100 years) a job that waits without a timeout is due. Infinity cannot be subtracted."""
ENDLESS: Final = timedelta(days=30_000)
"""A suspended job that is due later than this waits for an event without a timeout."""

EventKey = str | int | UUID | None
"""The types of the key of an event. Numbers and UUIDs become text. None is the empty text."""


T_contra = TypeVar("T_contra", contravariant=True)


class Compensation(Protocol[T_contra]):
    """A task that takes the result of a step as its only required argument."""

    def s(self, result: T_contra, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Step(Generic[T_contra]):
    """A durable step with options. Pass it to `TaskContext.step()` in place of a name.

    Args:
        name: Name of the step. It is unique in the job and must not change while jobs are under way.
        atomic: Run the function in one transaction with the write that stores the step. The function's writes to the
            job's database then take effect exactly once.
        retries: How often the step is tried again after its function has failed, without counting an attempt of the
            job. The job is suspended between two tries.
        backoff: How long to wait before the next try, as the option `backoff` of a task. The default is that of tasks.
        compensate: A task that undoes the step if the job ends dead or cancelled. It is enqueued with the result of the
            step as its argument, after the compensations of all later steps have succeeded.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.

    Example::

        context.step(Step("ship", atomic=True, retries=5, backoff=timedelta(minutes=1)), ship, order_id)
    """

    name: str
    atomic: bool = field(default=False, kw_only=True)
    retries: int = field(default=0, kw_only=True)
    backoff: Backoff | Duration | None = field(default=None, kw_only=True, repr=False)
    compensate: Compensation[T_contra] | None = field(default=None, kw_only=True, repr=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Step[object],
            name: str,
            *,
            atomic: bool = ...,
            retries: int = ...,
            backoff: Backoff | Duration | None = ...,
            compensate: None = ...,
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            *,
            atomic: bool = ...,
            retries: int = ...,
            backoff: Backoff | Duration | None = ...,
            compensate: Compensation[T_contra],
        ) -> None: ...
        def __init__(self, name: str, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        checked_name(self.name, "step")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int):
            raise TypeError(f"retries must be a whole number, not {type(self.retries).__name__}")
        if not 0 <= self.retries <= MAX_RETRIES:
            raise ValueError(f"retries must be from 0 to {MAX_RETRIES}, not {self.retries}")
        check_backoff(self.backoff)
        if self.compensate is not None and not callable(getattr(self.compensate, "s", None)):
            advice = "decorate it with @task" if callable(self.compensate) else "pass the task itself"
            raise TypeError(f"compensate must be a task, not {type(self.compensate).__name__}: {advice}")

    @property
    def backoff_function(self) -> Callable[..., Duration | None]:
        """The backoff as a function."""
        return as_backoff(self.backoff)


MAX_RETRIES: Final = 1_000_000


class Suspension(NamedTuple):
    """The reason for which an attempt is suspended, as the row of its step stores it. JSON can represent all values.

    `delay_seconds`: until the job is due. `has_end`: False for a wait without a timeout.
    """

    name: str
    position: float
    kind: StepKind
    delay_seconds: float
    has_end: bool = True
    tries: int = 0
    error: str = ""
    event_name: str | None = None
    event_key: str | None = None

    @property
    def reason(self) -> str:
        """The reason as text, as the execution stores it and the log shows it.

        It leaves out the key of the event, which can be made of arguments. The row of the step has the key.
        """
        if self.kind is StepKind.SLEEP:
            return f"step {self.name!r} sleeps"
        if self.kind is StepKind.EVENT:
            return f"step {self.name!r} waits for the event {self.event_name}"
        return f"step {self.name!r} failed and is tried again: {self.error}"


class Suspended(BaseException):
    """Ends an attempt whose job sleeps, waits for an event, or retries a step. A task must not catch it.

    This is not an `Exception`, so `except Exception` in a task lets it pass.
    """

    def __init__(self, suspension: Suspension) -> None:
        super().__init__(suspension.reason)
        self.suspension = suspension


class StepError(QueueError, RuntimeError):
    """A step cannot be used here, or the code does not fit the stored steps of the job. The message says what to do."""


class StepsChanged(StepError):
    """The code does not fit the stored steps of the job: another release has stored them in another order or kind.

    The worker releases the job without counting the attempt, as a job of an unknown task. So neither a wrong deploy nor
    a worker with old code uses up attempts, or undoes the steps.
    """


class EventTimeout(QueueError, TimeoutError):
    """The event did not come before the `timeout` of `wait_for_event()`. A later attempt raises it again."""


class CompensationUnfinished(JobLocked):
    """The job cannot be retried yet: the compensation of its steps has begun and is not over. Nothing was changed."""


class StepRunner(Protocol):
    """Runs the steps of one attempt. The worker implements it."""

    def step(self, step: Step[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    def sleep(self, name: str, wake: Duration | datetime) -> None: ...
    def wait_for_event(self, event_name: str, key: EventKey, timeout: Duration | None, name: str) -> Any: ...
    async def astep(self, step: Step[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    async def asleep(self, name: str, wake: Duration | datetime) -> None: ...
    async def await_event(self, event_name: str, key: EventKey, timeout: Duration | None, name: str) -> Any: ...


def as_step(step: Step[Any] | str) -> Step[Any]:
    """Return a step with its options. A name alone is a step without options."""
    return step if isinstance(step, Step) else Step(step)


def checked_name(name: object, what: str) -> str:
    """Return a name that can be stored. `what` is "step" or "event".

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, too long, or contains a character that PostgreSQL cannot store.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of the {what} must be a string, not {type(name).__name__}")
    _check_text(name, f"the name of the {what}", MAX_NAME_LENGTH)
    if not name:
        raise ValueError(f"the name of the {what} is empty: give it a name")
    return name


def key_text(key: EventKey) -> str:
    """Return the key of an event as it is stored.

    Raises:
        TypeError: It is neither a string, nor a number, nor a UUID. A boolean is not a number here.
        ValueError: It is too long, or contains a character that PostgreSQL cannot store.
    """
    if key is None:
        return ""
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise TypeError(f"the key of an event must be a string, a whole number or a UUID, not {type(key).__name__}")
    # An enum with the mixin `str` or `int` is the same key as its value. `str()` would return the name of the member.
    text = str.__str__(key) if isinstance(key, str) else int.__repr__(key) if isinstance(key, int) else str(key)
    _check_text(text, "the key of the event", MAX_KEY_LENGTH)
    return text


def _check_text(text: str, what: str, length: int) -> None:
    if len(text) > length:
        raise ValueError(f"{what} has {len(text)} characters: use at most {length}")
    if "\x00" in text or not text.isprintable():
        place = next(place for place, character in enumerate(text, 1) if not character.isprintable())
        raise ValueError(f"{what} contains a character that cannot be printed at position {place}: remove it")


def seconds_until(wake: Duration | datetime) -> float:
    """Return how long a sleep lasts: a duration, or the time until an aware datetime, by this machine's clock."""
    if not isinstance(wake, datetime):
        return seconds(wake)
    if wake.tzinfo is None:
        raise ValueError(f"a sleep ends at an aware datetime, not at {wake!r}: add a time zone")
    return min(max(0.0, (wake - datetime.now(UTC)).total_seconds()), FOREVER_SECONDS)


def is_endless(due_at: datetime, seen_at: datetime) -> bool:
    """Return whether a suspended job waits for an event without a timeout. Its row is due in 100 years then."""
    return due_at - seen_at > ENDLESS
