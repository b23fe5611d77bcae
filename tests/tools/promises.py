"""Names the tests that hold each promise of the documentation: `python -m tests.tools.promises [--write]`.

A row of a table has an id in a comment, or as its last cell but one. An item of a list in the section "The tests"
begins with an id. A test that holds it names the id: `@pytest.mark.promise("tables-match-model")`.
The last cell of the row, or the rest of the item, lists these tests, so a renamed test needs only `--write`. A fault,
the model or the checker stands in the same place, written by hand.

Without `--write`, the program prints what is wrong and changes nothing. It ends with status 1 if it finds anything.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).resolve().parents[2]
PAGES: Final = ("docs/concepts/guarantees.md", "docs/internals/bugs_missed_by_tests.md")
HEADS: Final = ("checked by", "covered by")
"""How the last column of such a table is headed."""
ROW: Final = re.compile(
    r"(?P<start>\|.*(?:<!-- (?P<comment>[a-z0-9-]+) -->.*|\| `(?P<cell>[a-z0-9-]+)` )\|) (?P<held>[^|]*) \|"
)
LISTS: Final = "## The tests"
"""The title of the section whose lists have a promise in each item."""
ITEM: Final = re.compile(r"(?P<start>- `(?P<comment>)(?P<cell>[a-z0-9-]+)`:) (?P<held>.*)")
OTHERS: Final = re.compile(r"\bF\d+|\bmodel\b|\bchecker\b")

Marked = Mapping[str, Sequence[str]]


def marked(top: Path = TOP) -> Marked:
    """Return the tests that name each id, in the order of their files and lines."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((top / "tests").rglob("test_*.py")):
        text = path.read_text()
        for function in ast.walk(ast.parse(text)) if "pytest.mark.promise(" in text else ():
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for promise in promises_of(function):
                    found[promise].append(f"`{path.relative_to(top)}::{function.name}`")
    return found


def promises_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The ids that the markers of a test name."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def rows(text: str) -> Iterator[str]:
    """The rows of the tables on a page that say what holds something, and the items of its lists that do."""
    inside = False
    tables, _, lists = text.partition(f"\n{LISTS}\n")
    yield from (line for line in lists.splitlines() if line.startswith("- "))
    for line in tables.splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.endswith(tuple(f"| {head} |" for head in HEADS)):
            inside = True
        elif inside and not set(line) <= set("|-"):
            yield line


def parts_of(row: str) -> re.Match[str] | None:
    """The parts of a row or of an item, if it has an id."""
    return (ROW if row.startswith("|") else ITEM).fullmatch(row)


def id_of(row: re.Match[str]) -> str:
    """The id of a row, by its parts."""
    return row["comment"] or row["cell"]


def written(text: str, tests: Marked) -> str:
    """Return the text of a page with the tests of today in its rows."""
    for row in rows(text):
        if found := parts_of(row):
            others = [part for part in found["held"].split(", ") if part and not part.startswith("`tests/")]
            end = " |" if row.startswith("|") else ""
            text = text.replace(row, f"{found['start']} {', '.join([*tests.get(id_of(found), ()), *others])}{end}")
    return text


def problems(pages: Mapping[str, str], tests: Marked) -> list[str]:
    """Return what is wrong with these pages, by their names and texts, a line for each fault."""
    found = []
    ids: Counter[str] = Counter()
    for page, text in pages.items():
        if text != (right := written(text, tests)):
            found.append(f"{page} is out of date: run python -m tests.tools.promises --write")
        for row in rows(right):
            if not (parts := parts_of(row)):
                found.append(f"{page}: a row without an id: {row}")
                continue
            promise = id_of(parts)
            ids[promise] += 1
            if promise not in tests and not OTHERS.search(parts["held"]):
                found.append(f"{page}: no test has @pytest.mark.promise({promise!r})")
    found += [f"{promise!r} is the id of {count} rows" for promise, count in ids.items() if count > 1]
    for promise in sorted(tests.keys() - ids):
        found.append(f"{', '.join(tests[promise])}: no page has a row with the id {promise!r}")
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the pages if asked to, print what is wrong with them, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.promises", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the names of the tests into the pages")
    tests = marked()
    if parser.parse_args(arguments).write:
        for page in PAGES:
            (TOP / page).write_text(written((TOP / page).read_text(), tests))
    found = problems({page: (TOP / page).read_text() for page in PAGES}, tests)
    print("\n".join(found), end="\n" if found else "")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
