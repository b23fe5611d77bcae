"""Find what depends on a node of a workflow, and what a retry from that node does to each of these jobs.

`acts.workflow_retries` calls it. The functions are pure, and follow the rules of `lifecycle.graphs.restore()`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from django_pgqueue.states import FINISHED, State

from .figures import GraphNode, WorkflowGraph

FAILED: Final = frozenset({State.DEAD.value, State.CANCELLED.value})


class RetryEffect(StrEnum):
    """The effect of a retry from a node on a job that depends on it, or on the node itself."""

    RUNS = "runs"
    """It runs again, after the jobs of the act that it depends on."""
    CANCELLED = "cancelled again"
    """Another job that it depends on has failed, and is not retried."""
    BLOCKED = "blocked"
    """It waits until another job that it depends on has been retried."""
    WAITS = "waits"
    """It has not started, and waits for the retried jobs."""
    LEFT = "left"
    """It is running."""
    KEPT = "kept"
    """It has succeeded, and a retry would be cancelled, because another job that it depends on has failed."""


def nodes_from(graph: WorkflowGraph, job_id: int) -> list[GraphNode]:
    """Return a node and all that depend on it, directly or not, in the order of their ids."""
    needs, found = graph.needs(), {job_id}
    for node in graph.nodes:  # each comes after its dependencies
        if any(each in found for each in needs.get(node.job_id, ())):
            found.add(node.job_id)
    return [node for node in graph.nodes if node.job_id in found]


def failed_before(graph: WorkflowGraph, job_ids: frozenset[int]) -> dict[int, dict[int, str]]:
    """Return for each of these jobs the failed jobs outside of them that it depends on, each with its policy.

    Dependencies whose failure is ignored are left out.
    """
    states = {node.job_id: node.state for node in graph.nodes}
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for edge in graph.edges:
        is_failed = states.get(edge.needs_id, State.DEAD.value) in FAILED
        if edge.job_id in job_ids and edge.needs_id not in job_ids and is_failed and edge.policy != "ignore":
            found[edge.job_id][edge.needs_id] = edge.policy
    return dict(found)


def effects(graph: WorkflowGraph, root_id: int) -> dict[int, RetryEffect]:
    """Return what a retry from a node does to it and to each job that depends on it, in the order of their ids."""
    nodes = nodes_from(graph, root_id)
    failed = failed_before(graph, frozenset(node.job_id for node in nodes))
    policies: dict[int, dict[int, str]] = defaultdict(dict)
    for edge in graph.edges:
        policies[edge.job_id][edge.needs_id] = edge.policy
    found: dict[int, RetryEffect] = {}
    for node in nodes:
        found[node.job_id] = (
            RetryEffect.RUNS
            if node.job_id == root_id
            else _effect(node, failed.get(node.job_id, {}), policies[node.job_id], found)
        )
    return found


def _effect(
    node: GraphNode, failed: Mapping[int, str], policies: Mapping[int, str], before: Mapping[int, RetryEffect]
) -> RetryEffect:
    if node.state == State.RUNNING:
        return RetryEffect.LEFT
    again = {policy for needs_id, policy in policies.items() if before.get(needs_id) is RetryEffect.CANCELLED}
    stopping = {*failed.values(), *again}
    if "cancel" in stopping:
        return RetryEffect.CANCELLED
    if "block" in stopping:
        return RetryEffect.BLOCKED
    return RetryEffect.RUNS if node.state in FINISHED else RetryEffect.WAITS
