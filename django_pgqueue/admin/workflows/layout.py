"""Place the boxes of a graph in layers from left to right, and draw the edges between them as curves.

`workflow_graph` calls it. The functions are pure. A box stands in the layer behind its latest dependency. An edge over
several layers goes through a place of its own in each of them, so that it does not cross boxes. Within a layer, boxes
stand near those that they are connected with: this is the method of Sugiyama, with the mean of the neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

WIDTH, HEIGHT = 176.0, 46.0
"""The size of a box, in pixels."""
GAP: Final = 14.0
"""Between two boxes of a layer."""
LAYER_GAP: Final = 40.0
PASSAGE: Final = 6.0
"""The height of the place of an edge in a layer that it crosses."""
MARGIN: Final = 8.0
SWEEPS: Final = 6
"""How often the boxes of all layers are sorted by their neighbours."""
MOST_PASSAGES: Final = 2_000
"""With more places of edges, edges are drawn straight over the layers between their ends."""


class GraphPlace(NamedTuple):
    """A box, or the passage of an edge through a layer. Boxes and passages are numbered together."""

    layer: int
    number: int
    is_passage: bool = False

    @property
    def height(self) -> float:
        return PASSAGE if self.is_passage else HEIGHT


class Curve(NamedTuple):
    """An edge, with the value of its attribute `d`."""

    source: int
    target: int
    path: str


class Layout(NamedTuple):
    """The size of the drawing, the left upper corner of each box, and the edges."""

    width: float
    height: float
    corners: dict[int, tuple[float, float]]
    curves: list[Curve]


def layout(layers: Mapping[int, int], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return where the boxes stand. `layers` has the layer of each box; each edge leads to a later layer."""
    chains = _chains(layers, edges)
    columns = _columns(layers, chains)
    _sort(columns, chains)
    heights = [sum(place.height + GAP for place in column) - GAP for column in columns]
    highest = max(heights)
    middles: dict[GraphPlace, float] = {}
    for column, height in zip(columns, heights, strict=True):
        top = MARGIN + (highest - height) / 2
        for place in column:
            middles[place] = top + place.height / 2
            top += place.height + GAP
    return Layout(
        width=_left(len(columns) - 1) + WIDTH + MARGIN,
        height=highest + 2 * MARGIN,
        corners={
            number: (_left(layer), middles[GraphPlace(layer, number)] - HEIGHT / 2) for number, layer in layers.items()
        },
        curves=[Curve(*edge, _curve(chain, middles)) for edge, chain in zip(edges, chains, strict=True)],
    )


def _left(layer: int) -> float:
    return MARGIN + layer * (WIDTH + LAYER_GAP)


def _chains(layers: Mapping[int, int], edges: Sequence[tuple[int, int]]) -> list[list[GraphPlace]]:
    """Return the places of each edge: its source, a passage in each layer between, and its target."""
    has_passages = sum(layers[target] - layers[source] - 1 for source, target in edges) <= MOST_PASSAGES
    number = max(layers, default=0)
    found = []
    for source, target in edges:
        chain = [GraphPlace(layers[source], source)]
        for layer in range(layers[source] + 1, layers[target]) if has_passages else ():
            number += 1
            chain.append(GraphPlace(layer, number, is_passage=True))
        found.append([*chain, GraphPlace(layers[target], target)])
    return found


def _columns(layers: Mapping[int, int], chains: Iterable[Sequence[GraphPlace]]) -> list[list[GraphPlace]]:
    """Return the boxes and passages of each layer."""
    columns: list[list[GraphPlace]] = [[] for _ in range(max(layers.values(), default=0) + 1)]
    for number, layer in layers.items():
        columns[layer].append(GraphPlace(layer, number))
    for chain in chains:
        for place in chain[1:-1]:
            columns[place.layer].append(place)
    return columns


def _sort(columns: Sequence[list[GraphPlace]], chains: Iterable[Sequence[GraphPlace]]) -> None:
    """Sort each column by the mean position of the neighbours: from left to right, then from right to left."""
    before: dict[GraphPlace, list[GraphPlace]] = defaultdict(list)
    behind: dict[GraphPlace, list[GraphPlace]] = defaultdict(list)
    for chain in chains:
        for left, right in pairwise(chain):
            before[right].append(left)
            behind[left].append(right)
    ranks = {place: rank for column in columns for place, rank in _ranks(column)}
    for sweep in range(SWEEPS):
        neighbours = behind if sweep % 2 else before
        for column in reversed(columns) if sweep % 2 else columns:
            means = {place: _mean([ranks[each] for each in neighbours[place]], ranks[place]) for place in column}
            column.sort(key=means.__getitem__)
            ranks.update(_ranks(column))


def _ranks(column: Sequence[GraphPlace]) -> Iterator[tuple[GraphPlace, float]]:
    """Yield the position of each place in its column, from 0 to 1."""
    return ((place, (rank + 0.5) / len(column)) for rank, place in enumerate(column))


def _mean(values: Sequence[float], own: float) -> float:
    return sum(values) / len(values) if values else own


def _curve(chain: Sequence[GraphPlace], middles: Mapping[GraphPlace, float]) -> str:
    """Return the curve through the places of an edge. It is level inside of a passage."""
    x, y = _left(chain[0].layer) + WIDTH, middles[chain[0]]
    parts = [f"M{x:.1f} {y:.1f}"]
    for place in chain[1:]:
        end, level = _left(place.layer), middles[place]
        middle = (x + end) / 2
        parts.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {level:.1f} {end:.1f} {level:.1f}")
        x, y = end, level
        if place.is_passage:
            x += WIDTH
            parts.append(f"H{x:.1f}")
    return "".join(parts)
