"""What a process saw itself, as lines of JSON in a file of its own, each on the disk before the process goes on.

The other half of a run's history is in the database (see `schema`). A process that is killed leaves what it wrote so
far; one that is not part of a run, without PGQUEUE_FAULTS_DIRECTORY, writes nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = "PGQUEUE_FAULTS_DIRECTORY"
SUFFIX: Final = ".jsonl"


def directory() -> Path | None:
    """Return where this process's history goes, if it is part of a run."""
    where = os.environ.get(DIRECTORY)
    return Path(where) if where else None


def write(event: str, **fields: Any) -> None:
    """Append one line, and have it on the disk; from any thread, in forks too."""
    where = directory()
    if where is not None:
        append(where / f"{os.getpid()}{SUFFIX}", event, **fields)


def write_each(event: str, many: Sequence[Mapping[str, Any]]) -> None:
    """Append a line for each of `many`, and have them on the disk together."""
    where = directory()
    if where is not None:
        append_each(where / f"{os.getpid()}{SUFFIX}", event, many)


def append(path: Path, event: str, **fields: Any) -> None:
    """Append one line to a file: `at` by the machine's monotonic clock, `wall` by this process's own."""
    append_each(path, event, [fields])


def append_each(path: Path, event: str, many: Sequence[Mapping[str, Any]]) -> None:
    """Append a line for each of `many`, on the disk together."""
    now = {"event": event, "at": time.monotonic(), "wall": time.time(), "pid": os.getpid()}
    lines = "".join(json.dumps({**now, **fields}, default=str) + "\n" for fields in many)
    with path.open("ab", buffering=0) as file:
        file.write(lines.encode())  # one write, so that threads do not mix
        os.fsync(file.fileno())


def read(where: Path) -> list[dict[str, Any]]:
    """Return what all processes of a run wrote, in order of time; a last line cut short by a kill is left out."""
    lines: list[dict[str, Any]] = []
    for path in sorted(where.glob(f"*{SUFFIX}")):
        for text in path.read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
    return sorted(lines, key=lambda line: float(line["at"]))
