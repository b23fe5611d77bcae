"""`manage.py pgqueue jobs list|show|retry|cancel|move|set-max-attempts|delete`: find, show and change jobs."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from django_pgqueue.display import duration
from django_pgqueue.job_search import SEARCHED, find

from . import attempts_action, changing_actions, show_action
from .filter_options import add_filters, filters_of
from .job_rows import JobRow, read_rows
from .known_names import check_filters
from .output import Column, Output, counted
from .parsers import row_id
from .subcommand import NotFound, Options, Subcommand, UsageError, add_reading


def when(row: JobRow) -> str:
    """Return since when a job is in its state, or in how long it is due. "" for a job of a workflow that waits.

    A lost job is in its state since the end of its lease: nobody knows how long it ran.
    """
    if row.finished_at is not None:
        return f"{duration(row.seen_at - row.finished_at, brief=True)} ago"
    execution = row.execution
    if row.word == "lost" and execution is not None:
        return f"for {duration(row.seen_at - vars(execution)['lease_end'], brief=True)}"
    if row.state == "running":
        started = execution and (execution.started_at or execution.claimed_at)
        return f"for {duration(row.seen_at - started, brief=True)}" if started else ""
    if row.state == "waiting":
        return ""
    if row.waits_for_event:
        return "for an event"
    span = duration(row.run_after - row.seen_at, brief=True)
    return f"in {span}" if row.run_after > row.seen_at else f"due for {span}"


IN_SHORT: Final = (
    Column("id", lambda row: str(row.pk), is_number=True),
    Column("state", lambda row: row.word, is_state=True),
    Column("task", lambda row: row.task_name, is_flexible=True, keeps_end=True),
    Column("queue", lambda row: row.queue_name, is_flexible=True),
)
WHEN: Final = Column("when", when)
COLUMNS: Final = (
    *IN_SHORT,
    Column("attempt", lambda row: f"{row.attempt}/{row.max_attempts}", is_number=True),
    WHEN,
    Column("error", lambda row: row.error, is_flexible=True),
)


def _add_list(parser: ArgumentParser) -> None:
    add_filters(parser)
    parser.add_argument("--id", action="append", type=row_id, default=[], metavar="ID", help="A job. Can be repeated.")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="Jobs to print at most. Default: 50.")
    add_reading(parser)


def _list(options: Options, out: Output) -> None:
    if not 1 <= options["limit"] <= SEARCHED:
        raise UsageError(f"Invalid --limit {options['limit']}: use a number from 1 to {SEARCHED:,}.")
    filters = filters_of(options, ids=options["id"])
    found = find(filters, options["limit"])
    rows = read_rows(filters.alias, found.ids)
    scope = f", {found.scope}" if found.scope else ""
    more = " There are more: pass --limit." if found.has_more else ""
    if not rows:
        check_filters(filters)
    summary = f"{counted(len(rows))}{scope}.{more}"
    searched = found.scope or "all"
    out.listing("jobs", COLUMNS, rows, summary, JobRow.as_json, has_more=found.has_more, searched=searched)
    if missing := [] if found.has_more else sorted(set(filters.ids) - {row.pk for row in rows}):
        raise NotFound(f"Job {missing[0]} does not exist in the database {filters.alias!r}.")


JOBS = Subcommand(
    "jobs",
    "Find jobs, look at one, and retry, acknowledge, cancel, move, change or delete many.",
    actions=(
        Subcommand("list", "List jobs, by state, queue, task, time or error.", _add_list, _list),
        Subcommand(
            "show", "Show one job: state, error, arguments, attempts.", show_action.add_arguments, show_action.show
        ),
        changing_actions.RETRY,
        changing_actions.ACKNOWLEDGE,
        changing_actions.CANCEL,
        changing_actions.MOVE,
        attempts_action.SET_MAX_ATTEMPTS,
        changing_actions.DELETE,
    ),
)
