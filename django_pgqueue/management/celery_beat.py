"""`manage.py pgqueue import-celery-beat`: move a Celery beat schedule into this package's schedules.

Called by the `pgqueue` command. It reads the beat schedule of the settings and of a loaded Celery app, and the tables
of django-celery-beat if that app is installed. It never imports Celery: projects that have it have loaded it already.
Without `--apply` it writes nothing. With it, it adds schedules as an operator would in the admin, through `lifecycle`.
It never changes a schedule that exists, so a second run changes nothing.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from django.core.management.base import CommandError
from django.db import connections, transaction
from django.utils import timezone

from django_pgqueue import queues
from django_pgqueue.encoding.serialization import plain_arguments
from django_pgqueue.ground.plurals import counted
from django_pgqueue.ground.similar_names import meant
from django_pgqueue.lifecycle import schedules
from django_pgqueue.lifecycle.schedules import Definition
from django_pgqueue.schedules import cron_and_every as schedule_times
from django_pgqueue.schedules import declarations, next_ticks
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import has_sensitive

from .celery_sources import Entry, read_entries, read_time_zone
from .celery_times import BeatTimes, CannotMove, times_of
from .subcommands.output import Output
from .subcommands.subcommand import Options, Subcommand, UsageError, add_database, database_alias

UNITS: Final = ("weeks", "days", "hours", "minutes", "seconds")
DELIVERY: Final = ("exchange", "routing_key", "countdown", "eta", "headers", "time_limit", "soft_time_limit")
"""Options of Celery's messages that no schedule here has."""


class Move(NamedTuple):
    """The schedule that an entry becomes, or the reason why it cannot be moved."""

    entry: Entry
    definition: Definition | None
    problem: str = ""
    notes: tuple[str, ...] = ()


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--apply", action="store_true", help="Add the schedules. Without it, only print them.")
    parser.add_argument("--paused", action="store_true", help="Add the schedules paused.")
    parser.add_argument("--python", action="store_true", help="Print the schedules as code for @task(schedule=…).")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="Celery's name of a task, and its name here. Can be repeated.",
    )
    parser.add_argument(
        "--time-zone", metavar="ZONE", help="Time zone of Celery's crontabs. By default CELERY_TIMEZONE, otherwise UTC."
    )
    add_database(parser, "Database of the schedules.")


def _run(options: Options, out: Output) -> None:
    """Print what would be moved, or with `--apply` move it. Raise `UsageError` for invalid arguments."""
    if options["python"] and options["apply"]:
        raise UsageError("Pass either --python, which prints code, or --apply, which adds rows to the database.")
    if options["paused"] and not options["apply"]:
        raise UsageError("Pass --paused with --apply: without it, nothing is added.")
    alias, names = database_alias(options), task_names(options["map"])
    try:
        time_zone = read_time_zone(options["time_zone"])
    except ValueError as error:
        raise UsageError(str(error)) from None
    moves = [move_of(entry, names, time_zone, alias) for entry in read_entries()]
    if not moves:
        raise CommandError(
            "No beat schedule was found: CELERY_BEAT_SCHEDULE is not set, no loaded Celery app has a beat_schedule, "
            "and django_celery_beat has no periodic tasks, or is not in INSTALLED_APPS."
        )
    if options["python"]:
        out.write("\n".join(as_code(moves)))
        return
    out.write_lines(report(moves, alias, is_applied=options["apply"], is_paused=options["paused"]))


def task_names(pairs: Sequence[str]) -> dict[str, str]:
    """Return the names of `--map`. Raise `UsageError` if a pair cannot be read or names an unknown task."""
    names = {}
    for pair in pairs:
        old, separator, new = pair.partition("=")
        if not (old and separator and new):
            raise UsageError(f"Invalid --map {pair!r}: use OLD=NEW, such as shop.tasks.old=shop.tasks.new")
        if registry.get(new) is None:
            known = [task.name for task in registry.all_tasks()]
            raise UsageError(f"Invalid --map {pair!r}: no task is named {new!r}{meant(new, known, 'pgqueue tasks')}")
        names[old] = new
    return names


# ------------------------------------------------------------------ planning


