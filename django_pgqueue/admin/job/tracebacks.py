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

REPEATS: Final = 2
"""How often a cycle of frames must be repeated to be folded."""
LONGEST_CYCLE: Final = 8


@dataclass(frozen=True)
class Piece:
    """Some lines of a traceback that belong together. `frames` is how many frames it folds; 0: shown."""

    text: str
    frames: int = 0
    is_repeated: bool = False
    """Whether it folds frames that repeat the ones before them, otherwise frames of libraries."""

    @property
    def kind(self) -> tuple[bool, bool]:
        """Whether it folds frames, and which. Adjacent pieces of the same kind become one."""
        return bool(self.frames), self.is_repeated


def pieces(traceback: str) -> list[Piece]:
    """Return a traceback in pieces, in its order. The last frame is shown, whosever it is."""
    parts = list(_parts(traceback))
    last = max((number for number, (is_frame, _, _) in enumerate(parts) if is_frame), default=-1)
    repeated = _repeated(parts) - {last}
    found: list[Piece] = []
    for number, (is_frame, is_library, text) in enumerate(parts):
        is_folded = is_frame and (number in repeated or is_library) and number != last
        piece = Piece(text, int(is_folded), is_repeated=number in repeated)
        if found and found[-1].kind == piece.kind:
            joined = f"{found[-1].text}\n{piece.text}"
            found[-1] = Piece(joined, found[-1].frames + piece.frames, piece.is_repeated)
        else:
            found.append(piece)
    return found


def _repeated(parts: list[tuple[bool, bool, str]]) -> set[int]:
    """Return the places of the frames that repeat a cycle of frames before them, at least `REPEATS` times.

    Python itself folds a frame that calls itself. It does not fold functions that call each other.
    """
    found: set[int] = set()
    place = 0
    while place < len(parts):
        length, times = max(((size, _times(parts, place, size)) for size in range(1, LONGEST_CYCLE + 1)), key=_frames)
        if times > REPEATS:
            found.update(range(place + length, place + length * times))
            place += length * times
        else:
            place += 1
    return found


def _times(parts: list[tuple[bool, bool, str]], place: int, size: int) -> int:
    """Return how often a cycle of frames occurs in a row from a place on."""
    cycle, times = parts[place : place + size], 0
    if all(is_frame for is_frame, _, _ in cycle) and len(cycle) == size:
        while parts[place + size * times : place + size * (times + 1)] == cycle:
            times += 1
    return times


def _frames(cycle: tuple[int, int]) -> tuple[int, int]:
    """Return a key to choose a cycle by: the frames that it would fold, then the shorter cycle."""
    size, times = cycle
    return (size * (times - 1) if times > REPEATS else 0), -size


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
