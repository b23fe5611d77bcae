"""Insert the nodes of a workflow: draw their ids, encode the calls with markers, and write jobs and edges in pages.

`workflows` calls it, in the transaction that also stores the batch of the workflow. Everything that a call can have
wrong is raised before the first write. The ids are in the order of the nodes, so a dependency has a smaller id than its
dependents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from django_pgqueue import lifecycle
from django_pgqueue.limits import CallLimit
from django_pgqueue.placeholders import has_placeholders, refuse_markers, with_markers
from django_pgqueue.reactions import after_enqueue
from django_pgqueue.serialization import encode_arguments

from . import plain
from .call_limits import limit_of_call
from .search_keys import SearchKeys, search_keys_of, write_search_keys

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.arguments.plan import CallArguments
    from django_pgqueue.definition import TaskDefinition

    from .calls import TaskCall
    from .unique import Row

T = TypeVar("T")

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


class EncodedNode(NamedTuple):
    """A node as it is inserted."""

    job_id: int
    task: TaskDefinition
    waits: bool
    arguments: str
    number: int
    """The position of its row."""
    search_keys: SearchKeys
    limit: CallLimit | None


class EncodedNodes:
    """The nodes of a workflow, ready to be written."""

    def __init__(
        self, connection: BaseDatabaseWrapper, nodes: Sequence[NodeCall], place_of: Callable[[Any], int]
    ) -> None:
        """Draw the ids and encode the calls. `place_of` returns the position of the node of a placeholder.

        Raises the errors of `Task.enqueue()`.
        """
        self._connection = connection
        self.job_ids = lifecycle.graphs.draw_ids(connection, len(nodes))
        self._rows: list[Row] = []
        self._numbers: dict[int, int] = {}
        self._nodes = [
            self._encoded(job_id, node, lambda found: self.job_ids[place_of(found)])
            for job_id, node in zip(self.job_ids, nodes, strict=True)
        ]
        self._edges = [
            (job_id, self.job_ids[place], policy)
            for job_id, node in zip(self.job_ids, nodes, strict=True)
            for place, policy in node.policies.items()
        ]

    def _encoded(self, job_id: int, node: NodeCall, id_of: Callable[[Any], int]) -> EncodedNode:
        task, args, kwargs = node.call.task, node.call.args, node.call.kwargs
        number = self._numbers.get(id(task))
        if number is None:
            number = self._numbers[id(task)] = len(self._rows)
            self._rows.append(plain.row_of(task, self._connection))
        marked = {name: with_markers(value, id_of) for name, value in _passed(args, kwargs) if has_placeholders(value)}
        call = _encoded_call(task, args, kwargs, marked)
        return EncodedNode(
            job_id,
            task,
            bool(node.policies),
            encode_arguments(*call),
            number,
            search_keys_of(task, *call),
            _limit(task, args, kwargs, call, marked),
        )

    def write(self, batch_id: int) -> None:
        """Insert the nodes and the edges, and announce the jobs."""
        for page in _pages(self._nodes):
            # Only the rows of this page: with options for each call, all rows in each page would be quadratic.
            places = {number: place for place, number in enumerate(dict.fromkeys(node.number for node in page))}
            lifecycle.graphs.add_nodes(
                self._connection,
                job_ids=[node.job_id for node in page],
                waits=[node.waits for node in page],
                arguments=[node.arguments for node in page],
                options=[places[node.number] for node in page],
                rows=[{**self._rows[number], "batch_id": batch_id} for number in places],
                limits=[node.limit for node in page],
            )
        edges = iter(self._edges)
        while edge_page := list(islice(edges, EDGES_PAGE)):
            lifecycle.graphs.add_dependencies(self._connection, edge_page)
        searched = [(node.task, node.job_id, node.search_keys) for node in self._nodes if node.search_keys]
        if searched:
            write_search_keys(self._connection, searched)
        self._announce()

    def _announce(self) -> None:
        by_lane: dict[tuple[str, str], list[int]] = {}
        for node in self._nodes:
            by_lane.setdefault((node.task.name, node.task.queue_name), []).append(node.job_id)
        for (task_name, queue_name), job_ids in by_lane.items():
            after_enqueue(self._connection, task_name, queue_name, job_ids)


def _pages(nodes: Sequence[EncodedNode]) -> Iterator[list[EncodedNode]]:
    page, size = list[EncodedNode](), 0
    for node in nodes:
        page.append(node)
        size += len(node.arguments)
        if len(page) == PAGE or size >= PAGE_SIZE:
            yield page
            page, size = [], 0
    if page:
        yield page


Marked = Mapping[int | str, Any]
"""The arguments with markers in place of placeholders, by position or name."""


def _limit(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], call: CallArguments, marked: Marked
) -> CallLimit | None:
    """Return the limit of a call. Its key can be made of the arguments that contain no result."""
    if not marked:
        return limit_of_call(task, args, kwargs)
    plan = task.plan
    if plan is not None and plan.converts_arguments:
        kept = {name: value for name, value in _passed(args, kwargs) if name in marked}
        args, kwargs = plan.decode_around(*call, kept)
    return limit_of_call(task, args, kwargs, are_decoded=True)


def _encoded_call(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], marked: Marked
) -> CallArguments:
    """Return a call as its annotations store it, with markers. Values beside a placeholder must be plain JSON."""
    plan = task.plan
    if plan is not None and plan.converts_arguments:
        args, kwargs = plan.encode_around(args, kwargs, marked)
    elif marked:
        args = [marked.get(index, value) for index, value in enumerate(args)]
        kwargs = {name: marked.get(name, value) for name, value in kwargs.items()}
    refuse_markers([value for name, value in _passed(args, kwargs) if name not in marked])
    return args, kwargs


def _passed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int | str, Any]]:
    yield from enumerate(args)
    yield from kwargs.items()
