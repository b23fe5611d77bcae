"""The definition of a task: its function, its options and its retry policy, without the methods that enqueue jobs.

The registry, the middleware, `enqueue` and the worker use it; `task.Task` adds the methods that applications call. A
definition is immutable, and its options are always valid.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from itertools import chain
from types import EllipsisType
from typing import Any

from django_pgqueue.arguments.plan import NONE_KNOWN, CallArguments, CallPlan, call_plan, new_plan
from django_pgqueue.declared.chunks import called_with_one
from django_pgqueue.declared.key_templates import name_without_braces, names_in
from django_pgqueue.declared.retry import as_backoff, delay_after
from django_pgqueue.durations import seconds
from django_pgqueue.exceptions import InvalidTask, Retry
from django_pgqueue.ground.job_log import LEVELS
from django_pgqueue.ground.lazy_strings import lazy_problems
from django_pgqueue.ground.signatures import signature_of
from django_pgqueue.options.task_options import OPTIONS, Row, TaskFields, columns_of, normalise
from django_pgqueue.options.validation import ON_CONFLICT, UNIQUE_WHILE, due, unknown_queue
from django_pgqueue.settings.conf import Settings, get_settings
from django_pgqueue.settings.setting_kinds import retention_seconds

from .context import TaskAdapter, TaskContext
from .redaction import RESULT, STEP_VARIABLES, hidden_from_reports, unknown_names

Shape = tuple[Any, ...]
"""The types of the positional arguments of a call, and the names and the types of its keyword arguments."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, repr=False)
class TaskDefinition(TaskFields):
    """A function with the options of its jobs."""

    func: Callable[..., Any]
    adapter: TaskAdapter | None = field(default=None, repr=False, compare=False)
    """Set for tasks of another framework. Not an option of `@task`."""
    own_timeout_seconds: float | None = field(init=False, repr=False, compare=False)
    func_signature: inspect.Signature = field(init=False, repr=False, compare=False)
    is_async: bool = field(init=False, repr=False, compare=False)
    entry: Callable[..., Any] = field(init=False, repr=False, compare=False)
    """The function as a worker calls it: its sensitive arguments are hidden from Django's error reports."""
    known_plan: CallPlan | EllipsisType | None = field(init=False, repr=False, compare=False)
    """The value of `plan`, or `...` before its first use. It is compared with None where a call would cost too much."""
    known_checks: CallPlan | EllipsisType | None = field(init=False, repr=False, compare=False)
    """The value of `checks`, or `...` before its first use."""
    fitting_shapes: set[Shape] = field(init=False, repr=False, compare=False)
    """Shapes of calls that fit the function and its annotations, whatever the values are. See `checked_call()`."""
    has_limit_key: bool = field(init=False, repr=False, compare=False)
    """Whether its jobs have a limit key: the key of a limit, or a chunk key."""
    has_keys: bool = field(init=False, repr=False, compare=False)
    """Whether its jobs have a limit key, a unique key or search keys."""
    known_columns: tuple[Settings | None, Row] = field(init=False, repr=False, compare=False)
    """The settings that the value of `columns()` follows from, and that value; None before its first use."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __post_init__(self) -> None:
        if not inspect.isfunction(self.func):
            raise InvalidTask(f"@task needs a module-level function, got {self.func!r}")
        object.__setattr__(self, "func_signature", signature_of(self.func))
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.func))
        object.__setattr__(self, "known_plan", ...)
        object.__setattr__(self, "known_checks", ...)
        object.__setattr__(self, "fitting_shapes", set())
        object.__setattr__(self, "known_columns", (None, {}))
        object.__setattr__(self, "has_limit_key", self.limit is not None or self.chunk is not None)
        object.__setattr__(self, "has_keys", self.has_limit_key or self.unique_key is not None or bool(self.search))
        object.__setattr__(self, "name", self.name or self.module_path)
        normalise(self)
        _validate(self)
        names = self.sensitive - {RESULT}
        if names and self.takes_context:
            names |= STEP_VARIABLES
        object.__setattr__(self, "entry", hidden_from_reports(self.func, names) if names else self.func)
        object.__setattr__(self, "own_timeout_seconds", None if self.timeout is None else seconds(self.timeout))

    @property
    def module_path(self) -> str:
        """Dotted path of the function."""
        return f"{self.func.__module__}.{self.func.__qualname__}"

    @property
    def plan(self) -> CallPlan | None:
        """How the function's annotations convert its calls, or None if all values stay plain JSON.

        Tasks of another framework have no plan: they are portable, and other backends convert nothing. Raises
        `InvalidTask` if an annotation cannot be converted.
        """
        plan = self.known_plan
        if isinstance(plan, EllipsisType):
            checks = self.checks
            plan = checks if checks is not None and checks.converts else None
            object.__setattr__(self, "known_plan", plan)
        return plan

    @property
    def checks(self) -> CallPlan | None:
        """The compiled annotations, which check each new call and convert it if `plan` is not None.

        None for tasks of another framework. Raises as `plan`.
        """
        checks = self.known_checks
        if isinstance(checks, EllipsisType):
            checks = self._compiled_plan()
            object.__setattr__(self, "known_checks", checks)
        return checks

    def _compiled_plan(self) -> CallPlan | None:
        try:
            return None if self.adapter is not None else call_plan(self.func, int(self.takes_context))
        except InvalidTask as error:
            raise InvalidTask(f"{self.name}: {error}") from None

    def call_function(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function without a job. If it takes a context or a chunk, it gets one."""
        if self.chunk is not None:
            return called_with_one(self.func, *args, **kwargs)
        return self.func(*((TaskContext(), *args) if self.takes_context else args), **kwargs)

    def encoded_call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], known: Mapping[int | str, Any] = NONE_KNOWN
    ) -> CallArguments:
        """Return a call as its annotations store it, with the values in `known` (see `CallPlan.encode()`).

        Raise `TypeError` or `ValueError` if an argument does not fit.
        """
        checks = self.checks
        return (args, kwargs) if checks is None else checks.encode(args, kwargs, known)

    def decoded_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
        """Return a stored call as its annotations read it, with primary keys instead of rows.

        Raise `ValueError` if a stored value does not fit.
        """
        plan = self.plan
        return (args, kwargs) if plan is None else plan.decode(args, kwargs)

    def converted_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
        """Return a call as the functions of options get it: as the task would, but with primary keys instead of rows.

        Raise `TypeError` or `ValueError` if an argument does not fit.
        """
        return self.decoded_call(*self.encoded_call(args, kwargs))

    def columns(self) -> Row:
        """Return the parameters of the insert statements that its jobs share. The caller must not change them."""
        settings, known = get_settings(), self.known_columns
        if known[0] is not settings:
            known = settings, {"task_name": self.name, "headers": None, **columns_of(self)}
            object.__setattr__(self, "known_columns", known)
        return known[1]

    def early_plan(self) -> CallPlan | None:
        """Return a plan while the task's module is still imported, or None if its annotations cannot be used yet."""
        try:
            plan = new_plan(self.func, int(self.takes_context))
        except InvalidTask:  # the system check reports it
            return None
        return None if plan.ignored else plan

    @property
    def fixed_database(self) -> str | None:
        """Alias of the database of all its jobs. None: the database routers or the arguments of each call choose."""
        return self.database if isinstance(self.database, str) else None

    @property
    def chunk_wait_seconds(self) -> float:
        """Seconds that a due job waits until its chunk is full."""
        return seconds(self.chunk_wait)

    @property
    def timeout_seconds(self) -> float | None:
        """Seconds that one attempt may run, or None without a limit."""
        return self.timeout_by(get_settings())

    def timeout_by(self, settings: Settings) -> float | None:
        """Return the same by these settings."""
        return settings.TIMEOUT if self.own_timeout_seconds is None else self.own_timeout_seconds

    def log_level_by(self, settings: Settings) -> int | None:
        """Return the number of the level from which an execution keeps its log lines, or None if it keeps none."""
        level = settings.KEEP_LOGS if self.keep_logs is None else self.keep_logs
        return LEVELS[level] if level else None

    def delay_after(
        self, attempt: int, exception: BaseException | None, task_result: Callable[[], Any] = lambda: None
    ) -> float | None:
        """Return the seconds before the next attempt, or None for no further attempt. Raise the backoff's error.

        `task_result` returns the result to pass to a backoff that takes one.
        """
        if exception is not None and not self.is_retryable(exception):
            return None
        backoff = get_settings().BACKOFF if self.backoff is None else self.backoff
        return delay_after(as_backoff(backoff), attempt, exception, task_result)

    def is_retryable(self, exception: BaseException) -> bool:
        """Return whether `retry_for` and `no_retry_for` allow another attempt after this exception."""
        if isinstance(exception, Retry):
            return True
        return isinstance(exception, self.retry_for) and not isinstance(exception, self.no_retry_for)

    def retention_for(self, state: str) -> tuple[bool, float | None]:
        """Return whether this task has a retention of its own for `state`, and its seconds (None: forever)."""
        if self.retention is None:
            return (False, None)
        retention = self.retention.get(state) if isinstance(self.retention, Mapping) else self.retention
        return (False, None) if retention is None else (True, retention_seconds(retention))


