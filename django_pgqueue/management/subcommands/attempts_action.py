"""`manage.py pgqueue jobs set-max-attempts`: change how many attempts of unfinished jobs may count.

`jobs_command` offers it. It runs as the actions of `changing_actions` do: each job is changed only if it is still as it
was read, and the audit has the number, the user and the reason. It never takes the last attempt from a job.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from django_pgqueue import acts
from django_pgqueue.options.task_options import OPTIONS
from django_pgqueue.states import READY_WORDS, RUNNING_WORDS, WAITING_WORDS, State, least_attempts

from .changing_actions import JobAction, add_arguments, subcommand
from .job_rows import SeenJob
from .subcommand import Options, Subcommand, UsageError


def _options(options: Options) -> dict[str, Any]:
    """Return the new number. Raise `UsageError` if it is missing or invalid."""
    max_attempts = options["max_attempts"]
    if max_attempts is None:
        raise UsageError("Pass --max-attempts: the new number, from 1 to 1000.")
    check = OPTIONS["max_attempts"].check
    for problem in check("--max-attempts", max_attempts) if check else ():
        raise UsageError(f"{problem}.")
    return {"max_attempts": max_attempts}


def _why_left(job: SeenJob, options: Mapping[str, Any]) -> str:
    max_attempts, least = options["max_attempts"], least_attempts(job.state, job.attempt)
    if job.max_attempts == max_attempts:
        return f"--max-attempts is {max_attempts} already"
    if least <= max_attempts:
        return ""
    done = f"it is running attempt {job.attempt}" if job.state == State.RUNNING else f"it has made {job.attempt}"
    return f"{done}, so --max-attempts must be {least} or more"


ACTION: Final = JobAction(
    acts.SET_MAX_ATTEMPTS,
    "Changed",
    (*READY_WORDS, *WAITING_WORDS, *RUNNING_WORDS),
    lambda options: (State.READY, State.WAITING, State.RUNNING),
    _options,
    "For jobs that run, the number counts when their attempts end.",
    _why_left,
)


def _add(parser: ArgumentParser) -> None:
    add_arguments(ACTION.words, parser)
    text = "How many attempts of each job may count, from 1 to 1000."
    parser.add_argument("--max-attempts", type=int, metavar="N", help=text)


SET_MAX_ATTEMPTS: Final[Subcommand] = subcommand(ACTION, "Change how many attempts of unfinished jobs may count.", _add)
