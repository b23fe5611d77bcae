"""Check and resolve the names of what operators pause and change: queues, tasks, limits and limit keys.

The other modules of `control`, and the admin, call these functions. They check names and times before anything is
written, so that a mistake of an operator changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final

from django.conf import settings
from django.db import router
from django.db.models import Q

from django_pgqueue import queues
from django_pgqueue.db.fields import aware
from django_pgqueue.declared import limits
from django_pgqueue.declared.limits import name_of
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.ground.similar_names import closest
from django_pgqueue.lifecycle.limits import keys_of_limit
from django_pgqueue.options.validation import NAME
from django_pgqueue.states import Pausable
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry

SIMILAR_TASK: Final = 0.9
"""The least similarity of two names of tasks, by the ratio of difflib. Tasks of one module have similar names."""


class UnknownLimitWarning(RuntimeWarning):
    """No task of this process has this limit, and one has a limit with a similar name. The name may be mistyped."""


class UnknownTaskWarning(RuntimeWarning):
    """This process has no task with this name, and one with a similar name. The name may be mistyped."""


def target_of(queue_name: str | None, task: Any, limit_key: str | None) -> tuple[Pausable, str]:
    """Return whether to act on a queue, a task or a limit, and its valid name."""
    if [queue_name, task, limit_key].count(None) != 2:
        raise TypeError("pass either a queue name, a task or a limit key, and only one of them")
    if limit_key is not None:
        check_limit_key(limit_key)
        return Pausable.LIMIT, limit_key
    kind = Pausable.QUEUE if task is None else Pausable.TASK
    name = queue_name if task is None else task_name(task)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"invalid {kind} name {name!r}: use 1 to 100 of the characters A-Z a-z 0-9 _ . : -")
    return kind, name


def check_limit_key(limit_key: Any) -> None:
    """Raise `ValueError` unless this is the name of a limit or a limit key that a job can have."""
    for problem in limit_key_problems(limit_key):
        raise ValueError(f"invalid limit key {limit_key!r}: {problem}")


def limit_key_problems(limit_key: Any) -> Iterator[str]:
    """Yield why a text is neither the name of a limit nor a limit key."""
    if not isinstance(limit_key, str) or not limits.NAME.fullmatch(name_of(limit_key)):
        yield 'pass the name of a limit, such as "stripe", or one of its keys, such as "stripe:customer:7"'
    else:
        yield from limits.key_problems(limit_key)


def check_use(kind: Pausable, name: str, database: str) -> None:
    """Raise `ValueError` for a queue that `PGQUEUE["QUEUES"]` lacks. Warn if a name may be mistyped.

    The warning names the line that called the caller of this function.
    """
    if kind is Pausable.QUEUE:
        queues.check(name, database, stacklevel=4)
    elif kind is Pausable.LIMIT and (message := mistyped_limit(name)):
        warnings.warn(message, UnknownLimitWarning, stacklevel=3)
    elif kind is Pausable.TASK and (message := mistyped_task(name)):
        warnings.warn(message, UnknownTaskWarning, stacklevel=3)


def mistyped_limit(limit_key: str) -> str:
    """Return a message if no task has the limit, and one has a limit with a similar name; otherwise an empty string.

    Without a similar name there is no message: the limit may belong to code that runs elsewhere.
    """
    name, known = name_of(limit_key), sorted(registry.limits())
    close = [] if name in known else get_close_matches(name, known, n=1)
    return f"no task of this process has the limit {name!r}: did you mean {close[0]!r}?" if close else ""


def mistyped_task(name: str) -> str:
    """Return a message if this process has no task with this name, and one with a similar name; otherwise ""."""
    known = [name for task in registry.all_tasks() for name in registry.names_of(task.name)]
    close = "" if name in known else closest(name, known, SIMILAR_TASK)
    return f"this process has no task {name!r}: did you mean {close!r}?" if close else ""


def in_limit(limit_key: str) -> Q:
    """Return the condition of rows that have a limit key, or any key of the limit with this name."""
    first_key, end_key = keys_of_limit(limit_key)
    # The column has the collation "C", so the order of bytes is a range of its index.
    others = Q(limit_key__gte=first_key, limit_key__lt=end_key) if first_key else Q()
    return Q(limit_key=limit_key) | others


def names_of(kind: Pausable, name: str) -> tuple[str, ...]:
    """Return the names that a pause may be stored under: the current one first, then a task's former names."""
    return registry.names_of(name) if kind is Pausable.TASK else (name,)


def task_name(task: Any) -> Any:
    """Return a task's current name. A given name may be an alias, or the name of a task that this process lacks."""
    name = task.name if isinstance(task, Task) else getattr(task, "module_path", task)
    return registry.names_of(name)[0] if isinstance(name, str) else name


def bounds_of(until: Duration | datetime | None) -> dict[str, Any]:
    """Return the arguments `until` or `for_seconds` of `lifecycle` that set the end of a pause or an override."""
    if isinstance(until, datetime):
        if until.tzinfo is None and settings.USE_TZ:
            raise ValueError(f"invalid until {until}: pass an aware datetime (with a time zone)")
        if (until := aware(until)) <= datetime.now(UTC):
            raise ValueError(f"invalid until {until}: it is in the past, pass a time in the future")
        return {"until": until}
    return {"until": None} if until is None else {"for_seconds": seconds(until)}


def stored_text(text: str, length: int) -> str:
    """Return a text cut to `length` characters, without NUL, which PostgreSQL cannot store."""
    return str(text).replace("\0", "")[:length]


def alias_of(database: str | None) -> str:
    """Return the alias of the database of the jobs: the given one, or the one that the routers choose."""
    from django_pgqueue.models import Job  # task modules are imported before models can be

    return database or router.db_for_write(Job)
