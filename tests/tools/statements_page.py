"""Writes the page on the SQL statements from the comments above them: `python -m tests.tools.statements_page --write`.

Without `--write`, the program only reports whether docs/internals/statements.md is up to date. It ends with status 1 if
it is not.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

TOP: Final = Path(__file__).resolve().parents[2]
SQL: Final = TOP / "django_pgqueue" / "sql"
LIFECYCLE: Final = TOP / "django_pgqueue" / "lifecycle"
PAGE: Final = TOP / "docs" / "internals" / "statements.md"
CONSTANT: Final = re.compile(r'((?:^#.*\n)+)^([A-Z_]+): Final = (?:\(\s*)?"""/\* pgqueue:', re.MULTILINE)
KEY: Final = re.compile(r"([A-Z]\w+(?:, [A-Z]\w+)*): +")
SENTENCE: Final = re.compile(r"(.+?)[.:](?=\s|$)")
CALL: Final = re.compile(r"(?:lifecycle\.)?([a-z][\w.]*\(\))")
INDEX: Final = re.compile(r"\bpgqueue_(?!job\b)\w+(?<!_pkey)\b")
AS_ANOTHER: Final = re.compile(r"(?:that of|as) ([A-Z_]+)")
DETAIL: Final = re.compile(
    r",? (?:in the order of (?:their|the) \w+|in their order|from one page of the table"
    r"|until the end of the transaction|the (?:oldest|newest) first)\b"
)
"""What a reader of the page does not need to know."""
INTRODUCTION: Final = """\
# Statements

After this page, you know what a statement in `pg_stat_statements` does, and which function of `lifecycle` runs it.

Every statement begins with its name in lower case, such as `/* pgqueue:claim */`, also in `pg_stat_activity` and in the
server's log. The comments above the statements in `django_pgqueue.sql` also give the moves, the fence and the locks.
`python -m tests.tools.statements_page --write` writes this page from them. A line ends with the function, and with the
indexes except primary keys.

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
    """Return the text of the page: one list, in the order of the names, because a reader has a name."""
    found = {each.name: each for module in SQL.glob("*.py") for each in statements(module)}
    return INTRODUCTION + "".join(line(each, found) for _, each in sorted(found.items()))


def line(statement: Statement, others: Mapping[str, Statement]) -> str:
    """Return the line of a statement: the first sentence of its comment, the function that runs it, its indexes."""
    first = SENTENCE.match(statement.summary)
    calls = CALL.findall(fact(statement, "Caller", others)) or [caller_in_code(statement.name)]
    indexes = dict.fromkeys(INDEX.findall(fact(statement, "Index", others)))
    named = ", ".join(f"`{each}`" for each in (calls[0], *indexes))
    summary = DETAIL.sub("", first[1] if first else statement.summary)
    text = f"- **{statement.name}** {summary}: {named}"
    return textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


def caller_in_code(name: str) -> str:
    """Return the function of `lifecycle` that names a statement whose comment names no function."""
    for module in sorted(LIFECYCLE.glob("*.py")):
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.FunctionDef) and re.search(rf"\bsql\.\w+\.{name}\b", ast.unparse(node)):
                return f"{module.stem}.{node.name}()"
    raise LookupError(f"no function of lifecycle names {name}")


def fact(statement: Statement, key: str, others: Mapping[str, Statement]) -> str:
    """Return what a comment says under a key, or what the comment of the statement says that it refers to."""
    text = statement.facts.get(key, "")
    named = AS_ANOTHER.match(text)
    return fact(others[named[1]], key, others) if named and named[1] in others else text


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
