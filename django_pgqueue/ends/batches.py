"""Decide which batches have failed, completed or succeeded, announce their callbacks, and look at the parents."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Final

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import batches
from django_pgqueue.lifecycle.batches import BatchEvent
from django_pgqueue.lifecycle.ends import EndedJob
from django_pgqueue.lifecycle.refused_rows import Refused, divided

from .end_check import APPLICATION, SWEEP_LIMIT, Checked, Reactor, Sweep, SweepPage, page_of

ENDINGS: Final = frozenset({"complete", "success"})
"""The events after which the parent of a batch may end."""
INTERVAL_SECONDS: Final = 0.05
"""While jobs of a batch end all the time, a process checks it once in this time, and once more after the last one."""


def _incomplete(connection: Connection, after_id: int) -> SweepPage:
    return page_of(batches.incomplete_batches(connection, after_id, SWEEP_LIMIT))


def _unsettled(connection: Connection, after_id: int) -> SweepPage:
    """Return batches that have not succeeded. An operator's retry can have repaired a complete one.

    Batches that failed are kept for weeks, so this is for rare sweeps.
    """
    return page_of(batches.unsettled_batches(connection, after_id, SWEEP_LIMIT))


class Batches:
    """The check of the batches of ended jobs."""

    name = "batches"
    interval_seconds = INTERVAL_SECONDS
    sweeps: tuple[Sweep, ...] = (
        Sweep("batches", _incomplete),
        Sweep("complete batches", _unsettled, is_rare=True),
    )

    def note(self, ended: EndedJob) -> Iterable[int]:
        """Return the batch of the job."""
        return () if ended.batch_id is None else (ended.batch_id,)

    def check(self, connection: Connection, noted: Collection[int], reactor: Reactor) -> Checked:
        """Record the ends of these batches and of their parents."""
        return settle(connection, noted, reactor)


def settle(connection: Connection, batch_ids: Iterable[int], reactor: Reactor = APPLICATION) -> Checked:
    """Record the ends of these batches and then those of their parents, and add the jobs of their callbacks."""
    locked: set[int] = set()
    refused: list[Refused[int]] = []
    callbacks = 0
    waiting = set(batch_ids)
    while waiting:
        over = batches.batches_to_end(connection, waiting)
        waiting = set()
        parts = divided(connection, over, partial(batches.end_batches, connection))
        refused += parts.refused
        locked |= set(parts.left)
        for batch_id, events in parts.answers.items():
            if events is None:
                locked.add(batch_id)
                continue
            callbacks += _announce(connection, events, reactor)
            waiting |= {each.parent_id for each in events if each.name in ENDINGS and each.parent_id is not None}
    return Checked(callbacks, locked, refused)


def _announce(connection: Connection, events: Iterable[BatchEvent], reactor: Reactor) -> int:
    added = [
        (each.job_id, each.job.task_name, each.job.queue_name)
        for each in events
        if each.job_id is not None and each.job is not None
    ]
    return reactor.announce(connection, added)
