"""The interface between code that ends jobs and the capabilities for which something follows an end.

`end_checks` has the list of the checks and runs them. To add one, write a class with the members of `EndCheck`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from django_pgqueue import signals
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.notifications import wake_workers
from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle.ends import EndedJob
from django_pgqueue.lifecycle.refused_rows import Refused
from django_pgqueue.reactions import React, after_application, after_enqueue

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.signals import TaskSignal

SWEEP_LIMIT: Final = 1000
"""Rows that one page of a sweep looks at."""
Publish = Callable[["TaskSignal", str | None, dict[str, Any]], None]
"""Sends a signal: its arguments are the signal, the sender and the arguments of the receivers."""

Later = Callable[[str, Collection[Any]], None]
"""Takes the name of a check and what it has left."""


def send_now(signal: TaskSignal, task_name: str | None, arguments: dict[str, Any]) -> None:
    """Send a signal in this thread. Django logs the errors of receivers."""
    signal.send_robust(sender=task_name, **arguments)


class Reactor(NamedTuple):
    """How a process reacts to what the checks do: to transitions, and to the signals of added jobs."""

    react: React = after_application
    publish: Publish = send_now
    later: Later | None = None
    """Takes what a check has left for its next page. None: the caller's thread does all pages."""

    def announce(self, connection: Connection, added: Iterable[tuple[int, str, str]]) -> int:
        """Wake the workers for added jobs, and send `job_enqueued` for each. Return their number.

        Each job is its id, the name of its task and its queue.
        """
        jobs = list(added)
        if jobs and isinstance(connection, EngineConnection):
            wake_workers(connection)
        for job_id, task_name, queue_name in jobs:
            if not isinstance(connection, EngineConnection):
                after_enqueue(cast("BaseDatabaseWrapper", connection), task_name, queue_name, [job_id])
            elif signals.job_enqueued.receivers:
                about = {"job_id": job_id, "database": connection.alias, "queue_name": queue_name}
                self.publish(signals.job_enqueued, task_name, about)
        return len(jobs)


APPLICATION: Final = Reactor()
"""The reactions of an application's process, in the caller's thread."""


class Checked(NamedTuple):
    """The result of a check."""

    changed: int = 0
    """How many jobs were added or changed."""
    locked: Collection[Any] = ()
    """Those of `noted` that another session has locked, or that time was up for. They are noted again."""
    refused: Sequence[Refused[int]] = ()
    """The jobs or batches that the database refused to write. The sweep tries them again."""
    ended: Sequence[EndedJob] = ()
    """Jobs that the check itself has ended. The checks behind it note them."""
    left: Collection[Any] = ()
    """Those of `noted`, and others, that the next page of the check begins with. They are noted again."""

    def raise_refused(self) -> None:
        """Raise the first error of the database."""
        if self.refused:
            raise self.refused[0].error


class SweepPage(NamedTuple):
    """A page of what a sweep looks at, as `EndCheck.check()` takes it."""

    noted: Sequence[Any]
    last_id: int | None
    """The end of the page, or None after the last one."""
    is_empty: bool
    """Whether the page had no rows, of which `noted` can be a part."""


class Sweep(NamedTuple):
    """A walk over the rows for which a check may be due, whatever has ended the jobs."""

    name: str
    find: Callable[[Connection, int], SweepPage]
    """Returns the page behind an id."""
    is_rare: bool = False
    """Whether it runs once an hour, because it reads many rows that are seldom of interest."""


class EndCheck(Protocol):
    """The check of one capability: it does what has to happen after jobs have ended. An instance keeps no state."""

    name: str
    interval_seconds: float
    """Minimum time between two checks of a process. 0: what is noted is checked at once."""
    sweeps: tuple[Sweep, ...]
    """The last one finds whatever the others find."""

    def note(self, ended: EndedJob) -> Iterable[Any]:
        """Return what the end of a job leaves to check: hashable values, usually ids. Send no statement."""

    def check(self, connection: Connection, noted: Collection[Any], reactor: Reactor) -> Checked:
        """Do one page of what is due for all that was noted, and react to it.

        Completions wait meanwhile, so a page has about 1,000 rows. Raise only errors that concern all rows.
        """


def page_of(ids: Sequence[int]) -> SweepPage:
    """Return a page that was read with `SWEEP_LIMIT`."""
    return SweepPage(ids, ids[-1] if len(ids) == SWEEP_LIMIT else None, not ids)
