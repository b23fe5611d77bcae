"""Describe a task for an operator: its signature, what it does, its options, and its jobs by state.

The admin's page of tasks and `manage.py pgqueue tasks` show these.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django_pgqueue import stats
from django_pgqueue.display import duration
from django_pgqueue.options.task_options import OPTIONS
from django_pgqueue.stats.answers import STATES
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition

SHOWN_ELSEWHERE: Final = frozenset({"name", "queue_name", "takes_context", "run_after"})
"""Options that are not listed: the name and the queue have columns of their own."""


def summary_of(task: TaskDefinition) -> str:
    """Return the first line of the docstring of a task's function, or "" if it has none."""
    return (inspect.getdoc(task.func) or "").strip().partition("\n")[0]


def depth_of(task: TaskDefinition, of_names: Mapping[str, stats.TaskStats]) -> stats.Depth:
    """Return how many jobs of a task are in each state, together with its jobs under former names."""
    found = [of_names[name] for name in registry.names_of(task.name) if name in of_names]
    ages = [each.oldest_due_seconds for each in found if each.oldest_due_seconds is not None]
    counts = {state: sum((getattr(each, state) for each in found), start=stats.Count()) for state in STATES}
    return stats.Depth(**counts, oldest_due_seconds=max(ages, default=None))


def signature_of_call(task: TaskDefinition) -> str:
    """Return the parameters of a task without the context, such as `(order_id: int, *, email: str = '')`."""
    parameters = list(task.func_signature.parameters.values())[task.takes_context :]
    return str(task.func_signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


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
