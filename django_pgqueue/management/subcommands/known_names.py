"""Refuse names in arguments that nothing uses, because they are probably misspelled.

The subcommands that act on a queue, a task, a limit or a search key call it. Otherwise a misspelled name would do
nothing, without a word. A name is known if the code declares it, or if a job, a schedule or a pause has it, however old
it is. The code is asked first. The searches for jobs have the bounds of `job_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from django.db import connections

from django_pgqueue import queues, stats
from django_pgqueue.control.queues import waiting_behind
from django_pgqueue.declared.limits import name_of
from django_pgqueue.ground.similar_names import meant
from django_pgqueue.job_search import Filters, find
from django_pgqueue.models import Job, Pause, Schedule, SearchKey
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry

from .subcommand import NotFound

FORCE: Final = "Pass --force if the name is right."


def check_name(kind: Pausable, name: str, alias: str, advice: str = "") -> None:
    """Raise `NotFound`, with the name that may be meant, if nothing uses a queue, a task, a limit or a limit key."""
    if problem := unknown_name(kind, name, alias):
        raise NotFound(f"{problem} {advice}".rstrip())


def unknown_name(kind: Pausable, name: str, alias: str) -> str:
    """Return what is wrong with a name that nothing uses, and the name that may be meant; "" for a known name."""
    problem = PROBLEMS[kind](name, alias)
    return "" if not problem or _has_rows(kind, name, alias) else problem


def check_filters(filters: Filters) -> None:
    """Raise `NotFound` if filters that find nothing have a name that nothing uses."""
    task_name = filters.task_names[0] if filters.task_names else None
    names = {Pausable.QUEUE: filters.queue_name, Pausable.TASK: task_name, Pausable.LIMIT: filters.limit}
    for kind, name in names.items():
        if name:
            check_name(kind, name, filters.alias)
    if filters.search is not None:
        check_search_key(filters.search[0], filters.alias)


def check_search_key(name: str, alias: str) -> None:
    """Raise `NotFound` if no task declares a search key, and no job has it."""
    known = {key for task in registry.all_tasks() for key in task.search}
    if name not in known and not SearchKey.objects.using(alias).filter(name=name).exists():
        raise NotFound(f"No task or job has the search key {name!r}{meant(name, known, 'pgqueue tasks')}")


def check_target_queue(name: str, alias: str) -> None:
    """Raise `NotFound` for a queue to put jobs into if nothing uses it, and a queue with a similar name is used.

    A name without a similar one can be that of a new queue.
    """
    if problem := queues.mistyped(name, alias):
        raise NotFound(f"{_sentence(problem)} {FORCE}")


def _unknown_queue(name: str, alias: str) -> str:
    return _sentence(queues.mistyped(name, alias, accepts_new=False))


def _unknown_task(name: str, alias: str) -> str:
    known = {task.name for task in registry.all_tasks()} | set(stats.names(connections[alias]).tasks)
    if registry.get(name) is not None or name in known:
        return ""
    return f"No task, schedule or job has the name {name!r}{meant(name, known, 'pgqueue tasks')}"


def _unknown_limit(limit_key: str, alias: str) -> str:
    name = name_of(limit_key)
    if name in registry.limits() or name in (known := {limit.name for limit in stats.limits(alias)}):
        return ""
    return f"No task or job has the limit {name!r}{meant(name, known, 'pgqueue limits list')}"


PROBLEMS: Final[Mapping[Pausable, Callable[[str, str], str]]] = {
    Pausable.QUEUE: _unknown_queue,
    Pausable.TASK: _unknown_task,
    Pausable.LIMIT: _unknown_limit,
}
"""Return what is wrong with a name that neither the code nor the newest jobs have."""


def _has_rows(kind: Pausable, name: str, alias: str) -> bool:
    """Return whether a pause, a schedule or an older job has a name."""
    filters = {
        Pausable.QUEUE: Filters(alias, queue_name=name),
        Pausable.TASK: Filters(alias, task_names=(name,)),
        Pausable.LIMIT: Filters(alias, limit=name),
    }[kind]
    if Pause.objects.using(alias).filter(kind=kind, name=name).exists() or waiting_behind(kind, name, alias).exists():
        return True
    if kind is Pausable.TASK:
        ended = Job.objects.using(alias).filter(task_name=name, finished_at__isnull=False)
        if ended.exists() or Schedule.objects.using(alias).filter(task_name=name).exists():
            return True
    return bool(find(filters, 1).ids)


def _sentence(problem: str) -> str:
    return f"{problem[:1].upper()}{problem[1:]}"