def move_of(entry: Entry, names: Mapping[str, str], time_zone: str | None, alias: str) -> Move:
    """Return what happens to an entry. It writes nothing."""
    try:
        _check_entry(entry)
        times = times_of(entry.schedule, entry.time_zone or time_zone)
        definition = _definition(entry, names.get(entry.task, entry.task), times, alias)
        return Move(entry, definition, notes=tuple(_notes(entry, alias)))
    except (TypeError, ValueError) as error:
        return Move(entry, None, problem=str(error))


def _check_entry(entry: Entry) -> None:
    """Raise `CannotMove` if no schedule here can do what the entry says."""
    if entry.is_once:
        raise CannotMove("it runs only once: enqueue the task with using(run_after=…)")
    if entry.ends_at is not None:
        raise CannotMove(f"it ends at {entry.ends_at}, and schedules here have no end: delete it then")
    if entry.starts_at is not None and entry.starts_at > timezone.now():
        raise CannotMove(f"it starts at {entry.starts_at}, and schedules here start at once: repeat this command then")
    if not isinstance(entry.args, list) or not isinstance(entry.kwargs, dict):
        raise CannotMove("its arguments are not a JSON list and a JSON object")
    if not schedule_times.is_name(entry.name):
        raise CannotMove(f"its name must have 1 to {schedule_times.MAX_NAME_LENGTH} printable characters")


def _definition(entry: Entry, task_name: str, times: BeatTimes, alias: str) -> Definition:
    """Return the definition of the schedule. Raises `ValueError` or `TypeError` if it is invalid."""
    task = registry.get(task_name)
    if task is None:
        raise CannotMove(f"no task is named {task_name!r}: write it with @task, or pass --map {entry.task}=NEW")
    if task.fixed_database not in (None, alias):
        raise CannotMove(f"its task stores its jobs in the database {task.fixed_database!r}: pass --database")
    args, kwargs = entry.args, entry.kwargs
    with suppress(TypeError, ValueError):  # the settings have Python values; what beat has sent is JSON already
        args, kwargs = task.encoded_call(args, kwargs)
    declarations.check_arguments(task, args, kwargs)
    if has_sensitive(task, args, kwargs):
        raise CannotMove("it has sensitive arguments, which belong in the code: write its schedule by hand")
    declared = schedule_times.Times(
        expression=times.expression,
        time_zone=times.time_zone or "UTC",
        args=(),
        kwargs={},
        name=entry.name,
        missed="latest",
        if_running="overlap",
        jitter_seconds=0.0,
        queue_name=entry.options.get("queue") or None,
    )
    return declarations.define(entry.name, task, declared)._replace(arguments=plain_arguments(args, kwargs))


def _notes(entry: Entry, alias: str) -> Iterator[str]:
    """Yield a sentence for each option of the entry that the schedule does not get, and for a mistyped queue."""
    for name in sorted(entry.options.keys() & {"queue", "priority", "expires", *DELIVERY}):
        value = entry.options[name]
        if name == "queue":
            if value and (message := queues.mistyped(value, alias)):
                yield message
        elif name == "priority":
            yield f"priority {value!r} is not moved, because brokers order it differently: use @task(priority=…)"
        elif name == "expires":
            yield f"expires {value!r} is not moved: use @task(expires={value!r})"
        else:
            yield f"{name} {value!r} is not moved: it has no equivalent in a schedule"


# ------------------------------------------------------------------ writing


def report(moves: Sequence[Move], alias: str, *, is_applied: bool, is_paused: bool) -> Iterator[str]:
    """Yield the table of the moves. With `is_applied`, add the schedules first, all or none."""
    with transaction.atomic(using=alias):
        results = [_result(each, alias, is_applied=is_applied, is_paused=is_paused) for each in moves]
    cells = [("schedule", "task", "when", "result"), *(_cells(*pair) for pair in zip(moves, results, strict=True))]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    for place, (name, task, when, result) in enumerate(cells):
        yield f"{name:<{widths[0]}}  {task:<{widths[1]}}  {when:<{widths[2]}}  {result}"
        yield from (f"    note: {note}" for note in (moves[place - 1].notes if place else ()))
    added = sum(result.startswith("add") for result in results)
    refused = sum(each.definition is None for each in moves)
    if is_applied:
        yield f"Added {added} of {counted(len(moves), 'schedule')}; {refused} cannot be moved. Stop beat now."
    else:
        yield f"Would add {added} of {counted(len(moves), 'schedule')}; {refused} cannot be moved. Repeat with --apply."


