"""Show a traceback to an operator: the frames of the application, and the error; frames of libraries are folded.

Used by `job_story`. It reads the text of the traceback only, which may be cut at its beginning or written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

FRAME: Final = re.compile(r'^\s*File "(?P<path>[^"]*)", line \d+')
LIBRARY: Final = re.compile(
    r"[/\\](site-packages|dist-packages|django_pgqueue|lib[/\\]python3\.\d+|Python3\d+[/\\]Lib)[/\\]|^<frozen "
)
"""Paths of code that is not the application's: installed packages, this one, and the standard library."""


@dataclass(frozen=True)
class Piece:
    """Some lines of a traceback that belong together. `frames` is how many frames of libraries it folds; 0: shown."""

    text: str
    frames: int = 0


def pieces(traceback: str) -> list[Piece]:
    """Return a traceback in pieces, in its order. The last frame is shown, whosever it is."""
    parts = list(_parts(traceback))
    last = max((number for number, (is_frame, _, _) in enumerate(parts) if is_frame), default=-1)
    found: list[Piece] = []
    for number, (is_frame, is_library, text) in enumerate(parts):
        piece = Piece(text, frames=int(is_frame and is_library and number != last))
        if found and bool(found[-1].frames) == bool(piece.frames):
            found[-1] = Piece(f"{found[-1].text}\n{piece.text}", found[-1].frames + piece.frames)
        else:
            found.append(piece)
    return found


def _parts(traceback: str) -> Iterator[tuple[bool, bool, str]]:
    """Yield each frame, and the lines between frames: whether it is one, whether of a library, and its text."""
    lines: list[str] = []
    path: str | None = None
    for line in traceback.splitlines():
        frame = FRAME.match(line)
        if lines and (frame or (path is not None and not line.startswith("    "))):
            yield _part(path, lines)
            lines, path = [], None
        if frame:
            path = frame["path"]
        lines.append(line)
    if lines:
        yield _part(path, lines)


def _part(path: str | None, lines: list[str]) -> tuple[bool, bool, str]:
    return path is not None, path is not None and bool(LIBRARY.search(path)), "\n".join(lines)
