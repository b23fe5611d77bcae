"""Errors of calls that do not fit a function of the package: they say how to write the call.

A first guess comes from another library, so Python's own message does not help: "every() takes 0 positional arguments".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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
