"""`manage.py pgqueue worker`: the same as `manage.py runworker`."""

from __future__ import annotations

import argparse

from django_pgqueue.management.commands import runworker

from .output import Output
from .subcommand import Options, Subcommand


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    runworker.add_arguments(parser)
    parser.add_argument(
        *("-v", "--verbosity"),
        type=int,
        choices=range(4),
        default=argparse.SUPPRESS,  # otherwise it would replace the value of `pgqueue -v 2 worker`
        help="2: Print one line for each job that ends.",
    )


def _run(options: Options, out: Output) -> None:
    runworker.exit_worker(runworker.run(options, out.stdout))


WORKER = Subcommand("worker", "Run a worker, like `runworker`.", _add_arguments, _run)
