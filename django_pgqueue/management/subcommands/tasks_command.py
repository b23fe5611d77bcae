"""`manage.py pgqueue tasks`: the tasks of this code, with their jobs by state, signatures, options and schedules."""

from __future__ import annotations

import inspect
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import OutputWrapper

from django_pgqueue import registry, stats
from django_pgqueue.definition import TaskDefinition
from django_pgqueue.display import duration
from django_pgqueue.options import OPTIONS
from django_pgqueue.schedules import declarations, expressions

from .output import Column, add_json, counted, write_json, write_summary, write_table
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
SHOWN_ELSEWHERE: Final = frozenset({"name", "queue_name", "takes_context", "run_after"})
"""Options that are not listed among the options of a task."""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="TASK", help="Only this task, by its name or a former name.")
    add_database(parser)
    add_json(parser)


def _run(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    tasks = registry.all_tasks()
    if options["name"]:
        found = registry.get(options["name"])
        if found is None:
            raise NotFound(f"No task is named {options['name']!r}. `pgqueue tasks` lists all tasks.")
        tasks = [found]
    of_names = {each.name: each for each in stats.tasks(database_alias(options))}
    depths = [depth_of(task, of_names) for task in tasks]
    if options["json"]:
        write_json(stdout, {"tasks": [_as_json(*each) for each in zip(tasks, depths, strict=True)]})
        return
    if tasks:
        write_table(stdout, options, COLUMNS, [_cells(*each) for each in zip(tasks, depths, strict=True)])
    write_summary(stderr, f"{counted(len(tasks), 'task')}.")


def depth_of(task: TaskDefinition, of_names: Mapping[str, stats.TaskStats]) -> stats.Depth:
    """Return how many jobs of a task are in each state, together with its jobs under former names."""
    found = [of_names[name] for name in registry.names_of(task.name) if name in of_names]
    ages = [each.oldest_due_seconds for each in found if each.oldest_due_seconds is not None]
    states = [field.name for field in fields(stats.Depth) if field.name != "oldest_due_seconds"]
    counts = {state: sum((getattr(each, state) for each in found), start=stats.Count()) for state in states}
    return stats.Depth(**counts, oldest_due_seconds=max(ages, default=None))


def signature_of_call(task: TaskDefinition) -> str:
    """Return the parameters of a task without the context, such as `(order_id: int, *, email: str = '')`."""
    parameters = list(task.signature.parameters.values())[task.takes_context :]
    return str(task.signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def own_options(task: TaskDefinition) -> dict[str, str]:
    """Return the options that differ from their defaults, as text."""
    given = {name: getattr(task, name) for name in OPTIONS if name not in SHOWN_ELSEWHERE}
    return {name: _text(value) for name, value in given.items() if value != OPTIONS[name].default and value != ()}


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        return duration(value)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple | frozenset):
        return ", ".join(sorted(map(_text, value)))
    return getattr(value, "__name__", None) or str(value)


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
    schedules = "; ".join(expressions.in_words(times.expression) for _, times in declarations.of_task(task))
    counts = (depth.due, depth.running, depth.dead)
    return (task.name, task.queue_name, *counts, signature_of_call(task), options, schedules)


TASKS: Final = Subcommand("tasks", "List the tasks of this code, with their jobs and options.", _add_arguments, _run)
