"""The registry of tasks, and where a worker looks for them.

A row's `task_name` is a key into the registry and nothing more: no code is ever imported because a row names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from .exceptions import InvalidTask

if TYPE_CHECKING:
    from .task import Task

_tasks: dict[str, Task[Any, Any]] = {}
_set_up: set[str] = set()
"""Modules with tasks that were imported while Django was set up: a worker's set-up imports them as well."""


def register(task: Task[Any, Any]) -> None:
    """Make a task known by its name and its aliases.

    A module that is loaded again replaces its tasks. Raises `InvalidTask` if another function has one of the names.
    """
    for name in (task.name, *task.aliases):
        holder = _tasks.get(name)
        if holder is not None and holder.module_path != task.module_path:
            raise InvalidTask(
                f"{task.module_path} and {holder.module_path} are both named {name!r}: give one of them name=…"
            )
        _tasks[name] = task
    if apps.loading and not apps.ready:
        _set_up.add(task.func.__module__)


def get(name: str) -> Task[Any, Any] | None:
    """Return the task of that name or alias, or None if this process knows none."""
    return _tasks.get(name)


def names_of(name: str) -> tuple[str, ...]:
    """Return all names that jobs of a task may have, its present one first; the one given, if it is not known here."""
    task = _tasks.get(name)
    return (name,) if task is None else (task.name, *task.aliases)


def in_words(name: str | None) -> str:
    """Return a row's `task_name` as it can stand in a log line: whoever may write rows shall not write lines."""
    return name if name is not None and name.isprintable() else repr(name)


def all_tasks() -> list[Task[Any, Any]]:
    """Return every registered task once, by name."""
    return sorted({task.name: task for task in _tasks.values()}.values(), key=lambda task: task.name)


def task_modules() -> list[str]:
    """Return the modules a worker imports; what lies below one of them it imports too."""
    listed = getattr(django_settings, "PGQUEUE", {})
    extra = listed.get("TASK_MODULES", ()) if isinstance(listed, dict) else ()
    if not isinstance(extra, list | tuple):  # the system check says so: reading it wrong here would be in its way
        extra = ()
    return [f"{config.name}.tasks" for config in apps.get_app_configs()] + list(extra)


def is_found_by_workers(module: str) -> bool:
    """Say whether a worker imports this module, so that it knows the tasks in it."""
    return module in _set_up or any(module == root or module.startswith(f"{root}.") for root in task_modules())


def not_found(task: Task[Any, Any]) -> str:
    """Return the sentence for a task that no worker would find."""
    return (
        f"no worker would find {task.name}: workers import <app>.tasks of each installed app, and what is below it. "
        f"Move the task there, or add {task.func.__module__!r} to PGQUEUE['TASK_MODULES']."
    )


def imported(path: str) -> Any:
    """Return what a dotted path in the settings leads to; raises what its import raises, or `AttributeError`."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def import_task_modules() -> None:
    """Import `<app>.tasks` of every app, `PGQUEUE["TASK_MODULES"]`, and all that is below them.

    An error in one of them passes through: a worker that lacks tasks is worse than one that does not start.
    """
    with_tasks = [c for c in apps.get_app_configs() if c.module and module_has_submodule(c.module, "tasks")]
    own = {f"{config.name}.tasks" for config in apps.get_app_configs()}
    for name in [f"{c.name}.tasks" for c in with_tasks] + [n for n in task_modules() if n not in own]:
        _import(name)
        for below in _modules_below(name):
            importlib.import_module(below)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ImproperlyConfigured(f"PGQUEUE['TASK_MODULES'] names {name!r}, and there is no {error.name!r}") from None


def _modules_below(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), prefix=f"{name}."):
        yield found.name
