"""`manage.py pgqueue workflow show`: print the graph of a workflow, layer by layer."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import Any, Final

from django_pgqueue.composed.batches import Batch
from django_pgqueue.display import in_line
from django_pgqueue.models import JobBatch
from django_pgqueue.states import State
from django_pgqueue.stats.batch_counts import batch_counts
from django_pgqueue.stats.graphs.figures import NODES_READ, WorkflowGraph, workflow_graph
from django_pgqueue.stats.graphs.groups import NodeGroup, grouped, layers_of

from .batch_command import BLOCKED
from .output import Output, counted
from .parsers import row_id
from .subcommand import NotFound, Options, Subcommand, add_reading, database_alias

MOST_ALIKE: Final = 5
"""Jobs of one task in one layer that have lines of their own."""
COUNTED: Final = 100_000
"""Jobs of each state that the heading counts at most."""
LINES: Final = 200
"""Lines of jobs that are printed at most. The JSON document has all."""
NEEDS_SHOWN: Final = 5
ORDER: Final = (State.SUCCEEDED, State.RUNNING, State.READY, State.WAITING, State.DEAD, State.CANCELLED)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("batch_id", type=row_id, metavar="ID", help="Id of the workflow, which is that of its batch.")
    add_reading(parser)


def _show(options: Options, out: Output) -> None:
    alias, batch_id = database_alias(options), options["batch_id"]
    try:
        batch = Batch.get(batch_id, database=alias)
    except JobBatch.DoesNotExist:
        raise NotFound(f"Workflow {batch_id} does not exist in the database {alias!r}.") from None
    graph = workflow_graph(batch_id, alias)
    if not graph.nodes:
        raise NotFound(f"Batch {batch_id} is no workflow: `manage.py pgqueue batch show {batch_id}` shows it.")
    progress = batch.progress()
    counts = batch_counts([batch_id], COUNTED, alias)[batch_id]
    if out.is_json:
        out.json(_document(batch_id, batch.record.description, graph, progress._asdict()))
        return
    heading = in_line(f"Workflow {batch_id}: {batch.record.description}".rstrip(": "))
    figures = ", ".join(f"{getattr(counts, state)} {state}" for state in ORDER if getattr(counts, state).value)
    ended = f"{counted(progress.total)} {'has' if progress.total == 1 else 'have'} ended"
    out.write(f"{heading}, {progress.finished:,} of {ended}: {figures}")
    if counts.is_blocked:
        out.write(BLOCKED)
    if graph.is_cut:
        out.write(f"It has more than {NODES_READ:,} jobs or too many dependencies, so they are not listed.")
        return
    out.write_lines(_lines(graph))


def _document(batch_id: int, description: str, graph: WorkflowGraph, progress: dict[str, int]) -> dict[str, Any]:
    """Return the JSON document. A graph that was cut has no jobs."""
    needs = graph.needs()
    layers = {} if graph.is_cut else layers_of([node.job_id for node in graph.nodes], needs)
    return {
        "workflow_id": batch_id,
        "description": description,
        **progress,
        "is_cut": graph.is_cut,
        "jobs": [
            {
                "job_id": node.job_id,
                "task_name": node.task_name,
                "state": node.state,
                "layer": layers[node.job_id] + 1,
                "needs": needs[node.job_id],
            }
            for node in graph.nodes
            if not graph.is_cut
        ],
    }


def _lines(graph: WorkflowGraph) -> Iterator[str]:
    """Yield the layers, each with its jobs. Many jobs of one task share a line."""
    groups, needs = grouped(graph, MOST_ALIKE), graph.needs()
    layer = -1
    for group in groups[:LINES]:
        if group.layer != layer:
            layer = group.layer
            yield f"Layer {layer + 1}"
        yield f"  {in_line(_line(group, needs))}"
    if len(groups) > LINES:
        yield f"Not printed: {counted(len(groups) - LINES, 'more line')}. --json prints all jobs."


def _line(group: NodeGroup, needs: dict[int, list[int]]) -> str:
    if len(group.nodes) > 1:
        counts = group.counts
        states = ", ".join(f"{counts[state]:,} {state}" for state in ORDER if counts[state])
        return f"{len(group.nodes):,} × {group.task_name}: {states}"
    [node] = group.nodes
    return f"{node.state:<9} #{node.job_id} {node.task_name}{_needed(needs[node.job_id])}"


def _needed(ids: Sequence[int]) -> str:
    if not ids:
        return ""
    more = f" and {len(ids) - NEEDS_SHOWN:,} more" if len(ids) > NEEDS_SHOWN else ""
    return f", needs {', '.join(f'#{each}' for each in ids[:NEEDS_SHOWN])}{more}"


WORKFLOW: Final = Subcommand(
    "workflow",
    "Show workflows.",
    actions=(Subcommand("show", "Print the graph of one workflow, layer by layer.", _add_arguments, _show),),
)
