"""What a scenario is: who takes part, what is measured once, and what is to be shown by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems.system import System

Figures = Mapping[str, float]
GROUP_ENDS = ": "


def grouped(groups: Mapping[str, Figures]) -> Figures:
    """The figures of several parts of one measurement, each with the name of its part before its own."""
    return {f"{group}{GROUP_ENDS}{name}": value for group, its in groups.items() for name, value in its.items()}


class Scenario(NamedTuple):
    """One line of the table of scenarios, or one variant of it."""

    name: str
    """Its number, and a letter for a variant."""
    title: str
    measure: Callable[[Bench, System], Figures]
    """One system in one round: a new database, laid out and prepared, to figures by name."""
    takes_part: Callable[[System], bool]
    jobs: Callable[[System], int]
    """How many jobs the record has room for."""
    figure: str
    """The figure that systems are compared by."""
    bigger_is_better: bool = True
    targets: Sequence[str] = ()
    """What is to be shown, in words."""
    by_group: bool = False
    """Whether the names of figures begin with that of a group, and the table has a row for each: see `grouped()`."""
    rounds: int | None = None
    """How many rounds, whatever is asked for: where one takes very long."""
