"""Check a worker's health file: `python -m django_pgqueue.health PATH`, without settings, apps or a database.

Container probes call it, and so does `manage.py pgqueue health`. A worker writes the file once a second. The file
answers two questions:

* Is the worker **alive**? It is if the file is recent, whatever its status. Do not restart a worker that waits for its
  database: it recovers by itself, and a restart interrupts the jobs that are running.
* Is the worker **ready**? It is if its status is also "ok": the database answers, and the worker claims jobs.
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
"""Default age of the file from which on its worker does not count as alive."""


def judge(path: str, *, max_age_seconds: float = MAX_AGE_SECONDS, ready: bool = False) -> tuple[bool, str]:
    """Return whether the worker that writes a health file is alive, and a line that describes its state.

    Args:
        path: The file that `runworker --health-file` was given.
        max_age_seconds: Age of the file, in seconds, up to which the worker counts as alive.
        ready: Also require the status "ok".

    Returns:
        A pair: whether the worker is alive (and ready, if `ready` is true), and one line of text. A file that is
        missing or cannot be read counts as a worker that is not alive.
    """
    try:
        age_seconds = time.time() - Path(path).stat().st_mtime
        state = json.loads(Path(path).read_text(encoding="utf-8"))
        status, since, processes = state["status"], state["since"], state["processes"]
        running = sum(process["running"] for process in processes)
        reasons = "; ".join(state.get("reasons", ()))
    except FileNotFoundError:
        return False, f"worker not running: health file {path} does not exist"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return False, f"invalid health file {path}: {error}"
    if age_seconds > max_age_seconds:
        return False, f"worker not alive: health file is {age_seconds:.0f} s old, last status {status!r}"
    summary = f"{status} since {since}: {_counted(len(processes), 'process', 'processes')}, "
    summary += f"{_counted(running, 'job', 'jobs')} running"
    summary += f" ({reasons})" if reasons else ""
    return status == "ok" or not ready, summary


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"  # this module imports nothing of the package


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command line's arguments to a parser."""
    parser.add_argument("path", help="The health file, as passed to runworker --health-file.")
    parser.add_argument(
        "--max-age",
        type=_positive,
        default=MAX_AGE_SECONDS,
        metavar="SECONDS",
        help="Age of the file from which on the worker is not alive. Default: 30.",
    )
    parser.add_argument(
        "--ready",
        action="store_true",
        help='Also require the status "ok": the worker is ready for work, not only alive.',
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line about the worker and return the exit code: 0 if it is alive (`--ready`: and ready), 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m django_pgqueue.health", description="Check a worker's health file."
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    is_well, summary = judge(options.path, max_age_seconds=options.max_age, ready=options.ready)
    print(summary)  # noqa: T201 -- the output of a command
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
