"""Decide what a remote worker may claim: some queues and some tasks that can run without a database.

A token has a scope, and a claim can narrow it. Claims leave tasks out by their names, as they do for paused tasks. The
names that lie outside a scope are those that this process knows. `claim_group` finds the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from django_pgqueue.tasks import registry

from .problems import forbidden

if TYPE_CHECKING:
    from django_pgqueue.tasks.definition import TaskDefinition


class Scope(NamedTuple):
    """Queues and tasks. Empty: all of them. The queues are claimed in this order."""

    queue_names: tuple[str, ...] = ()
    task_names: tuple[str, ...] = ()

    def narrowed(self, queue_names: Sequence[str], task_names: Sequence[str]) -> Scope:
        """Return the part of this scope that a claim asks for. Raise `Problem` (403) for a name outside it."""
        return Scope(_narrowed("queue", self.queue_names, queue_names), _narrowed("task", self.task_names, task_names))

    def allows(self, task_name: str) -> bool:
        """Return whether a job of this task may be given to a remote worker."""
        task = registry.get(task_name)
        if task is None or why_unsupported(task):
            return False
        return not self.task_names or not set(self.task_names).isdisjoint(registry.names_of(task_name))

    def excluded_names(self) -> set[str]:
        """Return the names of registered tasks whose jobs lie outside this scope, with their aliases."""
        return {
            name for task in registry.all_tasks() if not self.allows(task.name) for name in registry.names_of(task.name)
        }


def _narrowed(kind: str, allowed: tuple[str, ...], wanted: Sequence[str]) -> tuple[str, ...]:
    if not wanted:
        return allowed
    if allowed:
        for name in wanted:
            if name not in allowed:
                raise forbidden(f"the token does not give access to {kind} {name!r}")
    return tuple(wanted)


def why_unsupported(task: TaskDefinition) -> str:
    """Return why the jobs of a task are left to local workers, or an empty string."""
    if task.atomic:
        return "it is atomic, so it needs a transaction in the database of the job"
    if task.chunk is not None:
        return "it takes chunks of jobs"
    return ""
