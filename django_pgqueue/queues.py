"""Find queue names that are probably mistyped.

A queue is only a name that jobs carry, so a new name is valid unless `PGQUEUE["QUEUES"]` lists the queues. A mistyped
name has no effect that anybody sees: a worker serves an empty queue, or a pause holds back nothing. `control`, the
commands, the admin and the worker therefore call `mistyped()`, which compares the name with those in the database, at
the cost of a few index searches. `Task.using()` calls `warn_if_mistyped()`, which does not query.

Every process of an application imports this module, and hardly any reads the figures of the queue. The functions that
do import `stats` themselves.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.db import DatabaseError, connections, transaction

from django_pgqueue.lifecycle import claims

from .options.validation import unknown_queue
from .settings.conf import known_queues
from .tasks import registry

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .models import JobQuerySet

logger = logging.getLogger("django_pgqueue.worker")

DIGITS: Final = re.compile(r"\d+")
SHORTEST: Final = 4
"""Names with fewer characters are often abbreviations that differ in one letter, so `using()` accepts them."""


class UnknownQueueWarning(RuntimeWarning):
    """Nothing uses this queue, and a queue with a similar name is used. The name may be mistyped."""


def check(name: str, database: str, *, stacklevel: int = 3) -> None:
    """Raise `ValueError` if `PGQUEUE["QUEUES"]` lacks this name. Without this setting, warn if it may be mistyped.

    With the default `stacklevel`, the warning names the line that called the caller of this function.
    """
    for problem in unknown_queue("queue", name):
        raise ValueError(problem)
    if message := mistyped(name, database):
        warnings.warn(message, UnknownQueueWarning, stacklevel=stacklevel)


def mistyped(name: str, database: str, *, accepts_new: bool = True) -> str:
    """Return a message if nothing uses a queue and a queue with a similar name is used, otherwise an empty string.

    Without a similar name there is no message if `accepts_new`: the queue may be new, and its first job may come later.
    If the database cannot be read, there is no message either.
    """
    of_tasks = {task.queue_name for task in registry.all_tasks()} | set(known_queues() or ())
    if name in of_tasks:
        return ""
    try:
        with transaction.atomic(using=database):  # an error must not end the caller's transaction
            return _mistyped(name, database, of_tasks, accepts_new=accepts_new)
    except DatabaseError as error:
        logger.debug("could not check whether the queue %r is used: %s", name, error)
        return ""


def _mistyped(name: str, database: str, of_tasks: Iterable[str], *, accepts_new: bool) -> str:
    from . import stats  # imported only if needed

    connection = connections[database]
    of_schedules = _of_schedules(database)
    names = {*of_tasks, *stats.names(connection).queues, *(of_schedules or ())}
    if name in names or waiting(name, database).exists():
        return ""
    close = get_close_matches(name, sorted(known for known in names if not _differ_in_digits(name, known)), n=1)
    if not close and accepts_new:
        return ""
    users = "task, waiting or recent job" if of_schedules is None else "task, schedule, waiting job or recent job"
    if not close:
        return f"no {users} uses the queue {name!r}. `pgqueue queues` lists what exists."
    where = ", where due jobs wait" if _has_due(connection, close[0]) else ""
    return f"no {users} uses the queue {name!r}: did you mean {close[0]!r}{where}?"


def _has_due(connection: BaseDatabaseWrapper, name: str) -> bool:
    """Return whether due jobs wait in a queue that is not paused, with or without a limit."""
    from .stats.limits.lanes import has_due_limited  # imported only if needed

    scan = claims.scan_lanes(connection)
    if any(lane.queue_name == name and seconds <= 0 for lane, seconds in scan.due_in.items()):
        return True
    return name not in scan.paused_queues and has_due_limited(connection, name)


def waiting(name: str, database: str) -> JobQuerySet:
    """Return the waiting jobs of a queue, in no order."""
    from .models import Job  # task modules are imported before models can be

    return Job.objects.using(database).ready().filter(queue_name=name).order_by()


def _of_schedules(database: str) -> set[str] | None:
    """Return the queues of the schedules, or None if the role may not read them, as that of a worker without them."""
    from .models import Schedule  # as above

    try:
        with transaction.atomic(using=database):
            return set(Schedule.objects.using(database).values_list("queue_name", flat=True).distinct())
    except DatabaseError:
        return None


def warn_if_mistyped(name: str, *, stacklevel: int = 3) -> None:
    """Warn if no registered task has this queue, and one typing slip in the name of a task's queue explains it.

    This needs no query. It does not warn before all tasks are loaded, or if `PGQUEUE["QUEUES"]` lists the queues.
    """
    if not apps.ready or known_queues() is not None:
        return
    close = _slip_of(str(name), registry.count())  # the check of the option refuses other types
    if close is not None:
        warnings.warn(
            f"no task has the queue {name!r}: did you mean {close!r}? If the name is right, list all queues in "
            "PGQUEUE['QUEUES']",
            UnknownQueueWarning,
            stacklevel=stacklevel,
        )


@lru_cache(maxsize=1024)
def _slip_of(name: str, number_of_tasks: int) -> str | None:
    """Return the queue that was probably meant, or None. A new task, which changes the number, may have a new queue."""
    names = {task.queue_name for task in registry.all_tasks()}
    if name in names or len(name) < SHORTEST:
        return None
    return next((known for known in sorted(names) if is_slip(name, known)), None)


def is_slip(typed: str, meant: str) -> bool:
    """Return whether one slip turns `meant` into `typed`: a wrong, missing or extra letter, or two in the wrong order.

    A digit or a separator that differs is not a slip, because queues are often numbered.
    """
    start = _common_length(typed, meant)
    end = _common_length(typed[start:][::-1], meant[start:][::-1])
    left, right = typed[start : len(typed) - end], meant[start : len(meant) - end]
    if not (left + right).isalpha():
        return False
    return max(len(left), len(right)) == 1 or (len(left) == 2 and left == right[::-1])


def _differ_in_digits(first: str, second: str) -> bool:
    """Return whether only numbers differ, as in `mail1` and `mail2`. Such names are not slips of each other."""
    return DIGITS.sub("", first) == DIGITS.sub("", second)


def _common_length(first: str, second: str) -> int:
    """Return how many characters at the start are equal."""
    pairs = zip(first, second, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
