"""The pages of the documentation as text: their code blocks, prose and tables."""

import re
import shlex
from pathlib import Path

TOP = Path(__file__).parents[1]
IN_DOCS = [path for path in TOP.glob("docs/**/*.md") if "_build" not in path.parts]
FILES = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / ".github/SECURITY.md", *sorted(IN_DOCS)]
PAGES = {str(path.relative_to(TOP)): path.read_text() for path in FILES}
TUTORIAL = "docs/start/tutorial.md"
"""The tutorial has its own project, which `tests/process/test_tutorial.py` runs."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the code blocks of a page that are in this language."""
    return [text for kind, text in BLOCK.findall(PAGES[page]) if kind == language]


def commands(page: str) -> list[list[str]]:
    """Return the words of each command of `manage.py` in the shell blocks of a page, also of those inside lists."""
    texts = re.findall(r"^( *)```sh\n(.*?)^\1```$", PAGES[page], re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for _, text in texts for line in text.splitlines()]
    return [words[2:] for words in lines if words[1:2] == ["manage.py"]]


def file_of(block: str) -> str | None:
    """Return the file of the example app that a block belongs to. The first line of the block names it."""
    found = re.match(r"# (shop/\w+\.py)\n", block)
    return found and found[1]


def loose_blocks(page: str) -> list[str]:
    """Return the Python blocks of a page that belong to no file of the example app."""
    return [block for block in blocks(page) if file_of(block) is None]


def prose(page: str) -> str:
    """Return the text of a page without its code blocks."""
    return BLOCK.sub("", PAGES[page])


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows, as lists of cells, of all tables on a page whose first column has this heading."""
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


def names(page: str, heading: str) -> list[str]:
    """Return the names in backticks in the first cells of such tables, in their order. A row can have several."""
    return [name for row in table(page, heading) for name in CODE.findall(row[0])]


def section(page: str, title: str) -> str:
    """Return the prose of a section of the second level, without its title."""
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", prose(page), re.MULTILINE | re.DOTALL)
    return str(found)


def plain(cell: str) -> str:
    """Return the text of a cell without its backticks."""
    return cell.strip("`")
