"""The graph of a workflow on the page of its batch: boxes with states, edges, and the same as a table.

`batch_page` calls it. The boxes in which a failure began, and the path that leads to them, are marked, and a failed job
has a link to the page that retries it with all that depends on it. `graph.js` zooms the drawing, and goes from one
failed job to the next.

Up to `MOST_BOXES` jobs have a box each. More jobs, and many jobs of one task in one layer, share a box with their
counts. A graph with still more boxes is a table only. `stats.graphs` bounds what is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.formatting import LABELS, breakable, visible, word_badge
from django_pgqueue.admin.navigation import allowed_url
from django_pgqueue.display import number
from django_pgqueue.states import State
from django_pgqueue.stats.graphs.figures import NODES_READ, WorkflowGraph, workflow_graph
from django_pgqueue.stats.graphs.groups import NodeGroup, grouped, merged

from .layout import HEIGHT, WIDTH, layout
from .retry_from import retry_url

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
    "path": gettext_lazy("The path to a job that has failed."),
}
"""The legend of the kinds of edges, and of the edges on the path to a failed job. The CSS class of each is
`pgqueue-edge-<kind>`."""


def drawing(request: HttpRequest, batch_id: int, alias: str) -> dict[str, Any] | None:
    """Return the graph of a workflow; None if the batch is no workflow. Runs at most two statements.

    Without boxes there is only the table.
    """
    graph = workflow_graph(batch_id, alias)
    if not graph.nodes:
        return None
    if graph.is_cut:
        note = _("The workflow has more than %(most)s jobs or too many dependencies, so it is not drawn.")
        return {"note": note % {"most": number(NODES_READ)}}
    groups = grouped(graph, MOST_ALIKE if len(graph.nodes) <= MOST_BOXES else 1)
    number_of = {node.job_id: number for number, group in enumerate(groups) for node in group.nodes}
    edges = merged(graph.edges, number_of, {node.job_id: node.state for node in graph.nodes})
    needed: dict[int, list[NodeGroup]] = defaultdict(list)
    for source, target in edges:
        needed[target].append(groups[source])
    table = {
        "rows": [_row(request, batch_id, group, needed[number]) for number, group in enumerate(groups[:ROWS_SHOWN])],
        "more_rows": max(len(groups) - ROWS_SHOWN, 0),
        "is_grouped": len(groups) < len(graph.nodes),
    }
    if len(groups) > MOST_BOXES or groups[-1].layer >= MOST_LAYERS or len(edges) > MOST_CURVES:
        note = _("It is too large to be drawn, with over %(boxes)s boxes, %(layers)s layers or %(edges)s arrows.")
        most = {"boxes": MOST_BOXES, "layers": MOST_LAYERS, "edges": number(MOST_CURVES)}
        return {**table, "note": note % most}
    return {**table, **_drawn(request, batch_id, graph, groups, edges)}


def _drawn(
    request: HttpRequest,
    batch_id: int,
    graph: WorkflowGraph,
    groups: Sequence[NodeGroup],
    edges: Mapping[tuple[int, int], str],
) -> dict[str, Any]:
    placed = layout({number: group.layer for number, group in enumerate(groups)}, list(edges))
    counts = Counter(node.state for node in graph.nodes)
    words = {"jobs": number(len(graph.nodes)), "layers": groups[-1].layer + 1, "states": _states_text(counts)}
    failed, before = failed_path({number: group.state for number, group in enumerate(groups)}, edges)
    drawn = [
        {
            "kind": edges[curve.source, curve.target],
            "is_on_path": curve.source in before and curve.target in failed | before,
            "path": curve.path,
        }
        for curve in placed.curves
    ]
    kinds = {*edges.values(), *(["path"] if before else [])}
    is_grouped = len(groups) < len(graph.nodes)
    return {
        "boxes": [
            {
                **_box(request, batch_id, group, *placed.corners[number]),
                "is_failed": number in failed,
                "is_on_path": number in before,
            }
            for number, group in enumerate(groups)
        ],
        # Those on the path to a failed job and those behind it come last, so that the others do not cover them.
        "edges": sorted(drawn, key=lambda edge: (edge["kind"] == "failed", edge["is_on_path"])),
        "failed_count": len(failed),
        "width": f"{placed.width:.0f}",
        "height": f"{placed.height:.0f}",
        "box_width": f"{WIDTH:.0f}",
        "box_height": f"{HEIGHT:.0f}",
        # On the corner, where the circle covers neither the texts of the box nor the ends of the edges.
        "act_x": f"{WIDTH - 4:.0f}",
        "act_y": "3",
        "summary": _("Graph of %(jobs)s jobs in %(layers)s layers: %(states)s") % words,
        "legend": [(kind, label) for kind, label in EDGES.items() if kind in kinds],
        # The meaning of the signs in boxes of several jobs.
        "signs": ", ".join(f"{sign} {_word(state)}" for state, sign in SIGNS.items()) if is_grouped else "",
    }


def failed_path(states: Mapping[int, str], edges: Iterable[tuple[int, int]]) -> tuple[set[int], set[int]]:
    """Return the boxes in which the failure begins, and all boxes on the paths that lead to these.

    A failure begins in a dead job, and in a cancelled one that depends on no failed job: a person has cancelled it.
    """
    before: dict[int, set[int]] = defaultdict(set)
    for source, target in edges:
        before[target].add(source)
    stopped = {number for number, state in states.items() if state in (State.DEAD, State.CANCELLED)}
    failed = {number for number in stopped if states[number] == State.DEAD or not before[number] & stopped}
    path, new = set[int](), set(failed)
    while new:
        new = set().union(*(before[number] for number in new)) - path
        path |= new
    return failed, path


def _box(request: HttpRequest, batch_id: int, group: NodeGroup, x: float, y: float) -> dict[str, Any]:
    """Return a box, as the values of attributes and the texts of the template."""
    name, counts = visible(group.task_name), group.counts
    short = name.rpartition(".")[2] or name
    single = group.nodes[0] if len(group.nodes) == 1 else None
    line = f"#{single.job_id} {SIGNS.get(single.state, '?')} {_word(single.state)}" if single else _signs(counts)
    tooltip = f"{name} #{single.job_id}: {_word(single.state)}" if single else f"{name}: {_states_text(counts)}"
    label = short if single else f"{number(len(group.nodes))} × {short}"
    return {
        "state": group.state,
        "is_group": single is None,
        "x": f"{x:.1f}",
        "y": f"{y:.1f}",
        "name": label if len(label) <= NAME_LENGTH else f"{label[: NAME_LENGTH - 1]}…",
        "line": line,
        "tooltip": tooltip,
        "url": _url(request, batch_id, group),
        "retry_url": _retry_url(request, batch_id, group),
        "retry_label": _("Retry from #%(number)s…") % {"number": single.job_id} if single else "",
    }


def _retry_url(request: HttpRequest, batch_id: int, group: NodeGroup) -> str:
    """Return the URL of the page that retries the workflow from this box; "" for several jobs."""
    if len(group.nodes) > 1:
        return ""
    return retry_url(request, batch_id, group.nodes[0].job_id, group.nodes[0].state)


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
    return " · ".join(f"{number(counts[state])} {sign}" for state, sign in SIGNS.items() if counts.get(state))


def _states_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number(counts[state])} {_word(state)}" for state in SIGNS if counts.get(state))


def _row(request: HttpRequest, batch_id: int, group: NodeGroup, needed: Sequence[NodeGroup]) -> dict[str, Any]:
    """Return a box as a row of the table."""
    shown: list[Any] = [_name_and_layer(each) for each in needed[:NEEDS_SHOWN]]
    if len(needed) > NEEDS_SHOWN:
        shown.append(_("and %(count)s more") % {"count": len(needed) - NEEDS_SHOWN})
    is_single = len(group.nodes) == 1
    states = [(word_badge(state), "" if is_single else number(count)) for state, count in group.counts.items()]
    return {
        "layer": group.layer + 1,
        "name": _name(group),
        "url": _url(request, batch_id, group),
        "retry_url": _retry_url(request, batch_id, group),
        "states": states,
        "needs": format_html_join(", ", "{}", ((each,) for each in shown)),
    }


def _name_and_layer(group: NodeGroup) -> SafeString:
    """Return the name of a box. Jobs of one task in several layers have the same name otherwise."""
    if len(group.nodes) == 1:
        return _name(group)
    return format_html("{} ({})", _name(group), _("layer %(number)s") % {"number": group.layer + 1})


def _name(group: NodeGroup) -> SafeString:
    name = breakable(group.task_name)
    if len(group.nodes) == 1:
        return format_html("{} #{}", name, group.nodes[0].job_id)
    return format_html("{} × {}", number(len(group.nodes)), name)
