"""Read the graph of a workflow, and the dependencies and dependents of one job, with a bound on all of them.

The admin and `manage.py pgqueue workflow show` call this module.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from django_pgqueue.db.statements import execute, numbers
from django_pgqueue.stats.alias import connection_of

from .queries import DEPENDENCIES_OF_JOB, DEPENDENTS_OF_JOB, EDGES_OF_NODES, NODES_OF_WORKFLOW

NODES_READ: Final = 10_000
"""Jobs of a workflow that are read at most."""
EDGES_READ: Final = 50_000
"""Edges of a workflow that are read at most."""


class GraphNode(NamedTuple):
    """A node of a workflow."""

    job_id: int
    task_name: str
    state: str


class GraphEdge(NamedTuple):
    """An edge: the dependent `job_id` waits for the end of `needs_id`. `policy` decides if that fails."""

    job_id: int
    needs_id: int
    policy: str


class WorkflowGraph(NamedTuple):
    """The nodes of a workflow in the order of their ids, in which each comes after its dependencies, and the edges."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    is_cut: bool
    """Whether the batch has more jobs, or more edges, than were read. Then there are no edges."""

    def needs(self) -> dict[int, list[int]]:
        """Return the dependencies of each job; of one without an edge, an empty list."""
        found = defaultdict[int, list[int]](list)
        for edge in self.edges:
            found[edge.job_id].append(edge.needs_id)
        return found


class Related(NamedTuple):
    """A dependency or a dependent of a job. The task and the state are None if its row was removed by SQL."""

    job_id: int
    task_name: str | None
    state: str | None
    policy: str


def workflow_graph(batch_id: int, database: str | None = None) -> WorkflowGraph:
    """Return the graph of the workflow with this batch. A batch that is no workflow has no nodes.

    Runs two read-only statements, which read at most 10,000 jobs and 50,000 edges.
    """
    connection = connection_of(database)
    rows = execute(connection, NODES_OF_WORKFLOW, {"batch_id": batch_id, "limit": NODES_READ + 1})
    nodes = sorted(GraphNode(job_id, task_name, state) for job_id, task_name, state, in_graph in rows if in_graph)
    if not nodes or len(rows) > NODES_READ:
        return WorkflowGraph(nodes[:NODES_READ], [], is_cut=bool(nodes))
    params = {"job_ids": numbers(node.job_id for node in nodes), "limit": EDGES_READ + 1}
    edges = [GraphEdge(*row) for row in execute(connection, EDGES_OF_NODES, params)]
    is_cut = len(edges) > EDGES_READ
    return WorkflowGraph(nodes, [] if is_cut else edges, is_cut)


def dependencies_of(job_id: int, limit: int, database: str | None = None) -> list[Related]:
    """Return the first `limit` jobs that a job depends on, with one read-only statement."""
    params = {"job_id": job_id, "limit": limit}
    return [Related(*row) for row in execute(connection_of(database), DEPENDENCIES_OF_JOB, params)]


def dependents_of(job_id: int, limit: int, database: str | None = None) -> list[Related]:
    """Return the first `limit` jobs that depend on a job, with one read-only statement."""
    params = {"job_id": job_id, "limit": limit}
    return [Related(*row) for row in execute(connection_of(database), DEPENDENTS_OF_JOB, params)]
