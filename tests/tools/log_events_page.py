"""Writes the tables of the log events from their declarations: `python -m tests.tools.log_events_page --write`.

Without `--write`, the program only reports whether docs/reference/logging.md is up to date. It ends with status 1 if it
is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from django_pgqueue.ground.log_events import EVENTS, JOB_FIELDS

from .signals_page import replaced

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "logging.md"
HEAD: Final = "| event | level | meaning, and further fields |\n|---|---|---|\n"
OF_JOBS: Final = "*job*"
"""What the table says for all fields that describe a job. The page explains it."""


def table() -> str:
    """Return the table of all events, in the order of the module."""
    return HEAD + "".join(
        f"| `{name}` | {about.level} | {' '.join([about.meaning, *fields(about.fields)])} |\n"
        for name, about in EVENTS.items()
    )


def fields(names: Sequence[str]) -> list[str]:
    """Return the fields of an event in parentheses, those of its job as one; nothing if it has none."""
    is_of_job = set(JOB_FIELDS) <= set(names)
    further = [f"`{name}`" for name in names if not (is_of_job and name in JOB_FIELDS)]
    parts = [OF_JOBS] * is_of_job + further
    return [f"({', '.join(parts)})"] if parts else []


def written(text: str) -> str:
    """Return the page's text with the current table in place of its own."""
    return replaced(text, HEAD, table())


def main(options: Sequence[str]) -> int:
    """Write the page if asked to, print whether it was up to date, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.log_events_page", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    write = parser.parse_args(options).write
    before = PAGE.read_text()
    after = written(before)
    if write:
        PAGE.write_text(after)
    elif before != after:
        print("docs/reference/logging.md is not up to date: run python -m tests.tools.log_events_page --write")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
