"""Latencies, of the jobs' record and of producers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.place import Bench


def pick_up_ms(bench: Bench, first: int, last: int) -> list[float]:
    """How long each of these jobs waited to begin, from when its commit was noted."""
    commits = _instants(bench, record.COMMITS, first, last)
    starts = _instants(bench, record.STARTS, first, last)
    return [(start - commit) * 1000 for commit, start in zip(commits, starts, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so great a share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _instants(bench: Bench, name: str, first: int, last: int) -> array[float]:
    found = array("d")
    with (bench.directory / name).open("rb") as file:
        file.seek(first * found.itemsize)
        found.fromfile(file, last - first)
    return found
