"""Read the parameters and the annotations of a function without evaluating the annotations.

`definition`, `arguments`, `validation` and `retry` use it. From Python 3.14 on, `inspect.signature()` evaluates
annotations by default, and raises `NameError` for a name that is imported under `if TYPE_CHECKING:`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any


def signature_of(func: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or a class, whether or not its annotations are defined."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(func, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(func)


def raw_annotations(func: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function as they are written: strings or objects."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(func, format=annotationlib.Format.FORWARDREF)
    return func.__annotations__
