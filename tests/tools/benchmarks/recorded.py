"""Our rate as a share of the limit's, kept in the repository: whether a change has made us slower."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.tools.benchmarks.runner import Round
from tests.tools.benchmarks.tables import US, medians

FILE = Path(__file__).with_name("recorded.json")
SCENARIOS = ("1", "1a")
SYSTEMS = ("us", "limit")
FIGURE = "jobs_per_second"
DROP = 0.15


def shares(rounds: Sequence[Round]) -> dict[str, float]:
    """By scenario, our median rate against the limit of scenario 1, for the limit runs no jobs of any kind."""
    limit = medians(one for one in rounds if one.scenario == SCENARIOS[0])["limit"][FIGURE]
    ours = {name: medians(one for one in rounds if one.scenario == name)[US][FIGURE] for name in SCENARIOS}
    return {name: rate / limit for name, rate in ours.items()}


def record(machine: str, found: Mapping[str, float]) -> None:
    """Keep these shares for later checks."""
    rounded = {name: round(share, 3) for name, share in found.items()}
    FILE.write_text(json.dumps({"machine": machine, "shares": rounded}, indent=1) + "\n")


def drops(found: Mapping[str, float]) -> list[str]:
    """Say which shares have fallen by more than 15 % of what was recorded."""
    recorded: Mapping[str, float] = json.loads(FILE.read_text())["shares"]
    return [
        f"scenario {name}: {found[name]:.2f} of the limit, recorded {share:.2f}"
        for name, share in recorded.items()
        if found[name] < (1 - DROP) * share
    ]
