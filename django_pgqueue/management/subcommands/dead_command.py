"""`manage.py pgqueue dead list|retry|acknowledge`: dead letters by task and error class, and acts on such a group."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from django.db.models import Count, Max, Min, OuterRef, Subquery

from django_pgqueue.display import in_line
from django_pgqueue.job_search import Filters, is_cut, label_of, meeting, ranges, searched_by
from django_pgqueue.models import Execution
from django_pgqueue.states import ActOutcome, Outcome, State

from .changing_actions import ACKNOWLEDGE_ACTION, RETRY_ACTION, add_change_options, run_action
from .filter_options import add_filters, filters_of, given_filters
from .known_names import check_filters
from .output import Column, Output, counted, date_of
from .paced_changes import Stop
from .subcommand import Options, Subcommand, UsageError, add_reading

COLUMNS: Final = (
    Column("jobs", itemgetter("jobs"), is_number=True),
    Column("task", itemgetter("task_name"), is_flexible=True, keeps_end=True),
    Column("error", itemgetter("latest_error"), is_flexible=True),
    Column("first died", lambda group: date_of(group["first"])),
    Column("last died", lambda group: date_of(group["last"])),
    Column("example", lambda group: str(group["example"]), is_number=True),
)
CAREFUL_RATE: Final = 10.0
"""Jobs per second with `--stop-on-failure`, so that the first failures come before all jobs are retried."""
WATCHED: Final = 10_000
"""The latest retried jobs whose next attempts are watched."""


def _add_list(parser: ArgumentParser) -> None:
    add_filters(parser, ())
    add_reading(parser)


def _list(options: Options, out: Output) -> None:
    filters = filters_of(options, words=(State.DEAD,))
    [found] = ranges(filters)
    dead = meeting(filters, found).order_by().values("task_name", "latest_error")
    totals = {"jobs": Count("pk"), "first": Min("finished_at"), "last": Max("finished_at"), "example": Max("pk")}
    groups = list(dead.annotate(**totals).order_by("-jobs", "task_name", "latest_error"))
    if not groups:
        check_filters(filters)
    searched = searched_by(filters)
    scope = f"among {label_of(found, searched)}" if is_cut(found, searched) else ""
    total = counted(sum(group["jobs"] for group in groups), "dead job")
    summary = f"{total}{', ' if scope else ''}{scope}."
    out.listing("groups", COLUMNS, groups, summary, _as_json, searched=scope or "all")


def _as_json(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": group["task_name"],
        "error_class": group["latest_error"] or "",
        "jobs": group["jobs"],
        "first_finished_at": group["first"],
        "last_finished_at": group["last"],
        "example_id": group["example"],
    }


def _add_retry(parser: ArgumentParser) -> None:
    add_filters(parser, ())
    add_change_options(parser)
    parser.add_argument(
        "--stop-on-failure",
        action="store_true",
        help=f"Stop when a retried job fails again with the same error. The rate is then {CAREFUL_RATE:g} by default.",
    )


def _filters_of_group(options: Options) -> Filters:
    if not given_filters(options):
        raise UsageError("Pass at least one filter, such as --task or --error. `dead list` shows the groups.")
    return filters_of(options, words=(State.DEAD,))


def _retry(options: Options, out: Output) -> None:
    filters = _filters_of_group(options)
    if options["stop_on_failure"]:
        rate = options["rate"] or CAREFUL_RATE
        run_action(RETRY_ACTION, filters, {**options, "rate": rate}, out, Watch(filters.alias))
    else:
        run_action(RETRY_ACTION, filters, options, out)


def _add_acknowledge(parser: ArgumentParser) -> None:
    add_filters(parser, ())
    add_change_options(parser)


def _acknowledge(options: Options, out: Output) -> None:
    run_action(ACKNOWLEDGE_ACTION, _filters_of_group(options), options, out)


class Watch:
    """Stops a retry when an attempt at a retried job fails with the error that the job had died of."""

    def __init__(self, alias: str) -> None:
        self._executions = Execution.objects.using(alias)
        self._last_id = self._executions.aggregate(last=Max("pk"))["last"] or 0
        self._retried: list[int] = []

    def __call__(self, job_ids: Sequence[int]) -> None:
        """Add retried jobs, and raise `Stop` if one of those retried so far has failed again."""
        self._retried = [*self._retried, *job_ids][-WATCHED:]
        before = Execution.objects.filter(job_id=OuterRef("job_id"), pk__lte=self._last_id).order_by("-job_id", "-id")
        again = self._executions.filter(
            job_id__in=self._retried,
            pk__gt=self._last_id,
            outcome__in=(Outcome.FAILED, Outcome.CRASHED),
            exception_class=Subquery(before.values("exception_class")[:1]),
        )
        failed = again.values("job_id", "exception_class").first()
        if failed is not None:
            error = in_line(failed["exception_class"]) or "a crash"
            job_id = failed["job_id"]
            why = f"Stopped, because job {job_id} failed again with {error}"
            raise Stop(why, ActOutcome.REPEATED, job_id, failed["exception_class"])


DEAD: Final = Subcommand(
    "dead",
    "Show dead letters by task and error, and retry or acknowledge such a group.",
    actions=(
        Subcommand("list", "Count dead letters by task and exception class.", _add_list, _list),
        Subcommand("retry", "Retry dead letters, for example those of one task and error.", _add_retry, _retry),
        Subcommand(
            "acknowledge", "Take dead letters out of the lists, without a retry.", _add_acknowledge, _acknowledge
        ),
    ),
)
