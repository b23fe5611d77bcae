"""The graph of a workflow on the page of its batch: boxes with states, edges, and the same as a table.

`batch_page` calls it. Up to `MOST_BOXES` jobs have a box each. More jobs, and many jobs of one task in one layer, share
a box with their counts. A graph with still more boxes is a table only. `stats.graphs` bounds what is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.formatting import LABELS, breakable, visible, word_badge
from django_pgqueue.admin.links import allowed_url
from django_pgqueue.states import State
from django_pgqueue.stats.graphs.figures import NODES_READ, WorkflowGraph, workflow_graph
from django_pgqueue.stats.graphs.groups import NodeGroup, grouped, merged

from .layout import HEIGHT, WIDTH, Curve, layout

MOST_BOXES: Final = 200
MOST_LAYERS: Final = 60
MOST_CURVES: Final = 2_000
MOST_ALIKE: Final = 12
"""Jobs of one task in one layer that have boxes of their own, if there are at most `MOST_BOXES` jobs."""
ROWS_SHOWN: Final = 200
NEEDS_SHOWN: Final = 5
"""Dependencies that a row of the table names."""
NAME_LENGTH: Final = 20
"""Characters of a task's name that fit into a box. The tooltip has the whole name."""
SIGNS: Final[dict[str, str]] = {
    State.SUCCEEDED: "✓",
    State.DEAD: "×",
    State.CANCELLED: "–",
    State.RUNNING: "▸",
    State.READY: "●",
    State.WAITING: "…",
}
"""The signs of the states, in the order in which a box with several jobs counts them."""
EDGES: Final[dict[str, Promise | str]] = {
    "cancel": gettext_lazy("If the job fails, the dependent is cancelled."),
    "ignore": gettext_lazy("The dependent runs even if the job fails."),
    "block": gettext_lazy("If the job fails, the dependent waits for a retry."),
    "failed": gettext_lazy("The job has failed, which stops the dependent."),
}
"""The legend of the kinds of edges. The CSS class of each is `pgqueue-edge-<kind>`."""


class Box(NamedTuple):
    """A box, as the values of attributes and the texts of the template."""

    state: str
    is_group: bool
    x: str
    y: str
    name: str
    line: str
    tooltip: str
    url: str


class Edge(NamedTuple):
    """An edge. Its kind is that of the policies in it, or "failed"."""

    kind: str
    path: str


class NodeRow(NamedTuple):
    """A box as a row of the table."""

    layer: int
    name: SafeString
    url: str
    states: list[tuple[SafeString, str]]
    needs: SafeString


class Drawing(NamedTuple):
    """The variables of the template. Without boxes there is only the table."""

    boxes: list[Box]
    edges: list[Edge]
    width: str
    height: str
    summary: str
    rows: list[NodeRow]
    more_rows: int
    is_grouped: bool
    note: str
    legend: list[tuple[str, Promise | str]]
    """The kinds of edges in the drawing."""
    signs: str
    """The meaning of the signs in boxes of several jobs; "" without such boxes."""


def drawing(request: HttpRequest, batch_id: int, alias: str) -> Drawing | None:
    """Return the graph of a workflow; None if the batch is no workflow. Runs at most two statements."""
    graph = workflow_graph(batch_id, alias)
    if not graph.nodes:
        return None
    if graph.is_cut:
        note = _("The workflow has more than %(most)s jobs or too many dependencies, so it is not drawn.")
        return _without_boxes(note % {"most": f"{NODES_READ:,}"})
    groups = grouped(graph, MOST_ALIKE if len(graph.nodes) <= MOST_BOXES else 1)
    number_of = {node.job_id: number for number, group in enumerate(groups) for node in group.nodes}
    edges = merged(graph.edges, number_of, {node.job_id: node.state for node in graph.nodes})
    needed: dict[int, list[NodeGroup]] = defaultdict(list)
    for source, target in edges:
        needed[target].append(groups[source])
    rows = [_row(request, batch_id, group, needed[number]) for number, group in enumerate(groups[:ROWS_SHOWN])]
    found = _without_boxes("", rows, len(groups) - len(rows), is_grouped=len(groups) < len(graph.nodes))
    if len(groups) > MOST_BOXES or groups[-1].layer >= MOST_LAYERS or len(edges) > MOST_CURVES:
        note = _("It is too large to be drawn, with over %(boxes)s boxes, %(layers)s layers or %(edges)s arrows.")
        most = {"boxes": MOST_BOXES, "layers": MOST_LAYERS, "edges": f"{MOST_CURVES:,}"}
        return found._replace(note=note % most)
    return _drawn(request, batch_id, graph, groups, edges, found)


def _without_boxes(note: str, rows: Sequence[NodeRow] = (), more_rows: int = 0, *, is_grouped: bool = False) -> Drawing:
    return Drawing([], [], "", "", "", list(rows), more_rows, is_grouped, note, [], "")