def _validate(task: TaskDefinition) -> None:
    """Raise `InvalidTask` with the first problem of the function or the options."""
    # Combinations are the last: their check needs options that are valid on their own.
    checks = (
        _function_problems,
        _option_problems,
        _sensitive_problems,
        _search_problems,
        _key_problems,
        _chunk_problems,
        _combination_problems,
    )
    for problem in chain.from_iterable(check(task) for check in checks):
        raise InvalidTask(f"{task.name}: {problem}")


def _function_problems(task: TaskDefinition) -> Iterator[str]:
    func = task.func
    if not inspect.isfunction(func) or func.__qualname__ != func.__name__ or func.__name__ == "<lambda>":
        yield "a task must be a module-level function, so that workers can find it by its name"
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        yield "a generator function cannot be a task, because calling it does not run its body"
    if task.atomic and task.is_async:
        yield "an async task cannot be atomic: Django has no asynchronous transactions"
    if task.takes_context and next(iter(task.func_signature.parameters), "") != "context":
        yield "takes_context=True needs a first argument named context"
    first = next(iter(task.func_signature.parameters.values()), None)
    if first is None or task.takes_context:
        return
    annotation = first.annotation
    if isinstance(annotation, str):  # another class can have the name
        annotation = getattr(func, "__globals__", {}).get(annotation)
    if annotation is TaskContext:
        yield f"{first.name!r} is a TaskContext, which workers pass only with takes_context=True"


