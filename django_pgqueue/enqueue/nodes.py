"""Insert the nodes of a workflow: draw their ids, encode the calls with markers, and write jobs and edges in pages.

`workflows` calls it, in the transaction that also stores the batch of the workflow. Everything that a call can have
wrong is raised before the first write. The ids are in the order of the nodes, so a dependency has a smaller id than its
dependents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_pgqueue.ground.placeholders import has_placeholders, refuse_markers, with_markers
from django_pgqueue.lifecycle import graphs
from django_pgqueue.lifecycle.enqueueing import NewJob, Row

from . import inserting
from .new_job import new_job, row_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.arguments.plan import CallArguments
    from django_pgqueue.tasks.definition import TaskDefinition

    from .calls import TaskCall

PAGE: Final = 1000
"""Nodes that one statement inserts."""
PAGE_SIZE: Final = 1024 * 1024
"""Characters of arguments at which a page of nodes is full."""
EDGES_PAGE: Final = 10_000
"""Edges that one statement inserts."""


class NodeCall(NamedTuple):
    """A call to add, and the policies of its dependencies by their positions among the nodes."""

    call: TaskCall[Any]
    policies: Mapping[int, str]


class EncodedNodes:
    """The nodes of a workflow, ready to be written."""

    def __init__(
        self, connection: BaseDatabaseWrapper, nodes: Sequence[NodeCall], place_of: Callable[[Any], int]
    ) -> None:
        """Draw the ids and encode the calls. `place_of` returns the position of the node of a placeholder.

        Raises the errors of `Task.enqueue()`.
        """
        self._connection = connection
        self.job_ids = graphs.draw_ids(connection, len(nodes))
        self._rows: dict[int, Row] = {}
        self._jobs = [self._new_job(node, lambda found: self.job_ids[place_of(found)]) for node in nodes]
        self._waits = [bool(node.policies) for node in nodes]
        self._edges = [
            (job_id, self.job_ids[place], policy)
            for job_id, node in zip(self.job_ids, nodes, strict=True)
            for place, policy in node.policies.items()
        ]

    def _new_job(self, node: NodeCall, id_of: Callable[[Any], int]) -> NewJob:
        task, args, kwargs = node.call.task, node.call.args, node.call.kwargs
        row = self._rows.get(id(task))
        if row is None:
            row = self._rows[id(task)] = row_of(task, self._connection.alias)
        marked = {name: with_markers(value, id_of) for name, value in _passed(args, kwargs) if has_placeholders(value)}
        call = _encoded_call(task, args, kwargs, marked)
        return new_job(task, call, row, decode=partial(_decoded_call, task, args, kwargs, call, marked))

    def write(self, batch_id: int) -> None:
        """Insert the nodes and the edges, and announce the jobs."""
        for row in self._rows.values():
            row["batch_id"] = batch_id
        for page in _pages(self._jobs):
            graphs.add_nodes(self._connection, self.job_ids[page], self._waits[page], self._jobs[page])
        edges = iter(self._edges)
        while edge_page := list(islice(edges, EDGES_PAGE)):
            graphs.add_dependencies(self._connection, edge_page)
        inserting.write_search_keys(self._connection, zip(self.job_ids, self._jobs, strict=True))
        inserting.announce(
            self._connection, ((job_id, job.row) for job_id, job in zip(self.job_ids, self._jobs, strict=True))
        )


def _pages(jobs: Sequence[NewJob]) -> Iterator[slice]:
    start = size = 0
    for place, job in enumerate(jobs, 1):
        size += len(job.arguments)
        if place - start == PAGE or size >= PAGE_SIZE or place == len(jobs):
            yield slice(start, place)
            start, size = place, 0


Marked = Mapping[int | str, Any]
"""The arguments with markers in place of placeholders, by position or name."""


def _decoded_call(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], call: CallArguments, marked: Marked
) -> CallArguments:
    """Return a call as the functions of the limit get it. Its key can be made of the arguments that have no result."""
    if not marked:
        return task.decoded_call(*call)
    plan = task.plan
    if plan is None or not plan.converts_arguments:
        return args, kwargs
    return plan.decode(*call, known={name: value for name, value in _passed(args, kwargs) if name in marked})


def _encoded_call(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], marked: Marked
) -> CallArguments:
    """Return a call as its annotations store it, with markers. Values beside a placeholder must be plain JSON."""
    args, kwargs = task.encoded_call(args, kwargs, marked)
    refuse_markers([value for name, value in _passed(args, kwargs) if name not in marked])
    return args, kwargs


def _passed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int | str, Any]]:
    yield from enumerate(args)
    yield from kwargs.items()
