"""Keep the arguments of jobs out of Sentry's events.

Sentry sends the variables of all frames. The frames of this package, and those of the libraries between it and the
project's code, contain the arguments of jobs, so their variables are always removed. A task with `sensitive` passes its
arguments to functions that may give them any names, so the events of its attempts contain no variables at all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any, Final

PACKAGE: Final = "django_pgqueue"
LIBRARIES: Final = sys.stdlib_module_names | {"django", "psycopg", "psycopg_binary", "asgiref", "pydantic", "msgspec"}
"""Top packages whose functions this package calls with arguments of jobs."""
HIDING: Final = "django.views.decorators.debug"
"""The module of `sensitive_variables()`, which wraps the functions that take sensitive arguments."""
FAILURES: Final = ("job_dead", "job_failed")
"""The names of the worker's log events that report the failure of a job."""


def is_about_failure(record: logging.LogRecord | None) -> bool:
    """Return whether a log record reports a failed or dead job, which the receivers of the signals report too."""
    name = getattr(record, "event", "")
    if record is None or record.name != "django_pgqueue.worker" or not isinstance(name, str):
        return False
    return name in FAILURES or (name == "job_refused" and "is now dead" in record.msg)


def without_engine_values(event: Any) -> Any:
    """Remove the variables of this package's frames, and of the libraries' frames that it has called."""
    for frames in _stacks_of(event):
        is_ours = False
        for frame in frames:  # the outermost first
            module = str(frame.get("module") or "")
            top = module.partition(".")[0]
            if top == PACKAGE:
                is_ours = True
            elif top not in LIBRARIES:
                is_ours = False
            if is_ours or module == HIDING:
                frame.pop("vars", None)
    return event


def without_values(event: Any, hint: dict[str, Any]) -> Any:
    """Remove the variables of all frames. An event processor for the scopes of sensitive tasks."""
    for frames in _stacks_of(event):
        for frame in frames:
            frame.pop("vars", None)
    return event


def _stacks_of(event: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the frames of each stack of an event."""
    for place in ("exception", "threads"):
        for value in (event.get(place) or {}).get("values") or ():
            yield (value.get("stacktrace") or {}).get("frames") or []