def _option_problems(task: TaskDefinition) -> Iterator[str]:
    for name, known in OPTIONS.items():
        value = getattr(task, name)
        if known.check is not None and value is not known.default:
            problems = [*lazy_problems(name, value)]
            yield from problems or known.check(name, value)


def _sensitive_problems(task: TaskDefinition) -> Iterator[str]:
    yield from _unknown_problems(task, "sensitive", task.sensitive)


def _unknown_problems(task: TaskDefinition, option: str, names: Iterable[str]) -> Iterator[str]:
    for name, meant in unknown_names(names, task.func_signature.parameters, takes_context=task.takes_context):
        hint = f"did you mean {meant!r}?" if meant else "name arguments of the function"
        yield f"{option} {name!r} is not an argument of the function: {hint}"


def _search_problems(task: TaskDefinition) -> Iterator[str]:
    yield from _stored_name_problems(task, "search", "search keys", task.search)


def _key_problems(task: TaskDefinition) -> Iterator[str]:
    if task.limit is not None:
        yield from _stored_name_problems(task, "the key of limit", "limit keys", task.limit.argument_names)
    if isinstance(task.unique_key, str):
        yield from _stored_name_problems(task, "unique_key", "unique keys", names_in(task.unique_key))
        names = list(task.func_signature.parameters)[int(task.takes_context) :]
        if meant := name_without_braces(task.unique_key, names):
            yield (
                f"unique_key {task.unique_key!r} is the same text for all calls, so all but the first are duplicates: "
                f"write {{{meant}}} for the value of the argument"
            )


def _chunk_problems(task: TaskDefinition) -> Iterator[str]:
    if task.chunk is None:
        if task.chunk_wait != OPTIONS["chunk_wait"].default:
            yield "chunk_wait needs chunk"
        return
    if task.limit is not None:
        yield "a task with chunk cannot have a limit: remove limit, or chunk"
    if task.takes_context:
        yield "a task with chunk gets no context, because its jobs have their own ids and headers: remove takes_context"
    kinds = [parameter.kind for parameter in task.func_signature.parameters.values()]
    if kinds not in ([Parameter.POSITIONAL_ONLY], [Parameter.POSITIONAL_OR_KEYWORD]):
        yield "the function of a task with chunk must have one parameter, such as `chunk: Chunk[int]`"


def _stored_name_problems(task: TaskDefinition, option: str, kind: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the problems of names of arguments whose values are stored a second time, as plain text."""
    yield from _unknown_problems(task, option, names)
    parameters = task.func_signature.parameters
    rest = next((each.name for each in parameters.values() if each.kind is each.VAR_KEYWORD), None)
    for name in names:
        if name in task.sensitive or (name not in parameters and rest in task.sensitive):
            yield f"{option} {name!r} is a sensitive argument, and {kind} are stored as plain text: remove it"
        if name in parameters and parameters[name].kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            yield f"{option} {name!r} stands for several arguments: name a single argument"


def _combination_problems(task: TaskDefinition) -> Iterator[str]:
    if task.expires is not None:
        (expires_at, expires_seconds), (run_at, delay_seconds) = due(task.expires), due(task.run_after)
        if (expires_at is None) == (run_at is None):
            is_after = expires_seconds > delay_seconds if expires_at is None or run_at is None else expires_at > run_at
            if not is_after:
                yield f"expires {task.expires} is not after run_after {task.run_after}: the job would never run"
    yield from unknown_queue("queue_name", task.queue_name)  # not a check of the option: its default may be unknown too
    defaults = (UNIQUE_WHILE[0], ON_CONFLICT[0])
    if task.unique_key is None and (task.unique_while, task.on_conflict) != defaults:
        yield "unique_while and on_conflict need a unique_key"