def _cells(each: Move, result: str) -> tuple[str, str, str, str]:
    if each.definition is None:
        return each.entry.name, each.entry.task, "-", result
    zone = "" if next_ticks.EVERY.fullmatch(each.definition.expression) else f" {each.definition.time_zone}"
    return each.entry.name, each.definition.task_name, f"{each.definition.expression}{zone}", result


def _result(each: Move, alias: str, *, is_applied: bool, is_paused: bool) -> str:
    """Return what happens to a schedule. With `is_applied`, add it if no schedule has its name."""
    from django_pgqueue.models import Schedule  # models can be imported only after the apps are loaded

    if each.definition is None:
        return f"cannot be moved: {each.problem}"
    existing = Schedule.objects.using(alias).filter(name=each.definition.name).order_by("origin").first()
    if existing is not None:
        if existing.origin == "code":
            return "exists in the code"
        return "exists" if _is_same(existing, each.definition) else "exists with other values, which stay"
    is_enabled = each.entry.is_enabled and not is_paused
    if is_applied:
        connection = connections[alias]
        now, _ = schedules.read_schedules(connection)
        next_run_at = next_ticks.next_after(each.definition.expression, each.definition.time_zone, now)
        added = schedules.add_schedule(
            connection, each.definition, origin="admin", next_run_at=next_run_at, enabled=is_enabled
        )
        if added is None:  # another session has just added it
            return "exists"
    return ("added" if is_applied else "add") + ("" if is_enabled else ", paused")


def _is_same(existing: Any, definition: Definition) -> bool:
    """Return whether a row calls the same task at the same times with the same arguments, in the same queue."""
    own_queue = existing.queue_name if existing.has_own_queue else None
    return (existing.task_name, existing.expression, existing.time_zone, existing.arguments, own_queue) == (
        definition.task_name,
        definition.expression,
        definition.time_zone,
        json.loads(definition.arguments),
        definition.options.queue_name if definition.has_own_queue else None,
    )


# ------------------------------------------------------------------ code


def as_code(moves: Sequence[Move]) -> Iterator[str]:
    """Yield the schedules as Python, task by task, and a comment for each entry that cannot be moved."""
    by_task: dict[str, list[Move]] = {}
    for each in moves:
        by_task.setdefault(each.definition.task_name if each.definition else "", []).append(each)
    refused = by_task.pop("", [])
    yield "from django_pgqueue import cron, every"
    for task_name, moved in by_task.items():
        yield f"\n# {task_name}"
        calls = []
        for each in moved:
            yield from (f"# note: {note}" for note in each.notes)
            yield from () if each.entry.is_enabled else ("# note: it is disabled in beat: pause it in the admin",)
            calls.append(_call(each))
        yield f"schedule = {calls[0]}" if len(calls) == 1 else "schedule = [\n    " + ",\n    ".join(calls) + ",\n]"
    yield from (f"\n# {each.entry.name}: cannot be moved: {each.problem}" for each in refused)


def _call(each: Move) -> str:
    """Return the call of `cron()` or `every()` that declares a schedule."""
    definition = each.definition
    assert definition is not None, "as_code() calls it only for those"  # noqa: S101 -- for the type checker
    if match := next_ticks.EVERY.fullmatch(definition.expression):
        call = f"every({match[2]}s={match[1]}"
    else:
        call = f"cron({definition.expression!r}, tz={definition.time_zone!r}"
    arguments = {"args": each.entry.args, "kwargs": each.entry.kwargs, "queue_name": each.entry.options.get("queue")}
    given = "".join(f", {name}={value!r}" for name, value in arguments.items() if value)
    return f"{call}{given}, name={definition.name!r})"


IMPORT_CELERY_BEAT = Subcommand(
    "import-celery-beat", "Move the schedules of Celery beat to this package.", _add_arguments, _run
)
