"""Read a file: its kind from its name, its text, its title and its counts. This module does not use the database."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BINARY: Final = "binary"

KINDS: Final = {
    ".py": "python",
    ".pyi": "python",
    ".h": "c",
    ".sql": "sql",
    ".js": "web",
    ".css": "web",
    ".html": "web",
    ".md": "prose",
    ".rst": "prose",
    ".txt": "prose",
    ".so": BINARY,
    ".mo": BINARY,
    ".png": BINARY,
    ".gz": BINARY,
    ".exe": BINARY,
}
"""The kind of each suffix. A file with another suffix is a document only if its name is in `PROSE_NAMES`."""

PROSE_NAMES: Final = {"METADATA", "LICENSE", "AUTHORS", "COPYING", "README", "NOTICE"}

DOCSTRING: Final = re.compile(r'\s*(?:#.*\s+)*[rRuU]?"""\s*(\S.*?)\s*(?:"""|\n|$)')
SUMMARY: Final = re.compile(r"^Summary: (.+)$", re.MULTILINE)
HEADING: Final = re.compile(r"^\W*(\w.{2,})$", re.MULTILINE)
TITLE_LENGTH: Final = 200


class NotText(Exception):
    """The file does not contain text, so no retry can succeed. The message starts with the reason and a colon."""


@dataclass(frozen=True)
class Reading:
    """The text of a file, with its title and counts."""

    text: str
    sha256: str
    title: str
    lines: int
    words: int


def kind_of(path: Path) -> str | None:
    """Return the kind of document that a file is, by its name; None if it is not a document."""
    return KINDS.get(path.suffix) or ("prose" if path.name in PROSE_NAMES else None)


def read(path: Path, kind: str) -> Reading:
    """Read a file and return its text, title and counts. Raise `NotText` for other contents, or `OSError`."""
    data = path.read_bytes()
    text = decode(data)
    return Reading(
        text=text,
        sha256=hashlib.sha256(data).hexdigest(),
        title=title_of(text, path, kind),
        lines=text.count("\n") + (not text.endswith("\n") and text != ""),
        words=len(text.split()),
    )


def decode(data: bytes) -> str:
    """Decode UTF-8. Raise `NotText` for other bytes, and for zero bytes, which PostgreSQL cannot store."""
    if (offset := data.find(b"\0")) >= 0:
        raise NotText(f"binary file: a zero byte at offset {offset:,} of {len(data):,}, so there is no text to index")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotText(f"not UTF-8 text: {error.reason} at offset {error.start:,} of {len(data):,}") from None


def title_of(text: str, path: Path, kind: str) -> str:
    """Return the title of a file: its docstring, package summary or first line; otherwise its name."""
    if kind == "python":
        found = DOCSTRING.match(text)
    elif path.name == "METADATA":
        found = SUMMARY.search(text)
    else:
        found = HEADING.search(text) if kind == "prose" else None
    return found[1].strip()[:TITLE_LENGTH] if found else path.name
