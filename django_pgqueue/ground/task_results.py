"""Translate the columns of jobs and executions into the terms of Django's tasks framework.

`Job` uses it for the attributes that the framework's `TaskResult` has too, and `backend` for its own results.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django_pgqueue.exceptions import CannotDecode
from django_pgqueue.states import UNCOUNTED, Outcome, State

from .envelope import EncodedValue

STATUS: Final[Mapping[str, str]] = {
    State.READY: "READY",
    State.WAITING: "READY",
    State.RUNNING: "RUNNING",
    State.SUCCEEDED: "SUCCESSFUL",
    State.DEAD: "FAILED",
    State.CANCELLED: "FAILED",
}
"""The framework's status for each state. A row with an unknown state is FAILED."""
OF_ERRORS: Final = ("outcome", "exception_class", "error", "traceback")
"""Columns of an execution that `errors_of()` reads."""
WORKER_LOST: Final = "django_pgqueue.exceptions.WorkerLost"
CANCELLED: Final = "django_pgqueue.exceptions.Cancel"
RENAMED: Final = {"django_pgqueue.exceptions.TaskTimeout": "django_pgqueue.exceptions.TaskTimedOut"}
"""Classes that a result names differently: there the error of a timeout is a `TimeoutError`."""


@dataclass(frozen=True, slots=True)
class AttemptError:
    """The error of one attempt, with the attributes of the framework's `TaskError`."""

    exception_class_path: str
    """Dotted path of the exception's class."""
    traceback: str
    """Traceback, or the error text of an attempt without a traceback."""

    @property
    def exception_class(self) -> type[BaseException]:
        """The exception's class.

        The path comes from a row, so no module is imported for it. Raises `ValueError` if this process has not imported
        the class, or if the path names something else.
        """
        module_path, _, rest = self.exception_class_path, "", ""
        while module_path and module_path not in sys.modules:
            module_path, _, last = module_path.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        found: Any = sys.modules.get(module_path)
        for name in rest.split("."):
            found = inspect.getattr_static(found, name, None)  # a module's __getattr__ could import something
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        raise ValueError(f"this process has imported no exception class {self.exception_class_path!r}")


def errors_of(state: str, history: Iterable[Mapping[str, Any]]) -> list[AttemptError]:
    """Return an error for each failed attempt, and one for a job that ended without a failed attempt."""
    records = list(history)
    errors = [_error(record) for record in records if record["outcome"] in (Outcome.FAILED, Outcome.CRASHED)]
    last = records[-1] if records else None
    if state == State.DEAD and last and last["outcome"] in UNCOUNTED:
        errors.append(_error(last))
    if state == State.CANCELLED:
        reason = last["error"] if last and last["outcome"] == Outcome.CANCELLED else ""
        errors.append(AttemptError(CANCELLED, reason or "the job was cancelled"))
    return errors


def _error(record: Mapping[str, Any]) -> AttemptError:
    path = record["exception_class"] or WORKER_LOST
    return AttemptError(RENAMED.get(path, path), record["traceback"] or record["error"])


def argument_part(arguments: Any, name: str, empty: Any) -> Any:
    """Return `args` or `kwargs` of a row's arguments, or `empty` if a row written by hand has no valid value.

    Raise `CannotDecode` if this process cannot decode the arguments: a call without them would be another call.
    """
    if isinstance(arguments, EncodedValue):
        raise CannotDecode(f"the job's arguments cannot be read: {arguments.problem}")
    value = arguments.get(name) if isinstance(arguments, dict) else None
    return value if isinstance(value, type(empty)) else empty
