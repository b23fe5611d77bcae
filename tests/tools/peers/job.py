"""The job that every peer runs. Copied into each measurement's directory, so it imports nothing of ours."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
JOURNAL = "journal"


def note(word: str) -> None:
    """Append a line: what happened, in which process, when."""
    with (HERE / JOURNAL).open("a") as journal:
        journal.write(f"{word} {os.getpid()} {time.time()}\n")


def turns() -> Iterator[None]:
    """Write down the start, yield until this run may end, write down the end."""
    note("started")
    while not (HERE / "go").exists() and not (HERE / f"go-{os.getpid()}").exists():
        yield
    note("finished")


def hold() -> None:
    """Hold a worker until told to end."""
    for _ in turns():
        time.sleep(0.1)
