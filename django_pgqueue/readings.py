"""The types of gauges and of their values.

`metrics` reads the gauges of the queue from the database. The view of `metrics` and the worker's metrics port write
them in their own ways.
"""

from __future__ import annotations

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
NOT_READ: Final = Reading(DATABASE_UP, (((), 0.0),))
"""The only reading if the database cannot be read."""