def _drawn(
    request: HttpRequest,
    batch_id: int,
    graph: WorkflowGraph,
    groups: Sequence[NodeGroup],
    edges: Mapping[tuple[int, int], str],
    found: Drawing,
) -> Drawing:
    placed = layout({number: group.layer for number, group in enumerate(groups)}, list(edges))
    boxes = [_box(request, batch_id, group, *placed.corners[number]) for number, group in enumerate(groups)]
    counts = Counter(node.state for node in graph.nodes)
    words = {"jobs": f"{len(graph.nodes):,}", "layers": groups[-1].layer + 1, "states": _states_text(counts)}
    return found._replace(
        boxes=boxes,
        edges=[Edge(edges[curve.source, curve.target], curve.path) for curve in _by_kind(placed.curves, edges)],
        width=f"{placed.width:.0f}",
        height=f"{placed.height:.0f}",
        summary=_("Graph of %(jobs)s jobs in %(layers)s layers: %(states)s") % words,
        legend=[(kind, label) for kind, label in EDGES.items() if kind in edges.values()],
        signs=", ".join(f"{sign} {_word(state)}" for state, sign in SIGNS.items()) if found.is_grouped else "",
    )


def _by_kind(curves: Iterable[Curve], edges: Mapping[tuple[int, int], str]) -> list[Curve]:
    """Return the curves, those that have failed last, so that the others do not cover them."""
    return sorted(curves, key=lambda curve: edges[curve.source, curve.target] == "failed")


def _box(request: HttpRequest, batch_id: int, group: NodeGroup, x: float, y: float) -> Box:
    name, counts = visible(group.task_name), group.counts
    short = name.rpartition(".")[2] or name
    single = group.nodes[0] if len(group.nodes) == 1 else None
    line = f"#{single.job_id} {SIGNS.get(single.state, '?')} {_word(single.state)}" if single else _signs(counts)
    tooltip = f"{name} #{single.job_id}: {_word(single.state)}" if single else f"{name}: {_states_text(counts)}"
    label = short if single else f"{len(group.nodes):,} × {short}"
    return Box(
        state=group.state,
        is_group=single is None,
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        name=label if len(label) <= NAME_LENGTH else f"{label[: NAME_LENGTH - 1]}…",
        line=line,
        tooltip=tooltip,
        url=_url(request, batch_id, group),
    )


def _url(request: HttpRequest, batch_id: int, group: NodeGroup) -> str:
    """Return the URL of the job, or of the list of the jobs of the task in the batch; "" if the user may not see it."""
    if len(group.nodes) == 1:
        return allowed_url(request, "job_change", group.nodes[0].job_id)
    return allowed_url(request, "job_changelist", batch=batch_id, task=group.task_name)


# ---------------------------------------------------------------------------- texts


def _word(state: str) -> str:
    return str(LABELS.get(state, state))


def _signs(counts: Mapping[str, int]) -> str:
    """Return the counts of a box with several jobs, "990 ✓ · 10 ×", or the state that all of them have."""
    if len(counts) == 1:
        [state] = counts
        return _("all %(sign)s %(state)s") % {"sign": SIGNS.get(state, "?"), "state": _word(state)}
    return " · ".join(f"{counts[state]:,} {sign}" for state, sign in SIGNS.items() if counts.get(state))


def _states_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[state]:,} {_word(state)}" for state in SIGNS if counts.get(state))


def _row(request: HttpRequest, batch_id: int, group: NodeGroup, needed: Sequence[NodeGroup]) -> NodeRow:
    shown: list[Any] = [_name_and_layer(each) for each in needed[:NEEDS_SHOWN]]
    if len(needed) > NEEDS_SHOWN:
        shown.append(_("and %(count)s more") % {"count": len(needed) - NEEDS_SHOWN})
    is_single = len(group.nodes) == 1
    states = [(word_badge(state), "" if is_single else f"{count:,}") for state, count in group.counts.items()]
    needs = format_html_join(", ", "{}", ((each,) for each in shown))
    return NodeRow(group.layer + 1, _name(group), _url(request, batch_id, group), states, needs)


def _name_and_layer(group: NodeGroup) -> SafeString:
    """Return the name of a box. Jobs of one task in several layers have the same name otherwise."""
    if len(group.nodes) == 1:
        return _name(group)
    return format_html("{} ({})", _name(group), _("layer %(number)s") % {"number": group.layer + 1})


def _name(group: NodeGroup) -> SafeString:
    name = breakable(group.task_name)
    if len(group.nodes) == 1:
        return format_html("{} #{}", name, group.nodes[0].job_id)
    return format_html("{} × {}", f"{len(group.nodes):,}", name)


BOX_WIDTH, BOX_HEIGHT = f"{WIDTH:.0f}", f"{HEIGHT:.0f}"


def context(found: Drawing | None) -> dict[str, Any]:
    """Return the variables of the template."""
    return {"graph": found, "box_width": BOX_WIDTH, "box_height": BOX_HEIGHT}
