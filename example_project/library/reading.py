"""What is in a file: its kind by its name, its text, and what can be counted in it. No database here."""

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
"""Kinds by suffix; files with another suffix are not documents, but for those that packages always have."""

PROSE_NAMES: Final = {"METADATA", "LICENSE", "AUTHORS", "COPYING", "README", "NOTICE"}

DOCSTRING: Final = re.compile(r'\s*(?:#.*\s+)*[rRuU]?"""\s*(\S.*?)\s*(?:"""|\n|$)')
SUMMARY: Final = re.compile(r"^Summary: (.+)$", re.MULTILINE)
HEADING: Final = re.compile(r"^\W*(\w.{2,})$", re.MULTILINE)
TITLE_LENGTH: Final = 200


class NotText(Exception):
    """The file's bytes are no text, and never will be; the message begins with the reason, then a colon."""


@dataclass(frozen=True)
class Reading:
    """A file's text, and what was counted in it."""

    text: str
    sha256: str
    title: str
    lines: int
    words: int


def kind_of(path: Path) -> str | None:
    """Return the kind of document a file is by its name; None if it is none."""
    return KINDS.get(path.suffix) or ("prose" if path.name in PROSE_NAMES else None)


def read(path: Path, kind: str) -> Reading:
    """Read a file, count and extract; raises `NotText` for bytes that are no text, `OSError` as `open()` does."""
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
    """Return the text of a file's bytes, UTF-8 without zero bytes, which PostgreSQL cannot store."""
    if (offset := data.find(b"\0")) >= 0:
        raise NotText(f"binary file: a zero byte at offset {offset:,} of {len(data):,}, so there is no text to index")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotText(f"not UTF-8 text: {error.reason} at offset {error.start:,} of {len(data):,}") from None


def title_of(text: str, path: Path, kind: str) -> str:
    """Return what the file says it is about: docstring, package summary or first line; else its name."""
    if kind == "python":
        found = DOCSTRING.match(text)
    elif path.name == "METADATA":
        found = SUMMARY.search(text)
    else:
        found = HEADING.search(text) if kind == "prose" else None
    return found[1].strip()[:TITLE_LENGTH] if found else path.name
