"""`manage.py pgqueue worker`: the same as `manage.py runworker`."""

from __future__ import annotations

import argparse

from django.core.management.base import OutputWrapper

from django_pgqueue.management.commands import runworker

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


def _run(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    runworker.exit_worker(runworker.run(options, stdout))


WORKER = Subcommand("worker", "Run a worker, like `runworker`.", _add_arguments, _run)
