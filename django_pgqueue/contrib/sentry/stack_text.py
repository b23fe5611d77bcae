"""Read the text of a traceback as the exceptions of a Sentry event.

The exception of an isolated job stays in its process, and a job that was killed at its timeout has only a stack. Their
text has the file, the line, the function and the source line of each frame, but no variables.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

CHAINED: Final = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
FRAME: Final = re.compile(
    r'^[ |+-]*File "(?P<path>[^"\n]+)", line (?P<line>\d+),? in (?P<function>[^\n]+)'
    r'(?:\n[ |]{4,}(?!File ")(?P<source>[^\n]+))?',
    re.MULTILINE,
)
NEWEST_FIRST: Final = "(most recent call first)"
"""In the stack that a process writes before it is killed."""
WITHOUT_CLASS: Final = "JobDied"
"""The type of an event about a job whose process or worker was lost."""


def exception_values(exception_class: str, error: str, text: str) -> list[dict[str, Any]]:
    """Return the exceptions of an event, the one that ended the attempt last. `text` may be empty or cut."""
    *causes, last = CHAINED.split(text)
    values = [_value(*_headline(cause), cause) for cause in causes]
    return [*values, _value(exception_class or WITHOUT_CLASS, error, last)]


def frames_of(text: str) -> list[dict[str, Any]]:
    """Return the frames in a text, the outermost first."""
    frames = [_frame(match) for match in FRAME.finditer(text)]
    return frames[::-1] if NEWEST_FIRST in text else frames


def _value(path: str, error: str, text: str) -> dict[str, Any]:
    module, _, name = path.rpartition(".")
    value: dict[str, Any] = {"type": name, "value": error, "module": module or None}
    if frames := frames_of(text):
        value["stacktrace"] = {"frames": frames}
    return value


def _headline(text: str) -> tuple[str, str]:
    """Return the class and the message of a traceback: its last line that is not indented."""
    lines = [line for line in text.splitlines() if line and not line[0].isspace()]
    path, _, error = (lines[-1] if lines else "").partition(": ")
    return path, error


def _frame(match: re.Match[str]) -> dict[str, Any]:
    path = match["path"]
    relative = _relative(path)
    frame: dict[str, Any] = {
        "abs_path": path,
        "filename": relative,
        "function": match["function"].strip(),
        "lineno": int(match["line"]),
        "module": relative.removesuffix(".py").removesuffix("/__init__").replace("/", ".").strip("."),
    }
    if match["source"]:
        frame["context_line"] = match["source"].strip()
    return frame


def _relative(path: str) -> str:
    """Return a path relative to the directory that it was imported from: the longest one that contains it."""
    roots = sorted((root for root in sys.path if root and Path(path).is_relative_to(root)), key=len)
    return str(Path(path).relative_to(roots[-1])) if roots else path
