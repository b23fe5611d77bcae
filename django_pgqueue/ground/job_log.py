"""The log lines that a task writes and its execution keeps: their types, their limits, and the buffer of a running job.

`worker.execution.log_recorder` makes the lines, the completer writes a buffer's content, and `Execution.log_lines`
reads it. The limits bound the memory of a running job and the size of its row: a task that logs without end keeps its
first and its last lines.
"""

from __future__ import annotations

import json
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

LEVELS: Final = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
"""The levels that the option `keep_logs` accepts, with their numbers."""
LINE_BYTES: Final = 4096
"""Maximum size of one line with its traceback, in bytes of UTF-8. The middle of a longer one is cut out."""
NAME_BYTES: Final = 200
HALF_LINES: Final = 500
HALF_CHARACTERS: Final = 32 * 1024
"""How many lines and characters of the first and of the last lines are kept, each: 1,000 lines and 64 Ki characters."""


class LogLine(NamedTuple):
    """One log line that a task wrote.

    Attributes:
        at: When it was logged, by the worker's clock.
        level: Name of its level, such as "INFO".
        logger: Name of its logger.
        message: Its text, with the traceback if it has one.
    """

    at: datetime
    level: str
    logger: str
    message: str

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.level} {self.logger}: {self.message}"


class RecordedLine(NamedTuple):
    """A line as the worker's processes pass it on. `number` counts all recorded lines of the execution."""

    number: int
    seconds: float
    """When it was logged, in seconds since 1970."""
    level: str
    logger: str
    message: str


class LogContent(NamedTuple):
    """The content of a buffer, in the columns of its row. The two lists of lines are JSON text."""

    first_lines: str
    last_lines: str
    cut_lines: int


class LogBuffer:
    """The lines of one execution. Several threads may add lines: each access is one atomic operation."""

    def __init__(self) -> None:
        self._first: list[RecordedLine] = []
        self._room = HALF_CHARACTERS
        self._last: deque[RecordedLine] = deque(maxlen=HALF_LINES)

    def add(self, line: RecordedLine) -> None:
        """Keep a line. If the first half is full, the oldest lines of the last half make room."""
        if self._room > 0 and len(self._first) < HALF_LINES:
            self._first.append(line)
            self._room -= len(line.message)
        else:
            self._room = 0  # later lines are not among the first, even if a short one would fit
            self._last.append(line)

    def content(self) -> LogContent:
        """Return what is to be written."""
        first, last, room = self._first, list(self._last), HALF_CHARACTERS
        kept = len(last)
        while kept and room > 0:
            kept -= 1
            room -= len(last[kept].message)
        last = last[kept:]
        cut = last[0].number - first[-1].number - 1 if last and first else 0
        return LogContent(_as_json(first), _as_json(last), max(0, cut))


def _as_json(lines: list[RecordedLine]) -> str:
    return json.dumps([line[1:] for line in lines])


def as_lines(stored: Any) -> list[LogLine]:
    """Return the lines that a column contains. Omit what is not a line, because a row can contain anything."""
    return [line for each in stored if (line := _as_line(each))] if isinstance(stored, list) else []


def _as_line(stored: Any) -> LogLine | None:
    try:
        seconds, level, logger, message = stored
        return LogLine(datetime.fromtimestamp(seconds, UTC), str(level), str(logger), str(message))
    except (TypeError, ValueError, OverflowError, OSError):
        return None
