"""Tables in Markdown of what was measured: median, least and most of the rounds, and how we compare."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.tools.benchmarks.runner import Round
from tests.tools.benchmarks.scenarios.scenario import GROUP_ENDS, Scenario

US = "us"


def medians(rounds: Iterable[Round]) -> dict[str, dict[str, float]]:
    """By system and figure, the median of the rounds."""
    return {
        system: {figure: statistics.median(values) for figure, values in figures.items()}
        for system, figures in gathered(rounds).items()
    }


def gathered(rounds: Iterable[Round]) -> dict[str, dict[str, list[float]]]:
    """By system and figure, the values of all rounds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in rounds:
        for figure, value in one.figures.items():
            found[one.system][figure].append(value)
    return found


def table(scenario: Scenario, rounds: Sequence[Round], versions: Mapping[str, str]) -> str:
    """The scenario's own table, with its targets and what could not be measured."""
    lines = _by_group(rounds, versions) if scenario.by_group else _by_system(scenario, rounds, versions)
    text = [f"### {scenario.name}: {scenario.title}", "", *("| " + " | ".join(line) + " |" for line in lines)]
    text += ["", *(f"- to be shown: {target}" for target in scenario.targets)]
    text += [f"- {one.system} could not be measured: {one.failure}" for one in rounds if one.failure]
    return "\n".join(text) + "\n"


def _by_system(scenario: Scenario, rounds: Sequence[Round], versions: Mapping[str, str]) -> list[list[str]]:
    """A line for each system, and how we compare."""
    found = gathered(rounds)
    others = [figure for figures in found.values() for figure in figures if figure != scenario.figure]
    heads = ["system", "version", scenario.figure, f"we are, against it ({better(scenario)})", *dict.fromkeys(others)]
    lines = [heads, ["---"] * len(heads)]
    ours = statistics.median(found[US][scenario.figure]) if scenario.figure in found.get(US, {}) else None
    for system, figures in found.items():
        ratio = _ratio(ours, figures.get(scenario.figure), bigger_is_better=scenario.bigger_is_better)
        values = [spread(figures.get(figure)) for figure in (scenario.figure, *dict.fromkeys(others))]
        lines.append([system, versions.get(system, ""), values[0], "" if system == US else ratio, *values[1:]])
    return lines


def _by_group(rounds: Sequence[Round], versions: Mapping[str, str]) -> list[list[str]]:
    """A line for each system and group, with the figures of the group."""
    rows: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for system, figures in gathered(rounds).items():
        for figure, values in figures.items():
            group, _, name = figure.partition(GROUP_ENDS)
            rows[system, group][name] = spread(values)
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    heads = ["system", "version", "", *names]
    return [heads, ["---"] * len(heads)] + [
        [system, versions.get(system, ""), group, *(row.get(name, "") for name in names)]
        for (system, group), row in rows.items()
    ]


def better(scenario: Scenario) -> str:
    return "more is better" if scenario.bigger_is_better else "less is better"


def spread(values: Sequence[float] | None) -> str:
    """The median, and in brackets the least and the most."""
    if not values:
        return ""
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}–{number(max(values))})"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(ours: float | None, values: Sequence[float] | None, *, bigger_is_better: bool) -> str:
    if ours is None or not values or not statistics.median(values):
        return ""
    theirs = statistics.median(values)
    return f"{ours / theirs:.2f} ×" if bigger_is_better else f"{ours / theirs:.2f} of it"
