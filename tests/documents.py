"""The pages of the documentation as text: their blocks of code, their prose and their tables."""

import re
from pathlib import Path

TOP = Path(__file__).parents[1]
IN_DOCS = [path for path in TOP.glob("docs/**/*.md") if "_build" not in path.parts]
FILES = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / ".github/SECURITY.md", *sorted(IN_DOCS)]
PAGES = {str(path.relative_to(TOP)): path.read_text() for path in FILES}
TUTORIAL = "docs/start/tutorial.md"
"""It has a project of its own: see `tests/process/test_tutorial.py`."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of code of a page."""
    return [text for kind, text in BLOCK.findall(PAGES[page]) if kind == language]


def file_of(block: str) -> str | None:
    """Return the file of the example's app that a block belongs to, as its first line says."""
    found = re.match(r"# (shop/\w+\.py)\n", block)
    return found and found[1]


def loose_blocks(page: str) -> list[str]:
    """Return the blocks of Python of a page that belong to no file of the example's app."""
    return [block for block in blocks(page) if file_of(block) is None]


def prose(page: str) -> str:
    """Return a page without its blocks of code."""
    return BLOCK.sub("", PAGES[page])


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the tables on a page whose first column has this heading, cell by cell."""
    rows, inside = [], False
    for line in prose(page).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells[0] == heading:
            inside = True
        elif inside and not set(line) <= set("|- "):
            rows.append(cells)
    return rows


def plain(cell: str) -> str:
    """Return the text of a cell without the backticks of code."""
    return cell.strip("`")
