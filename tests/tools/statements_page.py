"""Writes the page on the SQL statements from the comments above them: `python -m tests.tools.statements_page --write`.

Without `--write`, the program only reports whether docs/internals/statements.md is up to date. It ends with status 1 if
it is not.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

TOP: Final = Path(__file__).resolve().parents[2]
SQL: Final = TOP / "django_pgqueue" / "sql"
PAGE: Final = TOP / "docs" / "internals" / "statements.md"
CONSTANT: Final = re.compile(r'((?:^#.*\n)+)^([A-Z_]+): Final = (?:\(\s*)?"""/\* pgqueue:', re.MULTILINE)
KEY: Final = re.compile(r"([A-Z]\w+(?:, [A-Z]\w+)*): +")
INTRODUCTION: Final = """\
# Statements

After this page, you can find the statement that does something to a job, and the function that runs it.

`python -m tests.tools.statements_page --write` writes this page from the comments above the statements. These comments
also give the fence, the locks and the index of each statement. Every statement begins with its name in lower case, such
as `/* pgqueue:claim */`, so you can find it in `pg_stat_activity` and in the server's log.
"""
END: Final = """\
See also: [How to add a statement](how_to_add_a_statement.md), [the life cycle of a job](../concepts/life_cycle.md),
[decision 2: SQL is static text](decisions/0002_static_sql.md).
"""


class Statement(NamedTuple):
    """What the comment above a statement says."""

    name: str
    summary: str
    facts: dict[str, str]


def statements(module: Path) -> Iterator[Statement]:
    """Yield the statements of a module in their order."""
    for comment, name in CONSTANT.findall(module.read_text()):
        lines = [line[1:].strip() for line in comment.splitlines()]
        summary, *rest = "\n".join(lines).split("\n\n")
        facts: dict[str, str] = {}
        for line in rest[0].splitlines() if rest else ():
            if found := KEY.match(line):
                keys = found[1].split(", ")
                facts |= dict.fromkeys(keys, line[found.end() :])
            elif facts:
                facts[keys[-1]] += f" {line}"
        yield Statement(name, summary.replace("\n", " "), facts)


def page() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION]
    for module in sorted(SQL.glob("*.py")):
        if found := list(statements(module)):
            rows = "\n".join(
                f"| `{each.name}` | {each.summary} | {each.facts.get('Moves', '')} | {each.facts.get('Caller', '')} |"
                for each in found
            )
            about = (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]
            parts.append(
                f"## {module.stem.capitalize()}\n\n{about}\n\n"
                f"| statement | what it does | moves | run by |\n|---|---|---|---|\n{rows}\n"
            )
    return "\n".join([*parts, END])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page; return 1 if it is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.statements_page")
    parser.add_argument("--write", action="store_true", help="write the page")
    if parser.parse_args(arguments).write:
        PAGE.write_text(page())
    is_current = PAGE.read_text() == page()
    print("up to date" if is_current else "out of date: run python -m tests.tools.statements_page --write")  # noqa: T201
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
