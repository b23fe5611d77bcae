"""`manage.py pgqueue why`: say in one sentence why a job has not started, or what became of it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from django_pgqueue import stats
from django_pgqueue.display import in_line

from .output import Output
from .parsers import row_id
from .subcommand import NotFound, Options, Subcommand, add_reading, database_alias


def missing_job(job_id: int, alias: str) -> NotFound:
    """Return the error for an id without a row."""
    return NotFound(
        f"Job {job_id} does not exist in the database {alias!r}: its transaction has not committed, or its row was "
        "removed. Pass --database to look in another."
    )


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job_id", type=row_id, metavar="ID", help="Id of the job.")
    add_reading(parser)


def _run(options: Options, out: Output) -> None:
    alias = database_alias(options)
    found = stats.why(options["job_id"], alias)
    if found.reason is stats.Reason.GONE:
        raise missing_job(options["job_id"], alias)
    if out.is_json:
        out.json(found)
    else:
        out.write(in_line(found.sentence))


WHY: Final = Subcommand("why", "Say in one sentence why a job has not started.", _add_arguments, _run)
