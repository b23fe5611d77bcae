"""The scenarios of the fault suite, a module for each kind of fault."""

from __future__ import annotations

from collections.abc import Mapping


def counted(numbers: Mapping[str, int]) -> str:
    """Return counts as a scenario reports them: "2 crashed, 66 succeeded"."""
    return ", ".join(f"{number} {name}" for name, number in numbers.items())
