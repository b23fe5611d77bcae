"""`manage.py pgqueue tasks`: the tasks of this code, with their jobs by state, signatures, options and schedules."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final, NamedTuple

from django_pgqueue import stats
from django_pgqueue.ground.similar_names import meant
from django_pgqueue.schedules import declarations, next_ticks
from django_pgqueue.stats.task_descriptions import depth_of, own_options, signature_of_call
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition

from .output import Column, Output, counted
from .status_command import unknown_note
from .subcommand import NotFound, Options, Subcommand, add_reading, database_alias


class ListedTask(NamedTuple):
    """A task of the list, with its jobs by state."""

    task: TaskDefinition
    depth: stats.Depth

    def options(self) -> str:
        """Return the options that differ from their defaults."""
        return ", ".join(f"{name}={value}" for name, value in own_options(self.task).items())

    def schedules(self) -> str:
        """Return the times of the schedules."""
        return "; ".join(next_ticks.in_words(times.expression) for _, times in declarations.of_task(self.task))


COLUMNS: Final = (
    Column("task", lambda each: each.task.name, is_flexible=True, keeps_end=True),
    Column("queue", lambda each: each.task.queue_name, is_flexible=True),
    Column("due", lambda each: each.depth.due, is_number=True),
    Column("held", lambda each: each.depth.held, is_number=True),
    Column("unknown", lambda each: each.depth.unknown, is_number=True),
    Column("running", lambda each: each.depth.running, is_number=True),
    Column("prefetched", lambda each: each.depth.prefetched, is_number=True),
    Column("dead", lambda each: each.depth.dead, is_number=True),
    Column("arguments", lambda each: signature_of_call(each.task), is_flexible=True),
    Column("options", ListedTask.options, is_flexible=True),
    Column("schedule", ListedTask.schedules, is_flexible=True),
)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="TASK", help="Only this task, by its name or a former name.")
    add_reading(parser)


def _run(options: Options, out: Output) -> None:
    tasks = registry.all_tasks()
    if options["name"]:
        found = registry.get(options["name"])
        if found is None:
            known = [task.name for task in tasks]
            raise NotFound(f"No task is named {options['name']!r}{meant(options['name'], known, 'pgqueue tasks')}")
        tasks = [found]
    of_names = {each.name: each for each in stats.tasks(database_alias(options))}
    listed = [ListedTask(task, depth_of(task, of_names)) for task in tasks]
    summary = f"{counted(len(tasks), 'task')}.{unknown_note(each.depth for each in listed)}"
    out.listing("tasks", COLUMNS, listed, summary, _as_json)


def _as_json(listed: ListedTask) -> dict[str, Any]:
    task, depth = listed
    return {
        "name": task.name,
        "queue": task.queue_name,
        "priority": task.priority,
        "function": task.module_path,
        "signature": signature_of_call(task),
        "options": own_options(task),
        "depth": depth,
        "schedules": [
            {"name": name, "expression": times.expression, "time_zone": times.zone}
            for name, times in declarations.of_task(task)
        ],
    }


TASKS: Final = Subcommand("tasks", "List the tasks of this code, with their jobs and options.", _add_arguments, _run)
