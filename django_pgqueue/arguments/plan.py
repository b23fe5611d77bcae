"""The plan of a task: the converters of its parameters and of its result.

`TaskDefinition.plan` returns the plan of a task's function. It is compiled at the first use, because annotations can
name classes that are defined later, and models that are not loaded when `@task` runs.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from django_pgqueue.declared.chunks import annotations_of_item
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.signatures import raw_annotations, signature_of

from .annotations import Annotations
from .containers import UnionConverter
from .converter import PLAIN, Converter, Mismatch, Rows
from .rows import KEYS

CallArguments = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and keyword arguments, without the context."""
Converted = tuple[list[Any], dict[str, Any]]
Place = tuple[str, Converter | None]
"""A description of an argument for error messages, and its converter."""
NONE_KNOWN: Final[Mapping[int | str, Any]] = types.MappingProxyType({})
TOO_DEEP: Final = "is nested too deeply: store the data and pass its id"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """The converters of a function's parameters and of its result.

    `new_plan()` compiles one for each function, also for functions whose annotations need no conversion. `converts` is
    False for these, and `encode()` only checks their calls.
    """

    positional: tuple[Place, ...]
    """The parameters that take positional arguments, without the context."""
    more_positional: Converter | None
    """The converter of `*args`."""
    named: Mapping[str, Converter | None]
    more_named: Converter | None
    """The converter of `**kwargs`."""
    result: Converter | None
    """The converter of the return value, or None if it needs no conversion."""
    ignored: Mapping[str, str]
    """By parameter, or `return`, the reason why its annotation is not used. These values stay plain JSON."""
    converts_arguments: bool
    loads_rows: bool
    """Whether an argument is the row of a model."""
    has_exact: bool
    """Whether `exact` and `exact_named` suffice for most calls: nothing is converted, nor checked in `**kwargs`."""
    exact: tuple[frozenset[type] | None, ...]
    """`Converter.exact` of each parameter in `positional`; None for a parameter that takes any value."""
    exact_named: Mapping[str, frozenset[type] | None]
    """The same for `named`."""

    @property
    def converts(self) -> bool:
        """Whether the annotations change anything."""
        return self.converts_arguments or self.result is not None

    def encode(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], known: Mapping[int | str, Any] = NONE_KNOWN
    ) -> CallArguments:
        """Return a call in plain JSON types, as far as annotations say how.

        The values in `known`, by position or name, are encoded already.

        Raises:
            TypeError: An argument does not fit its annotation.
            ValueError: An argument fits, but cannot be stored.
        """
        if not self.has_exact or known or len(args) > len(self.exact):
            return self._converted(args, kwargs, _encoded, known)
        place = 0
        for value in args:  # with enumerate() or zip(), it takes twice as long
            if (exact := self.exact[place]) is not None and type(value) not in exact:
                _encoded(self.positional[place], value)
            place += 1  # noqa: SIM113 -- as above
        for name in kwargs:
            if (exact := self.exact_named.get(name)) is not None and type(kwargs[name]) not in exact:
                _encoded(self._named(name), kwargs[name])
        return args, kwargs

    def fits_by_types(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call that `encode()` has returned fits whatever its values are, because of their types."""
        return (
            self.has_exact
            and len(args) <= len(self.exact)
            and all(exact is None or type(value) in exact for value, exact in zip(args, self.exact, strict=False))
            and all(
                (exact := self.exact_named.get(name)) is None or type(value) in exact for name, value in kwargs.items()
            )
        )

    def decode(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        rows: Rows = KEYS,
        known: Mapping[int | str, Any] = NONE_KNOWN,
    ) -> Converted:
        """Return the arguments of a stored call, with rows from `rows`, and the values in `known` as they are.

        Raises:
            ValueError: A stored value does not fit its annotation.
        """
        return self._converted(args, kwargs, partial(_decoded, rows=rows), known)

    def _converted(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        convert: Callable[[Place, Any], Any],
        known: Mapping[int | str, Any],
    ) -> Converted:
        by_place = [known[i] if i in known else convert(self._place(i), value) for i, value in enumerate(args)]
        by_name = {name: known[name] if name in known else convert(self._named(name), kwargs[name]) for name in kwargs}
        return by_place, by_name

    def references(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (model, primary key) for each row that a stored call names."""
        for index, stored in enumerate(args):
            yield from _references(self._place(index), stored)
        for name, stored in kwargs.items():
            yield from _references(self._named(name), stored)

    def _place(self, index: int) -> Place:
        if index < len(self.positional):
            return self.positional[index]
        return f"argument {index + 1}", self.more_positional

    def _named(self, name: str) -> Place:
        return f"argument {name!r}", self.named.get(name, self.more_named)

    def encode_result(self, value: Any) -> Any:
        """Return a return value in plain JSON types, or unchanged if it does not fit its annotation.

        The task's work has succeeded, so a wrong annotation must not fail the job.
        """
        if self.result is None:
            return value
        try:
            return self.result.encode(value)
        except Mismatch:
            return value

    def decode_result(self, stored: Any) -> Any:
        """Return a stored result as the annotation says, or unchanged if it does not fit."""
        if self.result is None or stored is None:
            return stored
        try:
            return self.result.decode(stored, KEYS)
        except (Mismatch, RecursionError):
            return stored


@cache
def call_plan(func: Callable[..., Any], context_arguments: int) -> CallPlan:
    """Return the plan of a function, compiled once.

    Args:
        func: The function of a task.
        context_arguments: Number of leading parameters that the worker passes: 1 if the task takes a context.

    Raises:
        InvalidTask: An annotation cannot be converted. The message names the parameter.
    """
    return new_plan(func, context_arguments)


def new_plan(func: Callable[..., Any], context_arguments: int) -> CallPlan:
    """Compile the plan of a function. While its module is imported, annotations may not be defined yet."""
    hints, ignored = _hints(func)
    hints = annotations_of_item(hints)
    parameters = _Parameters()
    taken = list(signature_of(func).parameters.values())[context_arguments:]
    for parameter in taken:
        parameters.add(parameter, hints.get(parameter.name, Any))
    result = None
    try:
        result = _result(hints.get("return", Any))
    except InvalidTask as error:  # the arguments can be converted all the same
        ignored["return"] = str(error)
    return CallPlan(
        positional=tuple(parameters.positional),
        more_positional=parameters.more.get(inspect.Parameter.VAR_POSITIONAL),
        named=parameters.named,
        more_named=parameters.more.get(inspect.Parameter.VAR_KEYWORD),
        result=result,
        ignored={name: ignored[name] for name in (*(each.name for each in taken), "return") if name in ignored},
        has_exact=not parameters.converts and parameters.more.get(inspect.Parameter.VAR_KEYWORD) is None,
        exact=tuple(_exact(converter) for _, converter in parameters.positional),
        exact_named={name: _exact(converter) for name, converter in parameters.named.items()},
        converts_arguments=parameters.converts,
        loads_rows=parameters.annotations.has_rows,
    )


def _exact(converter: Converter | None) -> frozenset[type] | None:
    return None if converter is None else converter.exact


class _Parameters:
    """The converters of a function's parameters, by the ways in which a call can pass them."""

    def __init__(self) -> None:
        self.annotations = Annotations()
        self.positional: list[Place] = []
        self.named: dict[str, Converter | None] = {}
        self.more: dict[Any, Converter | None] = {}
        self.converts = False

    def add(self, parameter: inspect.Parameter, hint: Any) -> None:
        """Compile the annotation of the next parameter."""
        if parameter.kind is parameter.VAR_KEYWORD and typing.get_origin(hint) is typing.Unpack:
            [options] = typing.get_args(hint)
            for name, annotation in _options(parameter.name, options).items():
                self.named[name] = self._compiled(name, annotation)
            return
        converter = self._compiled(parameter.name, hint)
        if parameter.default is None and converter is not None and not converter.accepts(None):
            converter = UnionConverter([converter, PLAIN[type(None)]])  # `at: datetime = None` is common
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            self.more[parameter.kind] = converter
            return
        if parameter.kind is not parameter.KEYWORD_ONLY:
            self.positional.append((f"argument {parameter.name!r}", converter))
        if parameter.kind is not parameter.POSITIONAL_ONLY:
            self.named[parameter.name] = converter

    def _compiled(self, name: str, annotation: Any) -> Converter | None:
        converter = _compiled(self.annotations, name, annotation)
        self.converts = self.converts or (converter is not None and converter.converts)
        return converter


def _compiled(annotations: Annotations, name: str, annotation: Any) -> Converter | None:
    try:
        return annotations.converter(annotation)
    except Exception as error:  # an annotation can be any object, and its class can be the project's
        raise _unusable(name, error) from error


def _options(name: str, options: Any) -> dict[str, Any]:
    """Return the annotations of the `TypedDict` in `**name: Unpack[…]`."""
    try:
        return typing.get_type_hints(options, include_extras=True)
    except Exception as error:
        raise _unusable(name, error) from error


def _unusable(name: str, error: Exception) -> InvalidTask:
    reason = error if isinstance(error, InvalidTask | NameError) else f"{type(error).__name__}: {error}"
    return InvalidTask(f"the annotation of {name!r} cannot be used: {reason}")


def _result(annotation: Any) -> Converter | None:
    """Return the converter of the return value. A result does not load rows, so a model stays as it is."""
    annotations = Annotations()
    converter = _compiled(annotations, "return", annotation)
    return None if converter is None or not converter.converts or annotations.has_rows else converter


def _hints(func: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the resolved annotations of a function, and for each other annotation the reason why it has no value."""
    try:
        return typing.get_type_hints(func, include_extras=True), {}
    except Exception:  # noqa: BLE001 -- an annotation can be any expression
        return _hints_of_each(func)


def _hints_of_each(func: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, str]]:
    hints: dict[str, Any] = {}
    ignored: dict[str, str] = {}
    names = inspect.unwrap(func).__globals__
    for name, annotation in raw_annotations(func).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(alone, names, include_extras=True)
        except Exception as error:  # noqa: BLE001 -- as above
            ignored[name] = str(error)
    return hints, ignored


def _encoded(place: Place, value: Any) -> Any:
    name, converter = place
    if converter is None:
        return value
    try:
        return converter.encode(value)
    except Mismatch as error:
        raise error.error_class(error.message(name)) from None
    except RecursionError:  # for example, a list that contains itself
        raise ValueError(f"{name} {TOO_DEEP}") from None


def _decoded(place: Place, stored: Any, rows: Rows) -> Any:
    name, converter = place
    if converter is None or not converter.converts:
        return stored
    try:
        return converter.decode(stored, rows)
    except Mismatch as error:
        raise ValueError(error.message(name)) from None
    except RecursionError:
        raise ValueError(f"{name} {TOO_DEEP}") from None


def _references(place: Place, stored: Any) -> Iterator[tuple[Any, Any]]:
    converter = place[1]
    return iter(()) if converter is None else converter.references(stored)
