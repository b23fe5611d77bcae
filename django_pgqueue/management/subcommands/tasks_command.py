"""`manage.py pgqueue tasks`: the tasks of this code, with their signatures, options and schedules. It reads no rows."""

from __future__ import annotations

import inspect
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import OutputWrapper

from django_pgqueue import registry
from django_pgqueue.definition import TaskDefinition
from django_pgqueue.display import duration
from django_pgqueue.options import OPTIONS
from django_pgqueue.schedules import declarations, expressions

from .output import Column, add_json, counted, write_json, write_summary, write_table
from .subcommand import NotFound, Options, Subcommand

COLUMNS: Final = (
    Column("task", is_flexible=True, keeps_end=True),
    Column("queue", is_flexible=True),
    Column("arguments", is_flexible=True),
    Column("options", is_flexible=True),
    Column("schedule", is_flexible=True),
)
SHOWN_ELSEWHERE: Final = frozenset({"name", "queue_name", "takes_context", "run_after"})
"""Options that are not listed among the options of a task."""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="TASK", help="Only this task, by its name or a former name.")
    add_json(parser)


def _run(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    tasks = registry.all_tasks()
    if options["name"]:
        found = registry.get(options["name"])
        if found is None:
            raise NotFound(f"There is no task {options['name']!r}. `pgqueue tasks` lists all tasks.")
        tasks = [found]
    if options["json"]:
        write_json(stdout, {"tasks": [_as_json(task) for task in tasks]})
        return
    if tasks:
        write_table(stdout, options, COLUMNS, [_cells(task) for task in tasks])
    write_summary(stderr, f"{counted(len(tasks), 'task')}.")


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


def _as_json(task: TaskDefinition) -> dict[str, Any]:
    return {
        "name": task.name,
        "queue": task.queue_name,
        "priority": task.priority,
        "function": task.module_path,
        "signature": signature_of_call(task),
        "options": own_options(task),
        "schedules": [
            {"name": name, "expression": times.expression, "time_zone": times.zone}
            for name, times in declarations.of_task(task)
        ],
    }


def _cells(task: TaskDefinition) -> tuple[str, ...]:
    options = ", ".join(f"{name}={value}" for name, value in own_options(task).items())
    schedules = "; ".join(expressions.in_words(times.expression) for _, times in declarations.of_task(task))
    return (task.name, task.queue_name, signature_of_call(task), options, schedules)


TASKS: Final = Subcommand("tasks", "List the tasks of this code, with their options.", _add_arguments, _run)
