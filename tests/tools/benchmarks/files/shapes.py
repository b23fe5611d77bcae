"""The shapes of the workflows that are measured. Copied beside each system's tasks, so it imports nothing of ours.

A shape is a list with an entry for each job: the places of the jobs that it depends on, all of them earlier ones.
"""

Shape = list[tuple[int, ...]]
LENGTH = 10
"""Jobs of a chain."""


def fan(jobs: int) -> Shape:
    """One job, those that need it, and one that needs all of these."""
    return [(), *[(0,)] * (jobs - 2), tuple(range(1, jobs - 1))]


def graph(jobs: int) -> Shape:
    """As many layers as each has jobs. A job needs two or three of the layer before: the mean is 2.5."""
    width = round(jobs**0.5)
    shape: Shape = []
    for place in range(jobs):
        layer, column = divmod(place, width)
        columns = (column, (column + 1) % width, (column + 7) % width)[: 2 + column % 2]
        shape.append(tuple(sorted((layer - 1) * width + column for column in set(columns))) if layer else ())
    return shape


def chains(jobs: int) -> Shape:
    """Chains beside one another; the last one may be shorter."""
    return [(place - 1,) if place % LENGTH else () for place in range(jobs)]


def chain(jobs: int) -> Shape:
    """One chain."""
    return [(place - 1,) if place else () for place in range(jobs)]


SHAPES = {"fan": fan, "graph": graph, "chains": chains, "chain": chain}
