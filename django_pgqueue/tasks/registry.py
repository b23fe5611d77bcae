"""The registry of tasks, and the list of modules in which workers find tasks.

`@task` registers tasks. `enqueue()`, the worker and the admin look them up by name. `PgQueueConfig.ready()` imports all
tasks modules when a process starts.

A row's `task_name` is only a key into the registry. No code is ever imported because a row contains its name, so write
access to the rows does not allow anyone to import code.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.declared.limits import Limit
from django_pgqueue.exceptions import InvalidTask

if TYPE_CHECKING:
    from .definition import TaskDefinition

_tasks: dict[str, TaskDefinition] = {}
imported_at_setup: Final[set[str]] = set()
"""Modules with tasks that were imported during `django.setup()`. Workers run the same setup and import them too."""
_limits: Mapping[str, Limit] | None = None
"""The result of `limits()`, until another task is registered."""
_chunk_keys: Mapping[str, TaskDefinition] | None = None
"""The result of `chunk_keys()`, until another task is registered."""


def register(task: TaskDefinition) -> None:
    """Register a task under its name and its aliases.

    A module that is loaded again replaces its own tasks.

    Raises:
        InvalidTask: A task with another function already has one of the names, or another limit with the same name. Or
            a module defines a task twice.
    """
    global _limits, _chunk_keys
    names = (task.name, *task.aliases)
    for name in names:
        existing = _tasks.get(name)
        if existing is not None and existing.module_path != task.module_path:
            raise InvalidTask(
                f"{task.module_path} and {existing.module_path} are both named {name!r}: "
                "pass another name= to one of them"
            )
        if existing is not None and _is_defined_again(existing, task):
            raise InvalidTask(
                f"{task.func.__module__} defines the task {task.module_path} twice, and the second definition would "
                "replace the first: rename one of the functions, or remove it"
            )
    if task.limit is not None:
        _check_same_policy(task, task.limit)
    _tasks.update(dict.fromkeys(names, task))
    _limits = _chunk_keys = None
    if apps.loading and not apps.ready:
        imported_at_setup.add(task.func.__module__)


def _is_defined_again(existing: TaskDefinition, task: TaskDefinition) -> bool:
    """Return whether the code of one module contains both functions.

    A module that is loaded again has new code: it does not contain the function of the task that it replaces.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is task.func.__globals__:
            codes = {id(each) for each in frame.f_code.co_consts}
            return existing.func is not task.func and {id(existing.func.__code__), id(task.func.__code__)} <= codes
        frame = frame.f_back
    return False


def get(name: str) -> TaskDefinition | None:
    """Return the task with this name or alias, or None if this process has no such task."""
    return _tasks.get(name)


def names_of(name: str) -> tuple[str, ...]:
    """Return every name that the jobs of a task can have, its current name first.

    If this process does not know the task, return only the given name.
    """
    task = _tasks.get(name)
    return (name,) if task is None else (task.name, *task.aliases)


def _check_same_policy(task: TaskDefinition, limit: Limit) -> None:
    for other in _tasks.values():
        is_shared = other.module_path != task.module_path and other.limit is not None and other.limit.name == limit.name
        if is_shared and other.limit is not None and other.limit.policy != limit.policy:
            raise InvalidTask(
                f"{task.module_path} and {other.module_path} have different limits {limit.name!r}, {limit} and "
                f"{other.limit}: make them equal, or give one of them another name. Only key and weight can differ"
            )


def limits() -> Mapping[str, Limit]:
    """Return the limits of all registered tasks by their names.

    The same object is returned until another task is registered. Of the limits with one name, which differ in key and
    weight only, it contains one.
    """
    global _limits
    if _limits is None:
        _limits = MappingProxyType({task.limit.name: task.limit for task in all_tasks() if task.limit is not None})
    return _limits


def breakers() -> frozenset[str]:
    """Return the names of the limits of registered tasks that have a circuit breaker."""
    return frozenset(limit.name for limit in limits().values() if limit.breaker is not None)


def chunk_keys() -> Mapping[str, TaskDefinition]:
    """Return the tasks with `chunk` by their chunk keys, which jobs have under each name of the task.

    The same object is returned until another task is registered.
    """
    global _chunk_keys
    if _chunk_keys is None:
        _chunk_keys = MappingProxyType(
            {chunk_key(name): task for name, task in _tasks.items() if task.chunk is not None}
        )
    return _chunk_keys


