"""Compare the arguments of some calls of one task: which are the same in all of them, and which differ.

Used by the page of incidents. The arguments come as `display.shown_arguments()` shows them, so sensitive values are
hidden before they are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from django_pgqueue.display import shortened, shown_arguments
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import BY_POSITION

EXAMPLES: Final = 5
"""Different values shown of an argument."""
MISSING: Final = "–"
"""Shown for a call that does not pass the argument."""


class Argument(NamedTuple):
    """An argument of the calls: its values, the most frequent first, with the number of calls that pass each."""

    name: str
    values: tuple[tuple[str, int], ...]
    more: int
    """How many further different values there are."""

    @property
    def differs(self) -> bool:
        """Whether the calls pass different values."""
        return len(self.values) > 1


class Compared(NamedTuple):
    """The arguments of the calls, those that differ first; how many calls could be read, and why others could not."""

    arguments: list[Argument]
    calls: int
    note: str


def compare(task_name: str, texts: Sequence[str]) -> Compared:
    """Return the arguments of calls, given as stored text."""
    calls: list[dict[str, str]] = []
    note = ""
    for text in texts:
        shown = shown_arguments(task_name, text)
        note = note or shown.note
        if shown.text and (call := _call(task_name, shown.text)) is not None:
            calls.append(call)
    names = list(dict.fromkeys(name for call in calls for name in call))
    found = [_argument(name, calls) for name in names]
    return Compared(sorted(found, key=lambda each: not each.differs), len(calls), note)


def _call(task_name: str, text: str) -> dict[str, str] | None:
    """Return the values of a call by the names of its arguments; None if the text was cut or written by hand."""
    with suppress(ValueError, RecursionError, TypeError, AttributeError, KeyError):
        call = json.loads(text)
        names = _positions(task_name)
        args = {next(names): _text(value) for value in call["args"]}
        return args | {str(name): _text(value) for name, value in call["kwargs"].items()}
    return None


def _positions(task_name: str) -> Iterator[str]:
    """Yield the names of the positional arguments, and numbers for further ones."""
    task = registry.get(task_name)
    parameters = list(task.signature.parameters.values())[task.takes_context :] if task is not None else []
    names = [parameter.name for parameter in parameters if parameter.kind in BY_POSITION]
    yield from names
    number = len(names)
    while True:
        number += 1
        yield f"*{number}"


def _text(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def _argument(name: str, calls: Sequence[Mapping[str, str]]) -> Argument:
    counts: dict[str, int] = {}
    for call in calls:
        value = call.get(name, MISSING)
        counts[value] = counts.get(value, 0) + 1
    values = sorted(counts.items(), key=lambda item: -item[1])
    return Argument(shortened(name), tuple(values[:EXAMPLES]), max(len(values) - EXAMPLES, 0))
