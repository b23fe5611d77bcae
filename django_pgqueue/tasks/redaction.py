"""Hide the sensitive arguments of a call, as the task's option `sensitive` names them.

The admin and the reprs of results call `redacted_call()` and `hides_result()`. A task's definition uses
`hidden_from_reports()`, and the classes of tasks use `hiding_class()`. The module protects one rule: a value is shown
only if the task's signature says which argument it is, and that argument is not sensitive. A call that does not fit the
signature, for example of an earlier release, shows nothing that the signature does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, Final, Protocol, TypeVar

from asgiref.sync import sync_to_async

C = TypeVar("C", bound=type)

HIDDEN: Final = "[hidden]"
"""Shown instead of a sensitive value."""
RESULT: Final = "return"
"""Name in `sensitive` that hides the result. No argument can have this name."""
STEP_VARIABLES: Final = frozenset({"args", "kwargs"})
"""Variables of the frames of a durable step, which can contain a sensitive argument of its task. Django hides the names
of a decorated function in the frames below it too."""
BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
ENQUEUE_METHODS: Final = ("enqueue", "enqueue_on_commit", "enqueue_many")
"""Methods of tasks that take the arguments of calls. Each has an asynchronous form with the prefix `a`."""

_hiding_classes: dict[type, type] = {}
"""The results of `hiding_class()`."""


class Redacted(Protocol):
    """The parts of a task's definition that this module uses."""

    @property
    def sensitive(self) -> frozenset[str]: ...
    @property
    def takes_context(self) -> bool: ...
    @property
    def func_signature(self) -> Signature: ...


def hides_result(task: Redacted) -> bool:
    """Return whether the results of a task are sensitive."""
    return RESULT in task.sensitive


def redacted_call(task: Redacted, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return a call's arguments with `HIDDEN` in place of the sensitive ones."""
    if not task.sensitive:
        return list(args), dict(kwargs)
    parameters = list(task.func_signature.parameters.values())[task.takes_context :]
    positions = [parameter.name for parameter in parameters if parameter.kind in BY_POSITION]
    keywords = {parameter.name for parameter in parameters if parameter.kind in BY_NAME}
    more_args = _is_shown_rest(task, parameters, Parameter.VAR_POSITIONAL)
    more_kwargs = _is_shown_rest(task, parameters, Parameter.VAR_KEYWORD)
    is_shown = [name not in task.sensitive for name in positions]
    is_shown += [more_args] * (len(args) - len(positions))
    return (
        [value if shown else HIDDEN for value, shown in zip(args, is_shown, strict=False)],
        {
            name: value if name not in task.sensitive and (name in keywords or more_kwargs) else HIDDEN
            for name, value in kwargs.items()
        },
    )


def has_sensitive(task: Redacted, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call passes a sensitive argument, whatever its value is."""
    shown_args, shown_kwargs = redacted_call(task, [None] * len(args), dict.fromkeys(kwargs))
    return HIDDEN in shown_args or HIDDEN in shown_kwargs.values()


def _is_shown_rest(task: Redacted, parameters: Iterable[Parameter], kind: Any) -> bool:
    """Return whether `*args` or `**kwargs` of the function exists and is not sensitive."""
    return any(parameter.kind is kind and parameter.name not in task.sensitive for parameter in parameters)


def unknown_names(
    names: Iterable[str], parameters: Mapping[str, Parameter], *, takes_context: bool
) -> Iterable[tuple[str, str]]:
    """Yield each name that no argument of a function can have, with the name that may have been meant or ""."""
    arguments = list(parameters.values())[takes_context:]
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in arguments):
        return
    known = [parameter.name for parameter in arguments]
    for name in sorted({*names} - {*known, RESULT}):
        yield name, next(iter(get_close_matches(name, known, n=1)), "")


def hidden_from_reports(func: Callable[..., Any], names: Iterable[str] = ()) -> Callable[..., Any]:
    """Return a function that hides these local variables of `func` from Django's error reports; all without names."""
    from django.views.decorators.debug import sensitive_variables  # not loaded where no argument is sensitive

    wrapped: Callable[..., Any] = sensitive_variables(*sorted(names))(func)
    return wrapped


def hiding_class(base: C) -> C:
    """Return a subclass of a class of tasks that hides the arguments of calls from Django's error reports.

    The variables of its `ENQUEUE_METHODS` and of the functions that they call are hidden. This is a subclass so that
    tasks without sensitive arguments pay nothing.
    """
    if base not in _hiding_classes:
        methods: dict[str, Any] = {}
        for name in ENQUEUE_METHODS:
            if hasattr(base, name):
                methods[name] = hidden_from_reports(getattr(base, name))
                methods[f"a{name}"] = _in_thread(methods[name], getattr(base, f"a{name}"))
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        _hiding_classes[base] = type(base.__name__, (base,), {"__slots__": (), "__new__": _new, **names, **methods})
    return _hiding_classes[base]  # type: ignore[return-value]  # a subclass of `base`


def has_sensitive_tasks() -> bool:
    """Return whether a task of this process has the option `sensitive`."""
    return bool(_hiding_classes)


def _new(cls: type, **_values: Any) -> Any:
    """Create an instance of a hiding class. The `__new__()` of its base would look for a hiding class again."""
    return object.__new__(cls)


def _in_thread(method: Callable[..., Any], asynchronous: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that calls a hidden method in a thread, with the name and the text of `asynchronous`.

    The frames of `sync_to_async()` cannot be hidden, because a coroutine's frame does not know its callers. They
    contain what `sync_to_async()` calls, so that has no arguments here.
    """

    async def call_in_thread(*args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(hidden_from_reports(lambda: method(*args, **kwargs)))()

    return wraps(asynchronous)(hidden_from_reports(call_in_thread))
