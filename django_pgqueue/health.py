"""Reads a worker's health file: `python -m django_pgqueue.health PATH`, without settings, apps or a database.

A worker writes the file once a second. Two questions can be asked of it:

* Is the worker **alive**? Yes while the file is young, whatever is in it: a worker that waits for its database has to
  be left alone, for it goes on by itself, and to kill it would cost the jobs that run.
* Is it **ready**? Yes if its status is "ok" too: the database answers, and jobs are claimed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MAX_AGE_SECONDS: Final = 30.0


def judge(path: str, *, max_age_seconds: float = MAX_AGE_SECONDS, ready: bool = False) -> tuple[bool, str]:
    """Return whether the worker that writes this file is alive, or `ready` too; and a line of words about it."""
    try:
        age_seconds = time.time() - Path(path).stat().st_mtime
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        status, since, processes = told["status"], told["since"], told["processes"]
        running = sum(process["running"] for process in processes)
    except FileNotFoundError:
        return False, f"no worker: there is no file {path}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return False, f"no health file of a worker: {path}: {error}"
    if age_seconds > max_age_seconds:
        return False, f"no sign of life for {age_seconds:.0f} s: it was last {status!r}"
    words = f"{status} since {since}: {len(processes)} processes, {running} jobs running"
    return status == "ok" or not ready, words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be asked."""
    parser.add_argument("path", help="the file that `runworker --health-file` was given")
    parser.add_argument(
        "--max-age", type=float, default=MAX_AGE_SECONDS, help="seconds without a sign of life (default: 30)"
    )
    parser.add_argument("--ready", action="store_true", help="ask whether it is ready for work, not only alive")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line, and return the exit code: 0 for yes, 1 for no."""
    parser = argparse.ArgumentParser(prog="python -m django_pgqueue.health", description="Ask after a worker's health.")
    add_arguments(parser)
    told = parser.parse_args(arguments)
    is_well, words = judge(told.path, max_age_seconds=told.max_age, ready=told.ready)
    print(words)  # noqa: T201 -- what a command is for
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
