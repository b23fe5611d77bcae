"""`manage.py pgqueue schedules list|run|pause|resume|skip`: look at the schedules, and act on one of them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import connections
from django.db.models import OuterRef, Subquery

from django_pgqueue.display import duration, in_line
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.ground.similar_names import meant
from django_pgqueue.lifecycle import schedules as lifecycle_schedules
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.models import Job, Schedule
from django_pgqueue.models.operations_link import database_now
from django_pgqueue.models.schedules import Origin
from django_pgqueue.schedules import job_options, next_ticks, run_and_resume
from django_pgqueue.schedules.words import NextRun, ScheduleWord, is_paused, next_run_of, problem_of, word_of
from django_pgqueue.stats.schedule_runs import PastRun, failed_in_a_row, past_runs
from django_pgqueue.stats.sentences import utc_text

from .output import Column, Output, counted, date_of
from .queue_commands import end_of
from .subcommand import (
    NotFound,
    Options,
    Subcommand,
    UsageError,
    add_database,
    add_reading,
    confirm,
    database_alias,
    user_name,
)


def _add_list(parser: ArgumentParser) -> None:
    add_reading(parser, "Database of the schedules.")


def _list(options: Options, out: Output) -> None:
    alias = database_alias(options)
    last_job = Job.objects.filter(pk=OuterRef("last_job_id")).values("state")[:1]
    found = Schedule.objects.using(alias).defer("arguments").order_by("name", "origin")
    schedules = list(found.annotate(seen_at=database_now(), last_state=Subquery(last_job)))
    runs = past_runs(connections[alias], [schedule.pk for schedule in schedules])
    for schedule in schedules:
        vars(schedule)["failed_in_a_row"] = failed_in_a_row(runs[schedule.pk])
        vars(schedule)["next_run"] = _next(schedule, runs[schedule.pk])
    out.listing("schedules", COLUMNS, schedules, f"{counted(len(schedules), 'schedule')}.", _as_json)


def _next(schedule: Any, runs: Sequence[PastRun]) -> NextRun | None:
    """Return the next run of a schedule that is not paused. None if its expression is invalid."""
    if is_paused(schedule, schedule.seen_at):
        return None
    try:
        return next_run_of(schedule, runs)
    except ValueError:
        return None


def _word(schedule: Any) -> ScheduleWord:
    return word_of(schedule, schedule.seen_at, schedule.failed_in_a_row)


def _is_paused_with_end(schedule: Any) -> bool:
    return bool(schedule.enabled and is_paused(schedule, schedule.seen_at))


def _state(schedule: Any) -> str:
    word = _word(schedule)
    if word is ScheduleWord.PAUSED and schedule.enabled:
        return f"{word} until {date_of(schedule.paused_until)}"
    return f"{word}, {schedule.failed_in_a_row} in a row" if word is ScheduleWord.FAILING else word


def _as_json(schedule: Any) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "defined_in": schedule.origin,
        "task": schedule.task_name,
        "queue": job_options.current(schedule, "queue_name"),
        "priority": job_options.current(schedule, "priority"),
        "expression": schedule.expression,
        "time_zone": schedule.time_zone,
        "state": _word(schedule),
        "failed_in_a_row": schedule.failed_in_a_row,
        "paused_until": schedule.paused_until if _is_paused_with_end(schedule) else None,
        "next_run_at": schedule.next_run and schedule.next_run.at,
        "skipped_run_at": schedule.next_run and schedule.next_run.skipped_at,
        "last_run_at": schedule.last_run_at,
        "last_job_id": schedule.last_job_id,
        "last_job_state": schedule.last_state,
        "problem": problem_of(schedule),
    }


def _next_run(schedule: Any) -> str:
    if schedule.next_run is None:
        return ""
    span = schedule.next_run.at - schedule.seen_at
    text = f"in {duration(span, brief=True)}" if span.total_seconds() > 0 else "due now"
    return text if schedule.next_run.skipped_at is None else f"{text}, one skipped"


def _last_job(schedule: Any) -> str:
    return f"#{schedule.last_job_id} {schedule.last_state or 'removed'}" if schedule.last_job_id else ""


COLUMNS: Final = (
    Column("schedule", lambda schedule: schedule.name, is_flexible=True),
    Column("state", _state, is_state=True),
    Column("when", lambda schedule: next_ticks.in_words(schedule.expression), is_flexible=True),
    Column("next run", _next_run),
    Column("last run", lambda schedule: date_of(schedule.last_run_at)),
    Column("last job", _last_job),
    Column("queue", lambda schedule: job_options.current(schedule, "queue_name"), is_flexible=True),
    Column("problem", problem_of, is_flexible=True),
)


# ---------------------------------------------------------------------------- actions


def _add_action(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name of the schedule, as `schedules list` prints it.")
    parser.add_argument("--origin", choices=Origin.values, help="Where it is defined, if two have the name.")
    add_database(parser, "Database of the schedules.")


def _add_pause(parser: ArgumentParser) -> None:
    _add_action(parser)
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="End of the pause: 30m, 2h, 1d, or an ISO 8601 time. Default: until it is resumed.",
    )
    _add_reason(parser)


def _add_reason(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", default="", metavar="TEXT", help="Text for the audit and the schedule's page.")


def _add_skip(parser: ArgumentParser) -> None:
    _add_action(parser)
    _add_reason(parser)
    parser.add_argument("--yes", action="store_true", help="Do not ask.")


def _run_action(action: Callable[[Any, Scheduled, Options], str], options: Options, out: Output) -> None:
    """Run an action on the schedule that was named. Raise `CommandError` if it is refused."""
    alias = database_alias(options)
    schedule = _named(alias, options["name"], options["origin"])
    try:
        end_of(options.get("until"))
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    try:
        out.write(action(connections[alias], schedule, options))
    except (JobLocked, ValueError) as error:
        raise CommandError(f"Nothing was changed: {in_line(str(error))}") from None


def _named(alias: str, name: str, origin: str | None) -> Scheduled:
    _, schedules = lifecycle_schedules.read_schedules(connections[alias])
    named = [each for each in schedules if each.name == name]
    found = [each for each in named if origin in (None, each.origin)]
    if named and not found:
        raise NotFound(f"The schedule {name!r} is not defined in {origin}: pass --origin {named[0].origin}.")
    if not found:
        where = f"There is no schedule {name!r} in the database {alias!r}"
        raise NotFound(f"{where}{meant(name, {each.name for each in schedules}, 'pgqueue schedules list')}")
    if len(found) > 1:
        raise UsageError(f"Two schedules are named {name!r}: pass --origin code or --origin admin.")
    return found[0]


def _run(connection: Any, schedule: Scheduled, _options: Options) -> str:
    job_id = run_and_resume.run_now(connection, schedule, by=user_name())
    if job_id is None:
        raise ValueError("the schedule has changed at this moment, try again")
    return f"Enqueued job {job_id} of {in_line(schedule.name)}."


def _pause(connection: Any, schedule: Scheduled, options: Options) -> str:
    end = end_of(options["until"])
    notes = {"by": user_name(), "reason": options["reason"]}
    is_paused = run_and_resume.pause(connection, schedule.schedule_id, schedule.name, until=end, **notes)
    return "Paused." if is_paused else "It was paused already."


def _resume(connection: Any, schedule: Scheduled, _options: Options) -> str:
    is_resumed = run_and_resume.resume(connection, schedule.schedule_id, by=user_name())
    return "Resumed." if is_resumed else "Nothing to resume: it is not paused."


def _skip(connection: Any, schedule: Scheduled, options: Options) -> str:
    """Skip the next run, after a question that names its time. If another run is the next one by then, refuse."""
    at = utc_text(schedule.next_run_at)
    if not options["yes"]:
        question = f"Skip the run of {in_line(schedule.name)} at {at}?"
        confirm(question, f"Pass --yes to skip the run at {at} without a question.", "Nothing was changed.")
    notes = {"by": user_name(), "reason": options["reason"]}
    run_and_resume.skip_run(connection, schedule, schedule.next_run_at, **notes)
    return f"The run at {at} is skipped."


def _unskip(connection: Any, schedule: Scheduled, _options: Options) -> str:
    at = schedule.next_run_at
    if not run_and_resume.undo_skip(connection, schedule, at, by=user_name()):
        raise ValueError(f"the next run, at {utc_text(at)}, is not skipped, is due, or the schedule is paused")
    return f"The run at {utc_text(at)} is not skipped any more."


SCHEDULES: Final = Subcommand(
    "schedules",
    "List schedules; run one now, pause or resume one, or skip its next run.",
    actions=(
        Subcommand("list", "List schedules with their next and last run.", _add_list, _list),
        Subcommand(
            "run", "Enqueue a job of a schedule now, also if it is paused.", _add_action, partial(_run_action, _run)
        ),
        Subcommand("pause", "Pause a schedule. Its jobs are not affected.", _add_pause, partial(_run_action, _pause)),
        Subcommand("resume", "Resume a schedule, from its next tick on.", _add_action, partial(_run_action, _resume)),
        Subcommand("skip", "Skip the next run of a schedule.", _add_skip, partial(_run_action, _skip)),
        Subcommand("unskip", "Undo the skip of the next run.", _add_action, partial(_run_action, _unskip)),
    ),
)
