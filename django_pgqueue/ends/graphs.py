"""Advance the dependents of ended jobs of workflows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from enum import Enum
from typing import NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import graphs
from django_pgqueue.lifecycle.ends import EndedJob
from django_pgqueue.lifecycle.graphs import AdvancedJob
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition
from django_pgqueue.states import State

from .end_check import Checked, Reactor, Sweep, SweepPage


class Role(Enum):
    """Why a node is noted."""

    ENDED = "its dependents are to be advanced"
    POSTPONED = "it has to wait again for its dependencies"
    WAITING = "its dependencies may have ended"


class EndedNode(NamedTuple):
    """A job of a workflow to look at."""

    job_id: int
    role: Role
    after_id: int = 0
    """The last of its dependents that was looked at."""


def _missed(connection: Connection, after_id: int) -> SweepPage:
    """Return waiting jobs whose dependencies have ended."""
    found = graphs.find_missed(connection, after_id)
    return SweepPage([EndedNode(job_id, Role.WAITING) for job_id in found.job_ids], found.last_id, found.is_empty)


def advanced_transitions(jobs: Iterable[AdvancedJob]) -> list[JobTransition]:
    """Return the transitions of jobs of workflows whose dependencies have ended. The error is for cancelled ones."""
    of = {state: TransitionResult(TransitionStatus.DONE, state) for state in (State.READY, State.CANCELLED)}
    error = "a job that it depends on is dead or cancelled"
    return [JobTransition(job.job_id, job.task_name, of[job.state], error=error, is_due=job.is_due) for job in jobs]


class Graphs:
    """The check of the nodes of workflows. It has no interval, because each node of a chain waits for it."""

    name = "workflows"
    interval_seconds = 0.0
    sweeps: tuple[Sweep, ...] = (Sweep("waiting", _missed),)

    def note(self, ended: EndedJob) -> Iterable[EndedNode]:
        """Return the node, if the job is one."""
        if ended.is_postponed:
            yield EndedNode(ended.job_id, Role.POSTPONED)
        elif ended.in_graph:
            yield EndedNode(ended.job_id, Role.ENDED)

    def check(self, connection: Connection, noted: Collection[EndedNode], reactor: Reactor) -> Checked:
        """Let postponed nodes wait. Advance those that wait, and the dependents of those that have ended.

        This is one page of an advance. It returns what is left for the next one.
        """
        ids: dict[Role, dict[int, int]] = defaultdict(dict)
        for node in noted:
            ids[node.role][node.job_id] = min(node.after_id, ids[node.role].get(node.job_id, node.after_id))
        found = {*ids[Role.WAITING], *graphs.postpone(connection, ids[Role.POSTPONED])}
        advanced, left = graphs.advance_page(connection, ids[Role.ENDED], found)
        if advanced.jobs:
            reactor.react(connection, advanced_transitions(advanced.jobs))
        return Checked(
            len(advanced.jobs),
            [EndedNode(job_id, Role.WAITING) for job_id in advanced.locked_ids],
            advanced.refused,
            [EndedJob(job.job_id, job.batch_id) for job in advanced.jobs if job.state is State.CANCELLED],
            [EndedNode(job_id, Role.ENDED, after_id) for job_id, after_id in left.items()],
        )
