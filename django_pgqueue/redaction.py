"""Hide the sensitive arguments of a call, as the task's option `sensitive` names them.

The admin and the reprs of results call `redacted_call()` and `hides_result()`. A task's definition uses
`hidden_from_reports()`. The module protects one rule: a value is shown only if the task's signature says which
argument it is, and that argument is not sensitive. A call that does not fit the signature, for example of an earlier
release, shows nothing that the signature does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter, Signature
from typing import Any, Final, Protocol

HIDDEN: Final = "[hidden]"
"""Shown instead of a sensitive value."""
RESULT: Final = "return"
"""Name in `sensitive` that hides the result. No argument can have this name."""
BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Redacted(Protocol):
    """The parts of a task's definition that this module uses."""

    @property
    def sensitive(self) -> frozenset[str]: ...
    @property
    def takes_context(self) -> bool: ...
    @property
    def signature(self) -> Signature: ...


def hides_result(task: Redacted) -> bool:
    """Return whether the results of a task are sensitive."""
    return RESULT in task.sensitive


def redacted_call(task: Redacted, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return a call's arguments with `HIDDEN` in place of the sensitive ones."""
    if not task.sensitive:
        return list(args), dict(kwargs)
    parameters = list(task.signature.parameters.values())[task.takes_context :]
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
