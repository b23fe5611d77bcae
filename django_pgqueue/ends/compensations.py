"""Undo the finished steps of jobs that end dead or cancelled."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Final

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import sagas
from django_pgqueue.lifecycle.ends import EndedJob

from .end_check import SWEEP_LIMIT, Checked, Reactor, Sweep, SweepPage, page_of

HEADER: Final = "pgqueue_compensates"
"""Header of the job of a compensation: the id of the job whose step it undoes."""


def compensated_id(headers: str | None) -> int | None:
    """Return the id of the job that a compensation with these headers undoes. None: it is no compensation."""
    if headers is None or HEADER not in headers:
        return None
    value = json.loads(headers).get(HEADER)
    return value if isinstance(value, int) else None


def _pending(connection: Connection, after_id: int) -> SweepPage:
    """Return jobs with compensations that are neither added nor forgotten."""
    return page_of(sagas.pending_sagas(connection, after_id, SWEEP_LIMIT))


class Compensations:
    """The check of jobs whose steps have compensations, and of jobs whose last compensation has succeeded."""

    name = "compensations"
    interval_seconds = 0.0
    sweeps: tuple[Sweep, ...] = (Sweep("compensations", _pending),)

    def note(self, ended: EndedJob) -> Iterable[int]:
        """Return the job itself, or the job that it has compensated."""
        if ended.compensated_id is not None:
            yield ended.compensated_id
        if ended.has_compensations:
            yield ended.job_id

    def check(self, connection: Connection, noted: Collection[int], reactor: Reactor) -> Checked:
        """Add the next compensations of these jobs, and announce them."""
        done = sagas.compensate(connection, noted)
        added = reactor.announce(connection, [(each.job_id, each.task_name, each.queue_name) for each in done.added])
        return Checked(added, refused=done.refused)
