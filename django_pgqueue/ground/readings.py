"""The types of gauges and of their values.

`metrics` reads the gauges of the queue from the database. The view of `metrics` and the worker's metrics port write
them in their own ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


class Gauge(NamedTuple):
    """One gauge. `labels` are the names of its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


class Reading(NamedTuple):
    """A gauge with its samples: the values of the labels, and the value."""

    gauge: Gauge
    samples: tuple[Sample, ...]


DATABASE_UP: Final = Gauge("pgqueue_database_up", "1 if the figures of the queue could be read.")
DATABASE: Final = "database"
"""The label that distinguishes several databases on one page."""
NOT_READ: Final = Reading(DATABASE_UP, (((), 0.0),))
"""The only reading if the database cannot be read."""


def of_several(readings: Mapping[str, Iterable[Reading]]) -> list[Reading]:
    """Return the readings of several databases, by alias, as one list in which each gauge has the label `database`."""
    merged: dict[Gauge, list[Sample]] = {}
    for alias, read in readings.items():
        for gauge, samples in read:
            merged.setdefault(gauge, []).extend(((alias, *labels), value) for labels, value in samples)
    return [
        Reading(gauge._replace(labels=(DATABASE, *gauge.labels)), tuple(samples)) for gauge, samples in merged.items()
    ]
