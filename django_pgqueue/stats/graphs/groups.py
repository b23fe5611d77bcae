"""Divide the graph of a workflow into layers and groups. The admin and `manage.py pgqueue workflow show` call it.

The functions are pure. A layer contains the jobs behind equally many dependencies. A group contains the jobs of one
task in a layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from django_pgqueue.states import State

from .figures import GraphEdge, GraphNode, WorkflowGraph

WORST_FIRST: Final = (State.DEAD, State.CANCELLED, State.RUNNING, State.READY, State.WAITING, State.SUCCEEDED)


class NodeGroup(NamedTuple):
    """One job, or all jobs of a task in a layer."""

    layer: int
    task_name: str
    nodes: list[GraphNode]

    @property
    def counts(self) -> Counter[str]:
        """The number of jobs by state."""
        return Counter(node.state for node in self.nodes)

    @property
    def state(self) -> str:
        """The state that needs most attention."""
        return next((state for state in WORST_FIRST if self.counts[state]), State.SUCCEEDED)


def layers_of(nodes: Sequence[int], needs: Mapping[int, Iterable[int]]) -> dict[int, int]:
    """Return the layer of each node. The nodes come in an order in which each follows those that it needs."""
    found: dict[int, int] = {}
    for node in nodes:
        found[node] = 1 + max((found[each] for each in needs.get(node, ()) if each in found), default=-1)
    return found


def grouped(graph: WorkflowGraph, most_alike: int) -> list[NodeGroup]:
    """Return the jobs of a graph in groups, by layer and by the first job of each.

    A job is a group of its own if at most `most_alike` jobs have its task and its layer.
    """
    layers = layers_of([node.job_id for node in graph.nodes], graph.needs())
    together: dict[tuple[int, str], list[GraphNode]] = defaultdict(list)
    for node in graph.nodes:
        together[layers[node.job_id], node.task_name].append(node)
    found = []
    for (layer, task_name), nodes in together.items():
        found += (
            [NodeGroup(layer, task_name, nodes)]
            if len(nodes) > most_alike
            else [NodeGroup(layer, task_name, [node]) for node in nodes]
        )
    return sorted(found, key=lambda group: (group.layer, group.nodes[0].job_id))


def merged(
    edges: Iterable[GraphEdge], number_of: Mapping[int, int], states: Mapping[int, str]
) -> dict[tuple[int, int], str]:
    """Return the edges between groups with their kinds: their policies, or "failed" if a job before has failed."""
    found: dict[tuple[int, int], set[str]] = defaultdict(set)
    for edge in edges:
        if edge.needs_id in number_of:
            failed = states[edge.needs_id] in (State.DEAD, State.CANCELLED)
            between = number_of[edge.needs_id], number_of[edge.job_id]
            found[between].add("failed" if failed and edge.policy != "ignore" else edge.policy)
    return {
        between: next(kind for kind in ("failed", "block", "cancel", "ignore") if kind in kinds)
        for between, kinds in found.items()
    }
