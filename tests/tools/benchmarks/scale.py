"""How much of a full measurement is done: `bin/bench --scale 0.01` is a smoke test, whose figures mean nothing."""

from __future__ import annotations

from tests.tools.benchmarks.systems.system import System


class _Scale:
    factor = 1.0


scale = _Scale()


def jobs(full: int, least: int = 20) -> int:
    """That many jobs, or the part of them that is asked for."""
    return max(min(full, least), round(full * scale.factor))


def seconds(full: float, least: float = 1.0) -> float:
    """That long, or the part of it that is asked for."""
    return max(min(full, least), full * scale.factor)


def scaled(system: System) -> System:
    """The system, with fewer jobs to drain."""
    return system._replace(drain_jobs=jobs(system.drain_jobs))


def told() -> str:
    """A word for the output, where it is not the full measurement."""
    return "" if scale.factor == 1 else f", SCALED by {scale.factor:g}: no figure here means anything"
