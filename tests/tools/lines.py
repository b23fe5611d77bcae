"""Count the lines of code of the package: `bin/lines`, or `bin/lines COMMIT` for the difference to a commit.

A line counts if it holds code: no blank line, no comment, no docstring. Lines of a statement of SQL count, and those of
templates, style sheets and scripts do not.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from tests.code_names import CHECKOUT

PACKAGE: Final = "django_pgqueue"
NO_CODE: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def lines_of_code(source: str) -> int:
    """Return how many lines of a module hold code."""
    held = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held.difference(_documenting(ast.parse(source))))


def _documenting(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of docstrings, also of those below a constant or an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def counted(commit: str | None = None) -> Counter[str]:
    """Return the lines of code of each room of the package, in the working tree or at a commit."""
    found = Counter[str]()
    for path, source in _modules(commit):
        found[_room(path)] += lines_of_code(source)
    return found


def _modules(commit: str | None) -> Iterator[tuple[str, str]]:
    if commit is None:
        for file in sorted((CHECKOUT / PACKAGE).rglob("*.py")):
            yield file.relative_to(CHECKOUT).as_posix(), file.read_text()
        return
    for path in _git("ls-tree", "-r", "--name-only", commit, PACKAGE).splitlines():
        if path.endswith(".py"):
            yield path, _git("show", f"{commit}:{path}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


def _room(path: str) -> str:
    """Return the directory of a module, at most two levels below the package."""
    return PurePosixPath(*PurePosixPath(path).parent.parts[:3]).as_posix()


def run(arguments: Sequence[str]) -> int:
    """Print the lines of each room, and how they differ from a commit; return the exit status."""
    parser = argparse.ArgumentParser("bin/lines", description="Counts lines without blanks, comments and docstrings.")
    parser.add_argument("commit", nargs="?", help="also print the difference to this commit")
    commit = parser.parse_args(arguments).commit
    now, before = counted(), counted(commit) if commit else None
    for room in (*sorted(now.keys() | (before or now).keys()), "all"):
        line = f"{_of(now, room):7,} {room}"
        print(line if before is None else f"{_of(now, room) - _of(before, room):+7,} {line}")  # noqa: T201
    return 0


def _of(lines: Counter[str], room: str) -> int:
    return lines.total() if room == "all" else lines[room]


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
