"""`manage.py pgqueue archive|erase|prune`: archive finished jobs, erase their values, and delete them."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import connections

from django_pgqueue import history
from django_pgqueue.db.engine_connection import connect
from django_pgqueue.history import archiving
from django_pgqueue.history.finished_pages import Choice, finished_states, names_of_queues, names_of_tasks
from django_pgqueue.models import Job
from django_pgqueue.states import FINISHED, Pausable
from django_pgqueue.worker.maintenance.pruner import Pruner, kinds

from .consent import JobPreview, add_consent, check_pace, is_agreed, progress
from .filter_options import search_key
from .known_names import check_search_key, unknown_name
from .output import Output, counted
from .parsers import row_id
from .subcommand import (
    ExitCode,
    NotFound,
    Options,
    Subcommand,
    UsageError,
    acting,
    add_database,
    database_alias,
    user_name,
)
from .times import duration_of, time_of

Pages = Callable[[Options], Iterable[Collection[int]]]
PAGE: Final = 1000
VALUES: Final = ("arguments", "results", "errors", "logs")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", metavar="NAME", action="append", default=[], help="Only jobs of this task.")
    parser.add_argument("--queue", metavar="NAME", action="append", default=[], help="Only jobs of this queue.")
    parser.add_argument("--rate", metavar="N", type=float, help="Jobs per second at most. Default: no limit.")
    add_consent(parser)
    add_database(parser)


def _add_archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--older-than", metavar="TIME", required=True, help="Since when the jobs have finished: 30d.")
    parser.add_argument(
        "--state",
        action="append",
        choices=sorted(state.value for state in FINISHED),
        help="Jobs in this state. Can be repeated. Default: succeeded and cancelled.",
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--table", action="store_true", help="Move the jobs to the table pgqueue_archived_job.")
    target.add_argument("--file", metavar="PATH", help="Append the jobs to this file: JSON lines, compressed by gzip.")
    parser.add_argument("--reason", metavar="TEXT", default="", help="Reason, stored in the audit.")
    _add_filters(parser)


def _add_erase(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--before", metavar="TIME", help="Only jobs that finished before: 30d ago, or an ISO 8601 time."
    )
    parser.add_argument(
        "--job", metavar="ID", type=row_id, action="append", default=[], help="This job, instead of the other filters."
    )
    parser.add_argument(
        "--search", metavar="NAME=VALUE", help="Jobs with this search key, instead of the other filters."
    )
    parser.add_argument("--arguments", action="store_true", help="Erase arguments, headers and unique keys.")
    parser.add_argument("--results", action="store_true", help="Erase results and the messages of progress.")
    parser.add_argument("--errors", action="store_true", help="Erase error messages and tracebacks.")
    parser.add_argument("--logs", action="store_true", help="Erase the kept log lines.")
    parser.add_argument("--reason", metavar="TEXT", default="", help="Reason, stored in the audit.")
    _add_filters(parser)


def _archive(options: Options, out: Output) -> None:
    check_pace(options)
    older_than = duration_of("--older-than", options["older_than"])
    states = options["state"] or history.ARCHIVED_STATES
    alias = database_alias(options)
    if options["file"]:  # before the question
        archiving.check_system()
        _check_file(Path(options["file"]))
    for warning in _pruned_before(older_than, states):
        out.stderr.write(f"Warning: {warning}")
    pages: Pages = partial(_pages_to_archive, alias, states, older_than.total_seconds())
    for problem in _unknown_names(options, alias, pages):
        raise NotFound(problem)
    preview = _preview(pages(options), alias)
    has_file = options["file"] and Path(options["file"]).exists()  # it may have jobs of an interrupted run
    if not is_agreed(preview, "archive", options, out, changes_more=bool(has_file)):
        return
    done, show = deque([0], maxlen=1), progress(out, preview.count, is_exact=preview.is_exact)

    def on_batch(count: int) -> None:
        done.append(count)
        show(count)

    try:
        archived = history.archive(
            older_than=older_than,
            file=options["file"],
            states=states,
            tasks=options["task"],
            queues=options["queue"],
            rate=options["rate"],
            database=alias,
            on_batch=on_batch,
            by=user_name(),
            reason=options["reason"],
        )
    except KeyboardInterrupt:
        raise CommandError(f"Stopped after {counted(done[-1])}. Run the command again to archive the rest.") from None
    if archived.resumed:
        out.write(f"Removed {counted(archived.resumed)} that an interrupted run has written to {options['file']}.")
    out.write(f"Archived {counted(archived.archived)} in {options['file'] or 'pgqueue_archived_job'}.")
    _write_left(archived, out)


def _check_file(path: Path) -> None:
    """Raise `UsageError` for a path that cannot become a file."""
    if path.is_dir():
        raise UsageError(f"--file {path} is a directory: pass the path of a file.")
    if not path.parent.is_dir():
        raise UsageError(f"--file {path} cannot be written: there is no directory {path.parent}.")


def _write_left(result: history.Archived | history.Erased, out: Output) -> None:
    """Print how many jobs were left, and why."""
    if result.needed:
        verb, them = ("stays", "it") if result.needed == 1 else ("stay", "them")
        out.write(f"Unchanged: {counted(result.needed)} {verb}, because unfinished work needs {them}.")
    if left := result.left - result.needed:
        out.write(
            f"Left {counted(left)} that {'was' if left == 1 else 'were'} locked or changed: run the command again."
        )


def _pruned_before(older_than: timedelta, states: Any) -> Iterator[str]:
    """Yield a warning for each state whose jobs workers delete before they are old enough for the archive."""
    for kind in kinds():
        if kind.task_name is None and kind.state in states and kind.retention_seconds <= older_than.total_seconds():
            days = kind.retention_seconds / 86400
            yield (
                f"workers delete {kind.state} jobs after {days:g} days, so none is left to archive: "
                "raise PGQUEUE['RETENTION'], or archive earlier."
            )


def _unknown_names(options: Options, alias: str, pages: Pages) -> Iterator[str]:
    """Yield what is wrong with each name that nothing uses. `pages` returns the jobs with `--task` and `--queue`."""
    for kind in (Pausable.TASK, Pausable.QUEUE):
        for name in options[kind]:
            alone = {**options, "task": [], "queue": [], kind: [name]}
            if (problem := unknown_name(kind, name, alias)) and not any(pages(alone)):
                yield problem


def _pages_to_archive(
    alias: str, states: Any, older_than_seconds: float, options: Options
) -> Iterator[Collection[int]]:
    choice = Choice(
        states=finished_states(states),
        task_names=names_of_tasks(options["task"]),
        queue_names=names_of_queues(options["queue"]),
        older_than_seconds=older_than_seconds,
    )
    return choice.pages(connections[alias], PAGE)


def _preview(pages: Iterable[Collection[int]], alias: str) -> JobPreview:
    """Return the preview of the jobs in these pages. It reads no page after `MOST_COUNTED` jobs."""
    jobs = Job.objects.using(alias).order_by()
    names = (jobs.filter(pk__in=list(page)).values_list("task_name", flat=True) for page in pages)
    return JobPreview.of_tasks(chain.from_iterable(names))


def _erase(options: Options, out: Output) -> None:
    before = options["before"] and time_of("--before", options["before"])
    before = datetime.now(UTC) - before if isinstance(before, timedelta) else before
    alias = database_alias(options)
    check_pace(options)
    _check_ways(options)
    chosen = [kind for kind in VALUES if options[kind]] or list(VALUES)
    search = search_key(options["search"])
    if search is not None:
        check_search_key(search[0], alias)
    given: dict[str, Any] = {"before": before, "jobs": options["job"], "search": search}
    kinds: dict[str, Any] = {kind: kind in chosen for kind in VALUES}

    def pages(options: Options) -> Iterable[Collection[int]]:
        return history.erasable_pages(tasks=options["task"], queues=options["queue"], **given, database=alias)

    preview = _preview(pages(options), alias)
    unknown = list(_unknown_names(options, alias, pages))
    for problem in unknown:
        out.stderr.write(f"Warning: {problem}")
    change = f"erase the {', '.join(chosen)} of"
    if not is_agreed(preview, change, options, out, changes_more=True):  # callbacks of batches too
        return
    try:
        erased = history.erase(
            tasks=options["task"],
            queues=options["queue"],
            **given,
            **kinds,
            rate=options["rate"],
            by=user_name(),
            reason=options["reason"],
            database=alias,
            on_batch=progress(out, preview.count, is_exact=preview.is_exact),
        )
    except KeyboardInterrupt:
        raise CommandError(
            "Stopped. The newest entry of pgqueue_audit has the number of jobs. Run the command again for the rest."
        ) from None
    out.write(f"Erased the {', '.join(chosen)} of {counted(erased.erased)}. Audit entry {erased.audit_id}.")
    if unknown and not erased.callbacks:  # a callback that was erased may have had the name
        raise NotFound(unknown[0])
    _report_left(erased, out)


def _check_ways(options: Options) -> None:
    """Raise `UsageError` unless the jobs to erase are chosen in one way."""
    filters = options["task"] or options["queue"] or options["before"]
    ways = [options["job"], options["search"], filters]
    if not any(ways):
        raise UsageError(
            "Pass --job, --search, --task, --queue or --before: without them, it would erase all finished jobs."
        )
    if sum(map(bool, ways)) > 1:
        raise UsageError("Pass either --job, or --search, or --task, --queue and --before.")


def _report_left(erased: history.Erased, out: Output) -> None:
    """Report the jobs that were not erased, by the exit code too."""
    if erased.missing:
        raise NotFound(f"These jobs do not exist: {', '.join(map(str, erased.missing))}.")
    if erased.unfinished:
        raise CommandError(
            f"These jobs have not finished: {', '.join(map(str, erased.unfinished))}. Cancel them first."
        )
    _write_left(erased, out)
    if erased.left:
        sys.exit(ExitCode.FAILED)


ARCHIVE = Subcommand("archive", "Move old finished jobs to an archive table or a file.", _add_archive, acting(_archive))
ERASE = Subcommand(
    "erase", "Erase arguments, results, errors and log lines of finished jobs.", _add_erase, acting(_erase)
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database(parser)
    add_consent(parser)


def _run(options: Options, out: Output) -> None:
    with closing(connect(database_alias(options), "prune")) as connection:
        found = Pruner().count(connection)
        preview = JobPreview(
            {
                f"{state:<10} {task_name or 'all other tasks'}": each.removable
                for (task_name, state), each in found.items()
            }
        )
        if is_agreed(preview, "delete", options, out):
            show = progress(out, preview.count)
            pruner = Pruner(lambda: show(pruner.removed))
            out.write(f"Deleted {counted(pruner.prune(connection), 'finished job')}.")
            found = Pruner().count(connection)
        if kept := sum(each.kept for each in found.values()):
            verb, them = ("stays", "it") if kept == 1 else ("stay", "them")
            out.write(f"{counted(kept)} past the retention {verb}, because unfinished work needs {them}.")


PRUNE = Subcommand("prune", "Delete finished jobs whose retention has ended.", _add_arguments, _run)
