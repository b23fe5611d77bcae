"""`manage.py pgqueue tasks`: the tasks of this code, with their jobs by state, signatures, options and schedules."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django_pgqueue import stats
from django_pgqueue.schedules import declarations, next_ticks
from django_pgqueue.stats.task_descriptions import depth_of, own_options, signature_of_call
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition

from .output import Column, Output, add_json, counted
from .subcommand import NotFound, Options, Subcommand, add_database, database_alias

COLUMNS: Final = (
    Column("task", is_flexible=True, keeps_end=True),
    Column("queue", is_flexible=True),
    Column("due", is_number=True),
    Column("running", is_number=True),
    Column("dead", is_number=True),
    Column("arguments", is_flexible=True),
    Column("options", is_flexible=True),
    Column("schedule", is_flexible=True),
)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="TASK", help="Only this task, by its name or a former name.")
    add_database(parser)
    add_json(parser)


def _run(options: Options, out: Output) -> None:
    tasks = registry.all_tasks()
    if options["name"]:
        found = registry.get(options["name"])
        if found is None:
            raise NotFound(f"No task is named {options['name']!r}. `pgqueue tasks` lists all tasks.")
        tasks = [found]
    of_names = {each.name: each for each in stats.tasks(database_alias(options))}
    depths = [depth_of(task, of_names) for task in tasks]
    if options["json"]:
        out.json({"tasks": [_as_json(*each) for each in zip(tasks, depths, strict=True)]})
        return
    if tasks:
        out.table(COLUMNS, [_cells(*each) for each in zip(tasks, depths, strict=True)])
    out.summary(f"{counted(len(tasks), 'task')}.")


def _as_json(task: TaskDefinition, depth: stats.Depth) -> dict[str, Any]:
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


def _cells(task: TaskDefinition, depth: stats.Depth) -> tuple[Any, ...]:
    options = ", ".join(f"{name}={value}" for name, value in own_options(task).items())
    schedules = "; ".join(next_ticks.in_words(times.expression) for _, times in declarations.of_task(task))
    counts = (depth.due, depth.running, depth.dead)
    return (task.name, task.queue_name, *counts, signature_of_call(task), options, schedules)


TASKS: Final = Subcommand("tasks", "List the tasks of this code, with their jobs and options.", _add_arguments, _run)
