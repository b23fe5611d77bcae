"""`manage.py pgqueue health`: read a worker's health file. `python -m django_pgqueue.health` starts faster."""

from __future__ import annotations

import sys

from django_pgqueue import health

from .output import Output
from .subcommand import ExitCode, Options, Subcommand


def _run(options: Options, out: Output) -> None:
    is_healthy, summary = health.judge(options["path"], max_age_seconds=options["max_age"], ready=options["ready"])
    out.write(summary)
    if not is_healthy:
        sys.exit(ExitCode.FAILED)


HEALTH = Subcommand(
    "health", "Check from its health file whether a worker is alive or ready.", health.add_arguments, _run
)
