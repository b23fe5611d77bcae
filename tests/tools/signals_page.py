"""Writes the table of the signals from their descriptions: `python -m tests.tools.signals_page --write`.

Without `--write`, the program only reports whether docs/reference/signals.md is up to date. It ends with status 1 if it
is not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import django

TOP: Final = Path(__file__).resolve().parents[2]
PAGE: Final = TOP / "docs" / "reference" / "signals.md"
HEAD: Final = "| signal | when it is sent | arguments | where its receivers run |\n|---|---|---|---|\n"
OF_ATTEMPTS: Final = ("job_id", "database", "execution_id", "queue_name", "attempt")
USUAL: Final = "the worker process, in its callback thread"
"""What the table leaves out, because the page says that it is meant where nothing else is said."""


def table() -> str:
    """Return the table of all signals, in the order of the module."""
    from django_pgqueue import signals

    named = [(name, value) for name, value in vars(signals).items() if isinstance(value, signals.WorkerSignal)]
    return HEAD + "".join(
        f"| `{name}` | {about.moment} | {arguments(about.arguments, about.sometimes)} "
        f"| {'' if about.where == USUAL else about.where} |\n"
        for name, about in named
    )


def arguments(always: Sequence[str], sometimes: Mapping[str, str]) -> str:
    """Return the arguments that every call has, and those with a condition. Names with one condition stand together.

    The five that describe an attempt are `*attempt*`, which the page explains.
    """
    is_of_attempt = set(OF_ATTEMPTS) <= set(always)
    of_all = [f"`{name}`" for name in always if not (is_of_attempt and name in OF_ATTEMPTS)]
    parts = [", ".join(["*attempt*"] * is_of_attempt + of_all)]
    for condition in dict.fromkeys(sometimes.values()):
        names = ", ".join(f"`{name}`" for name in sometimes if sometimes[name] == condition)
        parts.append(f"{condition}: {names}")
    return "; ".join(parts)


def written(text: str) -> str:
    """Return the page's text with the current table in place of its own."""
    return replaced(text, HEAD, table())


def replaced(text: str, head: str, new: str) -> str:
    """Return the text of a page with a new table in place of the one with this head."""
    lines = text.splitlines(keepends=True)
    first = lines.index(head.splitlines(keepends=True)[0])
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    return "".join([*lines[:first], new, *lines[last:]])


def main(options: Sequence[str]) -> int:
    """Write the page if asked to, print whether it was up to date, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.signals_page", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    write = parser.parse_args(options).write
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    before = PAGE.read_text()
    after = written(before)
    if write:
        PAGE.write_text(after)
    elif before != after:
        print("docs/reference/signals.md is not up to date: run python -m tests.tools.signals_page --write")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
