"""Print what a subcommand has read: a table that fits the terminal, text with colours, or one JSON document.

The subcommands call it. It protects two rules. Text from rows passes through `display.in_line()`, so that control
characters in it cannot change a terminal, and line breaks cannot make it look like other lines of the output. Colours,
and the cut to the terminal's width, are for terminals only: a pipe or a file gets whole values.
"""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.core.management.base import OutputWrapper

from django_pgqueue.display import full_date, in_line
from django_pgqueue.ground.plurals import counted as counted

GAP: Final = "  "
NARROWEST: Final = 12
"""Characters that a column keeps at least when a table is cut."""
CODES: Final = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "grey": 90, "bold": 1}
COLOURS: Final = {
    "due": "cyan",
    "scheduled": "blue",
    "retrying": "yellow",
    "paused": "magenta",
    "waiting": "grey",
    "running": "green",
    "lost": "red",
    "cancelling": "yellow",
    "succeeded": "grey",
    "dead": "red",
    "acknowledged": "grey",
    "cancelled": "grey",
    "stopped": "grey",
    "silent": "red",
    "failing": "red",
    "cannot run": "red",
}
"""The colours of words for states. A comma can follow the word in a cell."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: The first line.
        cell: Returns the value of an item of the table.
        is_number: Whether values are aligned to the right.
        is_flexible: Whether values may be cut, so that the table fits the terminal.
        keeps_end: Whether a cut keeps the end of a value: a task is recognised by the last part of its name.
        is_state: Whether values get the colour of a state.
    """

    heading: str
    cell: Callable[[Any], Any]
    is_number: bool = False
    is_flexible: bool = False
    keeps_end: bool = False
    is_state: bool = False


class Output:
    """Where a subcommand prints: what it has read to standard output, and what it says about that to standard error."""

    def __init__(self, options: Mapping[str, Any], stdout: OutputWrapper, stderr: OutputWrapper) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.is_json = bool(options.get("json"))
        self._options = options

    def write(self, text: str) -> None:
        """Print one or several lines."""
        self.stdout.write(text)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Print each of these lines."""
        for line in lines:
            self.stdout.write(line)

    def json(self, document: Any) -> None:
        """Print a document as JSON: times are ISO 8601 in UTC, and dataclasses are objects with their fields."""
        self.stdout.write(json.dumps(document, indent=2, default=_plain))

    def summary(self, text: str) -> None:
        """Print a line that is not part of the data, without the colour of an error."""
        self.stderr.write(text, style_func=str)

    def listing(
        self,
        key: str,
        columns: Sequence[Column],
        items: Sequence[Any],
        summary: str,
        as_json: Callable[[Any], Any] = lambda item: item,
        **more: Any,
    ) -> None:
        """Print what a command lists: one JSON document with `key` and `more`, or a table and a summary."""
        if self.is_json:
            self.json({key: [as_json(item) for item in items], **more})
            return
        if items:
            self.table(columns, items)
        self.summary(summary)

    def table(self, columns: Sequence[Column], items: Iterable[Any]) -> None:
        """Print a row for each item below headings. None is an empty cell, and an integer has separators."""
        self.write_lines(self.table_lines(columns, items))

    def table_lines(self, columns: Sequence[Column], items: Iterable[Any]) -> list[str]:
        """Return the lines of a table for this output."""
        rows = ([_text(column.cell(item)) for column in columns] for item in items)
        lines = [[column.heading for column in columns], *rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        if self.stdout.isatty():
            widths = _fitted(widths, columns, shutil.get_terminal_size().columns)
        found = []
        for number, line in enumerate(lines):
            cells = [_cell(text, width, column) for text, width, column in zip(line, widths, columns, strict=True)]
            if self._has_colours:
                cells = [
                    _in_colour(cell, _colour(text, column, number))
                    for cell, text, column in zip(cells, line, columns, strict=True)
                ]
            found.append(GAP.join(cells).rstrip())
        return found

    def wrapped(self, text: str) -> list[str]:
        """Return a text in lines that fit the terminal, or in one line if the output is not a terminal."""
        if not self.stdout.isatty():
            return [text]
        return textwrap.wrap(text, shutil.get_terminal_size().columns, subsequent_indent="  ")

    def coloured(self, text: str, word: str = "bold") -> str:
        """Return a text in a colour, or in that of a state, if the output has colours."""
        return _in_colour(text, COLOURS.get(word, word)) if self._has_colours else text

    @property
    def _has_colours(self) -> bool:
        """Whether to print colours: on a terminal, unless `NO_COLOR` is set or Django's options say otherwise."""
        if self._options.get("no_color") or self._options.get("force_color"):
            return bool(self._options.get("force_color"))
        return bool(self.stdout.isatty()) and "NO_COLOR" not in os.environ


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no form in the output: convert it first")


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return in_line(text)


def _fitted(widths: list[int], columns: Sequence[Column], available: int) -> list[int]:
    """Return widths that fit a terminal: the widest flexible column gives up characters first."""
    fitted = list(widths)
    flexible = [index for index, column in enumerate(columns) if column.is_flexible]
    while sum(fitted) + len(GAP) * (len(fitted) - 1) > available:
        widest = max(flexible, key=lambda index: fitted[index], default=None)
        if widest is None or fitted[widest] <= NARROWEST:
            break
        fitted[widest] -= 1
    return fitted


def _cell(text: str, width: int, column: Column) -> str:
    if len(text) > width:
        text = f"…{text[1 - width :]}" if column.keeps_end else f"{text[: width - 1]}…"
    return text.rjust(width) if column.is_number else text.ljust(width)


def _colour(text: str, column: Column, line: int) -> str | None:
    if line == 0:
        return "bold"
    return COLOURS.get(text.partition(",")[0]) if column.is_state else None


def _in_colour(text: str, colour: str | None) -> str:
    return text if colour is None else f"\x1b[{CODES[colour]}m{text}\x1b[0m"


def date_of(at: datetime | None) -> str:
    """Return the date and the time to the second, in the current time zone; "" for None."""
    return "" if at is None else full_date(at)
