"""`python -m tests.tools.model [--deep]`: explore the model under each fence, and print what was found.

Under each fence a shortest trace to every violation. `--deep` allows more acts in one history
and takes minutes.
"""

import argparse
import time
from collections.abc import Iterable

from tests.tools.model.explore import INVARIANTS, Explored, explored, twice
from tests.tools.model.protocol import Rules

FENCES = ("none", "state", "worker", "attempt", "execution")
QUICK = (
    *(Rules(), Rules(atomic=False), Rules(max_attempts=1, crash_budget=1, give_backs=1)),
    *(Rules(atomic=atomic, max_attempts=1, crash_budget=1, retries=1) for atomic in (True, False)),
)
"""Enough for every violation there is to be found, in seconds: see test_model.py."""
DEEP = tuple(
    Rules(atomic=atomic, max_attempts=most, give_backs=given_back, retries=retries)
    for atomic in (True, False)
    for most, given_back, retries in ((3, 0, 0), (2, 1, 0), (2, 0, 1), (1, 1, 1))
)


def under(fence: str, bounds: Iterable[Rules] = QUICK, most: int | None = None) -> list[Explored]:
    """Explore each of `bounds` under one fence, or `most` worlds of it."""
    return [explored(rules._replace(fence=fence), most) for rules in bounds]


def violations(found: Iterable[Explored]) -> dict[str, str]:
    """Return a shortest trace, as text, for each invariant that is violated in any of them."""
    traces = [(len(trace), name, "; ".join(map(str, trace))) for one in found for name, trace in one.violations.items()]
    return {name: text for _, name, text in sorted(traces, reverse=True)}


def told(fence: str, found: list[Explored], seconds: float) -> str:
    """Return one fence's part of the report."""
    violated = violations(found)
    worlds = sum(len(one.came_by) for one in found)
    steps = sum(len(edges) for one in found for edges in one.edges.values())
    lines = [
        f"fence: {fence}. {worlds:,} worlds, {steps:,} steps, {seconds:.1f} s: {len(violated)} invariants violated"
    ]
    for name in (name for name in INVARIANTS if name in violated):
        lines += [f"  NOT: {name}", f"       {violated[name]}"]
    return "\n".join(lines)


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.model", description=__doc__)
    parser.add_argument("--deep", action="store_true", help="more acts in one history")
    bounds = DEEP if parser.parse_args().deep else QUICK
    for fence in FENCES:
        began = time.monotonic()
        found = under(fence, bounds)
        print(told(fence, found, time.monotonic() - began), end="\n\n", flush=True)  # noqa: T201 -- a command
    again = min((trace for one in found if (trace := twice(one))), key=len)
    print(f"Not promised, one effect of a plain task:\n  {'; '.join(map(str, again))}")  # noqa: T201 -- as above


if __name__ == "__main__":
    main()
