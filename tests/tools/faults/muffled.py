"""Runs a program whose output is a full pipe that nobody reads: `python -m tests.tools.faults.muffled COMMAND`.

The program itself keeps the reading end open, so that a write blocks when the pipe is full and never fails.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Final

PIPE_BYTES: Final = 4096


def main() -> None:
    """Replace this process by the program."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(writer, b"x" * PIPE_BYTES)
    os.set_inheritable(reader, True)
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 -- the program that the suite asked for


if __name__ == "__main__":
    main()
