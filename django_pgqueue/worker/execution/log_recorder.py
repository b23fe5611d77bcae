"""Record the log lines of the running task, for tasks with `keep_logs`.

`Attempt` starts a recorder for its task. The recorder is a context variable, so lines of coroutines on one event loop
never mix, and lines that the task logs in `asyncio.to_thread()` are recorded too.

The records pass through Python's factory of log records, which is wrapped when the first such task starts. A handler
would miss loggers that do not propagate. It would also hide warnings of a project without handlers, because Python
prints those only if no handler exists. A process that runs no task with `keep_logs` has Python's own factory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from itertools import count
from typing import Any, Final

from django_pgqueue.ground.job_log import LINE_BYTES, NAME_BYTES, RecordedLine

from .error_text import storable

OWN_LOGGER: Final = "django_pgqueue"
"""Lines of this logger and those below it are not the task's."""
AddLine = Callable[[RecordedLine], None]
_formatter: Final = logging.Formatter()


class LogRecorder:
    """Passes the lines of one attempt on, from a level on."""

    __slots__ = ("_add", "_numbers", "level")

    def __init__(self, level: int, add: AddLine) -> None:
        self.level = level
        self._add = add
        self._numbers = count(1)

    def record(self, record: logging.LogRecord) -> None:
        """Pass a line on as text, so that it keeps none of the record's objects alive."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{_formatter.formatException(record.exc_info)}"
        if record.stack_info:
            text = f"{text}\n{record.stack_info}"
        level, logger = storable(record.levelname, NAME_BYTES), storable(record.name, NAME_BYTES)
        self._add(RecordedLine(next(self._numbers), record.created, level, logger, storable(text, LINE_BYTES)))


recorder: Final[ContextVar[LogRecorder | None]] = ContextVar("pgqueue_log_recorder", default=None)
"""The recorder of the attempt that runs in this thread or coroutine, or None."""


class RecordingFactory:
    """Makes log records with another factory, and passes those of a recorded task to its recorder."""

    def __init__(self, factory: Callable[..., logging.LogRecord]) -> None:
        self._factory = factory

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        """Make a record. An error of the task's code, such as a `__repr__` that raises, drops only the kept line."""
        record = self._factory(*args, **kwargs)
        current = recorder.get()
        if current is not None and record.levelno >= current.level and not _is_own(record.name):
            token = recorder.set(None)  # a `__repr__` that logs would otherwise be recorded inside its own line
            try:
                with suppress(Exception):
                    current.record(record)
            finally:
                recorder.reset(token)
        return record


def start(level: int, add: AddLine) -> None:
    """Record the lines of the running attempt in this context, from `level` on."""
    if not _installed:
        _installed.append(RecordingFactory(logging.getLogRecordFactory()))
        logging.setLogRecordFactory(_installed[0])
    recorder.set(LogRecorder(level, add))


_installed: Final[list[RecordingFactory]] = []
"""The factory of this process, once it is installed. Another library may wrap it."""


def _is_own(name: str) -> bool:
    return name == OWN_LOGGER or name.startswith(f"{OWN_LOGGER}.")
