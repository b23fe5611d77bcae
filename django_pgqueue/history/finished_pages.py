"""Choose finished jobs by filter, page by page, and limit the rate at which they are changed.

`archiving` and `erasing` use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import router

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import pruning
from django_pgqueue.lifecycle.pruning import EVER, needs_of
from django_pgqueue.options.validation import NAME
from django_pgqueue.states import FINISHED, State
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which finished jobs to change. An empty list of names stands for all tasks or all queues."""

    states: tuple[State, ...]
    task_names: tuple[str, ...] = ()
    queue_names: tuple[str, ...] = ()
    before: datetime = EVER
    older_than_seconds: float = 0.0

    def pages(self, connection: Connection, limit: int) -> Iterator[dict[int, datetime]]:
        """Yield the wanted jobs, each with its `finished_at`, from pages of `limit` finished jobs."""
        for state in self.states:
            yield from pruning.finished_jobs(
                connection,
                state,
                limit=limit,
                before=self.before,
                older_than_seconds=self.older_than_seconds,
                task_names=self.task_names,
                queue_names=self.queue_names,
            )


@dataclass(slots=True)
class Pace:
    """Spaces batches so that they change at most `rate` jobs per second. None: no limit."""

    rate: float | None
    began_at: float = field(default_factory=time.monotonic)
    count: int = 0

    def limit(self, batch: int) -> int:
        """Return the size of a batch: at most the jobs of one second."""
        return batch if self.rate is None else max(1, min(batch, int(self.rate)))

    def wait(self, count: int) -> None:
        """Sleep after a batch of `count` jobs until the next one may begin."""
        self.count += count
        if self.rate is not None and (early := self.began_at + self.count / self.rate - time.monotonic()) > 0:
            time.sleep(early)


Move = tuple[Collection[int], Collection[int]]
"""The ids of the wanted jobs of a page, and of those that were changed."""


class Counted(NamedTuple):
    """How many jobs were changed and left. Unfinished work needs `needed` of those that were left."""

    changed: int
    left: int
    needed: int


def counted(
    connection: Connection, moves: Iterable[Move], pace: Pace, on_batch: Callable[[int], None] = lambda count: None
) -> Counted:
    """Change the jobs of all pages, and count them. `on_batch` gets the number of changed jobs after each page."""
    count = left = needed = 0
    for wanted, changed in moves:
        unchanged = set(wanted).difference(changed)
        count, left = count + len(wanted) - len(unchanged), left + len(unchanged)
        needed += sum(job.need is not None for job in needs_of(connection, unchanged).values())
        on_batch(count)
        pace.wait(len(wanted))
    return Counted(count, left, needed)


def check_rate(rate: float | None) -> None:
    """Raise `ValueError` if a rate is not positive."""
    if rate is not None and not rate > 0:
        raise ValueError(f"rate must be a number of jobs per second above 0, not {rate!r}")


def finished_states(states: Iterable[str]) -> tuple[State, ...]:
    """Return states in a fixed order. Raise `ValueError` for a state that is not final."""
    given = sorted(states)
    if wrong := [state for state in given if state not in FINISHED]:
        raise ValueError(f"states {wrong} are not final: use {', '.join(sorted(FINISHED))}")
    return tuple(State(state) for state in given)


def names_of_tasks(tasks: Iterable[Any]) -> tuple[str, ...]:
    """Return every name that the jobs of these tasks can have, former names too. Raise as `names_of_queues()`."""
    each_name = (
        task.name if isinstance(task, TaskDefinition) else getattr(task, "module_path", task)
        for task in _listed("tasks", tasks)
    )
    return tuple(sorted({each for name in each_name for each in registry.names_of(_checked("task", name))}))


def names_of_queues(queues: Iterable[str]) -> tuple[str, ...]:
    """Return names of queues. Raise `TypeError` for a single string, `ValueError` for an invalid name."""
    return tuple(_checked("queue", name) for name in _listed("queues", queues))


def _listed(option: str, names: Iterable[Any]) -> Iterable[Any]:
    if isinstance(names, str):  # it would be split into letters
        raise TypeError(f"{option} must be a list, not the string {names!r}")
    return names


def _checked(kind: str, name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"invalid {kind} name {name!r}: use 1 to 100 of the characters A-Z a-z 0-9 _ . : -")
    return name


def alias(database: str | None) -> str:
    """Return the alias of the database that stores the jobs."""
    from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

    return database or router.db_for_write(Job)
