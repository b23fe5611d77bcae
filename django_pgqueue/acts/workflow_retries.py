"""Retry a workflow from a node: the failed node and everything that depends on it, in one act.

The admin calls it. `plan_retry()` reads these jobs for the page that asks. `retry_from()` retries them in one
transaction, each only if it is still as it was seen. It changes nothing if the node itself is not retried: otherwise
its dependents would run without its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final, NamedTuple

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.ends import job_operations
from django_pgqueue.ground.plurals import counted
from django_pgqueue.lifecycle.audit import add_audit
from django_pgqueue.models import BATCH_SIZE, Job
from django_pgqueue.models.operations_link import JobsToChange
from django_pgqueue.states import FINISHED, Seen, State
from django_pgqueue.stats.graphs.downstream import FAILED, RetryEffect, effects, failed_before, nodes_from
from django_pgqueue.stats.graphs.figures import GraphNode, WorkflowGraph, workflow_graph

from . import RETRY

MOST: Final = BATCH_SIZE
"""Jobs that one act retries at most, because one statement does it."""
KEPT: Final = (State.SUCCEEDED.value, RetryEffect.CANCELLED)
"""The state of a job and the effect of the retry on it for which the act leaves it."""
UNFINISHED: Final = frozenset({State.READY.value, State.RUNNING.value, State.WAITING.value})


class CannotRetryFromError(ValueError):
    """A workflow cannot be retried from a node, or was not. The message gives the operator the reason."""


class WorkflowRetryPlan(NamedTuple):
    """A retry from a node, as the page that asks shows it.

    Attributes:
        batch_id: The batch of the workflow.
        root_id: The node.
        nodes: The node and everything that depends on it, in the order of their ids.
        effects: What happens to each of these jobs.
        seen: Those of them that have ended, which the act retries, as they were read.
        failed_before: Failed jobs that these depend on and that the act does not retry, with those that depend on them.
    """

    batch_id: int
    root_id: int
    nodes: list[GraphNode]
    effects: dict[int, RetryEffect]
    seen: dict[int, Seen]
    failed_before: dict[int, list[int]]

    @property
    def succeeded(self) -> list[int]:
        """Jobs of the act that have succeeded, so their tasks run once more."""
        return [job_id for job_id, seen in self.seen.items() if seen.state == State.SUCCEEDED]


class RetriedJobs(NamedTuple):
    """How many jobs an act has retried, and how many it has left as they were."""

    retried: int
    left: int


def plan_retry(batch_id: int, job_id: int, alias: str) -> WorkflowRetryPlan:
    """Return what a retry from a node does. Runs three statements, which only read.

    Raise `CannotRetryFromError` if the job is no node of the workflow, has not failed, or has too many dependents, and
    if it would be cancelled again, because it also depends on another failed job.
    """
    graph = workflow_graph(batch_id, alias)
    states = {node.job_id: node.state for node in graph.nodes}
    if graph.is_cut:
        raise CannotRetryFromError("The workflow is too large to be retried from a node.")
    if job_id not in states:
        raise CannotRetryFromError(f"Job #{job_id} is not a part of this workflow.")
    if states[job_id] not in FAILED:
        raise CannotRetryFromError(f"Job #{job_id} is {states[job_id]}: only a dead or cancelled job can be retried.")
    nodes, effect_of = nodes_from(graph, job_id), effects(graph, job_id)
    # RETRY would remove the result of a succeeded job that is cancelled again at once.
    kept = {node.job_id for node in nodes if (node.state, effect_of[node.job_id]) == KEPT}
    ended = [node.job_id for node in nodes if node.state in FINISHED and node.job_id not in kept]
    if len(ended) > MOST:
        raise CannotRetryFromError(
            f"{counted(len(ended) - 1)} depend on job #{job_id}. One act retries at most {MOST:,}: retry the dead jobs "
            "of the whole batch instead."
        )
    before = failed_before(graph, frozenset(node.job_id for node in nodes))
    _check_root(graph, states, before, job_id)
    rows = Job.objects.using(alias).filter(pk__in=ended, state__in=FINISHED).order_by("pk")
    columns = rows.values_list("pk", "state", "finished_at", "run_after", "acknowledged_at")
    seen = {
        pk: Seen(state, finished_at, run_after, acknowledged_at is not None)
        for pk, state, finished_at, run_after, acknowledged_at in columns
    }
    needed_by: dict[int, list[int]] = {}
    for node_id, needs in before.items():
        for needs_id in needs:
            needed_by.setdefault(needs_id, []).append(node_id)
    effect_of |= dict.fromkeys(kept, RetryEffect.KEPT)
    return WorkflowRetryPlan(batch_id, job_id, nodes, effect_of, seen, needed_by)


def _check_root(
    graph: WorkflowGraph, states: Mapping[int, str], before: Mapping[int, Mapping[int, str]], job_id: int
) -> None:
    """Raise an error for a node that has to wait and has a failed dependency: a retry would cancel it again."""
    failed = [needs_id for needs_id, policy in before.get(job_id, {}).items() if policy == "cancel"]
    has_to_wait = any(edge.job_id == job_id and states.get(edge.needs_id) in UNFINISHED for edge in graph.edges)
    if failed and has_to_wait:
        raise CannotRetryFromError(
            f"Job #{job_id} also depends on job #{failed[0]}, which has failed, so it would be cancelled again: retry "
            "from that job."
        )


def retry_from(plan: WorkflowRetryPlan, alias: str, *, by: str, reason: str = "") -> RetriedJobs:
    """Retry the jobs of a plan in one transaction, with one entry in the audit.

    Jobs that have changed since the plan was read, or were edited and retried as new jobs, and those that are cancelled
    again, are left.

    Raise `CannotRetryFromError` if the node itself cannot be retried. Nothing is changed then.
    """
    connection = connections[alias]
    names = {node.job_id: node.task_name for node in plan.nodes if node.job_id in plan.seen}
    changed = set[int]()
    record = partial(_record, connection, plan, changed, by, reason)
    job_operations.retry(JobsToChange(connection, names, plan.seen, record=record))
    return RetriedJobs(len(changed), len(names) - len(changed))


def _record(
    connection: BaseDatabaseWrapper,
    plan: WorkflowRetryPlan,
    changed: set[int],
    by: str,
    reason: str,
    job_ids: Collection[int],
) -> None:
    """Write the audit in the transaction of the retry. Raise an error, which undoes it, without the node."""
    if plan.root_id not in job_ids:
        raise CannotRetryFromError(
            f"Job #{plan.root_id} was not retried: it has changed, is locked, was edited and retried as a new job, its "
            "compensation is not over, or another job that it depends on has failed."
        )
    changed.update(plan.seen.keys() & set(job_ids))
    chosen = {"batch_id": plan.batch_id, "from_job": plan.root_id}
    add_audit(connection, RETRY.name, chosen, sorted(changed), done_by=by, reason=reason)
