"""Errors of calls that do not fit a function of the package: they say how to write the call.

A first guess comes from another library, so Python's own message does not help: "every() takes 0 positional arguments".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Advise = Callable[[tuple[Any, ...], Mapping[str, Any]], str]
"""Returns what to write instead of a call with these arguments."""


def advised(advise: Advise) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds advice to the `TypeError` of a call that does not fit the function's signature."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError:
                    raise TypeError(f"{error}: {advise(args, kwargs)}") from None
                raise

        return call

    return decorate


def suggesting(
    example: str, meant: Mapping[str, str] | None = None, called: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that names the argument that was probably meant, if a call does not fit the signature.

    Args:
        example: What to write, if no argument is misspelled.
        meant: Names of other libraries, and the names of the arguments that they stand for.
        called: The name of the function in the message. By default that of the class of the first argument.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as misfit:
                    advice = _advice(kwargs, signature, meant or {}) or f"write {example}"
                    raise TypeError(f"{called or type(args[0]).__name__}() {misfit}: {advice}") from None
                raise

        return call

    return decorate


def _advice(given: Mapping[str, Any], signature: inspect.Signature, meant: Mapping[str, str]) -> str:
    """Return which argument was probably meant by the first one that the function does not have, or an empty text."""
    for unknown in given.keys() - signature.parameters.keys():
        close = meant.get(unknown) or next(iter(get_close_matches(unknown, signature.parameters, n=1)), "")
        return f"did you mean {close!r}?" if close else ""
    return ""
