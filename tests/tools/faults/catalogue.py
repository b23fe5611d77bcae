"""The faults by number: what a scenario says of itself, and where all of them are found."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.tools.faults import scenarios

if TYPE_CHECKING:
    from tests.tools.faults.run import Run

Scenario = Callable[["Run"], Any]


class Fault(NamedTuple):
    """One scenario: it returns what it measured, in words or figures, and fails by raising."""

    id: str
    title: str
    invariant: str
    expected: str
    scenario: Scenario
    quick: bool
    needs: tuple[str, ...]
    exclusive: bool
    """Whether it disturbs the server itself, and so may not run beside another."""


CATALOGUE: dict[str, Fault] = {}


def fault(
    id: str,  # noqa: A002 -- what the catalogue calls it
    title: str,
    *,
    invariant: str,
    expected: str,
    quick: bool = False,
    needs: Sequence[str] = (),
    exclusive: bool = False,
) -> Callable[[Scenario], Scenario]:
    """Add a scenario to the catalogue. `needs` are names in `needs.NEEDS`; variants of one fault are F06, F06b, …"""

    def register(scenario: Scenario) -> Scenario:
        if id in CATALOGUE:
            raise ValueError(f"two scenarios are {id}")
        CATALOGUE[id] = Fault(id, title, invariant, expected, scenario, quick, tuple(needs), exclusive)
        return scenario

    return register


def load() -> list[Fault]:
    """Import every module of scenarios; return all faults in the order of their numbers."""
    for module in pkgutil.iter_modules(scenarios.__path__, f"{scenarios.__name__}."):
        importlib.import_module(module.name)
    return sorted(CATALOGUE.values(), key=lambda one: number(one.id))


def number(id: str) -> tuple[int, str]:  # noqa: A002 -- as above
    """Return what to sort faults by."""
    digits = "".join(filter(str.isdigit, id))
    return int(digits or 0), id