def check_limit(limit: Limit) -> None:
    """Raise `InvalidTask` if no registered task declares a limit: workers would not know its policy."""
    known = limits().get(limit.name)
    if known is None:
        raise InvalidTask(
            f"using(limit=…): no registered task declares limit {limit.name!r}, so no worker would know it: "
            "declare it with @task(limit=…)"
        )
    if known.policy != limit.policy:
        raise InvalidTask(
            f"using(limit=…): limit {limit.name!r} differs from the one that a task declares, {limit} and {known}: "
            "only key and weight can differ"
        )


def in_words(name: str | None) -> str:
    """Return a row's `task_name` in a form that is safe in a log line.

    Names with non-printable characters are escaped. Otherwise a row with a newline in its name could forge log lines.
    """
    return name if name is not None and name.isprintable() else repr(name)


def all_tasks() -> list[TaskDefinition]:
    """Return every registered task once, sorted by name."""
    return sorted({task.name: task for task in _tasks.values()}.values(), key=lambda task: task.name)


def count() -> int:
    """Return the number of names of registered tasks."""
    return len(_tasks)


def task_modules() -> list[str]:
    """Return the modules that a worker imports. It also imports all modules below them."""
    given = getattr(django_settings, "PGQUEUE", {})
    extra = given.get("TASK_MODULES", ()) if isinstance(given, dict) else ()
    if not isinstance(extra, list | tuple):  # an error here would keep system check pgqueue.E001 from reporting it
        extra = ()
    return [f"{config.name}.tasks" for config in apps.get_app_configs()] + list(extra)


def is_found_by_workers(module: str) -> bool:
    """Return whether workers import this module, and so know the tasks in it."""
    return module in imported_at_setup or any(
        module == root or module.startswith(f"{root}.") for root in task_modules()
    )


def not_found(task: TaskDefinition) -> str:
    """Return the error message for a task that no worker would find."""
    if task.func.__module__ == "__main__":
        return (
            f"no worker would find {task.name}: it is defined in the program itself, which workers do not import. "
            "Move the task to <app>.tasks of an installed app, and import it from there."
        )
    return (
        f"no worker would find {task.name}: workers import <app>.tasks of each installed app and the modules below it. "
        f"Move the task there, or add {task.func.__module__!r} to PGQUEUE['TASK_MODULES']."
    )


def imported(path: str) -> Any:
    """Return the object at a dotted path from the settings.

    Raises:
        AttributeError: The module has no such name.
        ValueError: `path` has no module part.
        Exception: Any error that the import raises.
    """
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def instantiated(setting: str, path: str, problems_of: Callable[[Any], Iterator[str]], *, shows_error: bool) -> Any:
    """Return an instance of the class at a path that a setting names. `problems_of()` yields what is wrong with it.

    `shows_error`: whether the message shows the error of the constructor, and not only its class.

    Raises:
        ImproperlyConfigured: The path cannot be imported, or its object is not a valid class.
    """
    named = f"PGQUEUE[{setting!r}] names {path!r}"
    try:
        found = imported(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImproperlyConfigured(f"{named}, which cannot be imported: {error}") from error
    for problem in problems_of(found):
        raise ImproperlyConfigured(f"{named}: {problem}")
    try:
        return found()
    except Exception as error:
        reason = repr(error) if shows_error else type(error).__name__
        raise ImproperlyConfigured(f"{named}, which cannot be instantiated: {reason}") from error


def import_task_modules() -> None:
    """Import `<app>.tasks` of every app, the modules in `PGQUEUE["TASK_MODULES"]`, and all modules below them.

    Import errors are not caught, because a worker that lacks tasks is worse than a worker that does not start.

    Raises:
        ImproperlyConfigured: `PGQUEUE["TASK_MODULES"]` names a module that does not exist.
        Exception: Any error that a module raises during its import.
    """
    configs = list(apps.get_app_configs())
    with_tasks = [config for config in configs if config.module and module_has_submodule(config.module, "tasks")]
    app_modules = {f"{config.name}.tasks" for config in configs}
    extra = [name for name in task_modules() if name not in app_modules]
    for name in [f"{config.name}.tasks" for config in with_tasks] + extra:
        _import(name)
        for submodule in _modules_below(name):
            importlib.import_module(submodule)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ImproperlyConfigured(
            f"PGQUEUE['TASK_MODULES'] names {name!r}, but there is no module {error.name!r}"
        ) from None


def _modules_below(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), prefix=f"{name}."):
        yield found.name
