"""Tables in Markdown of what was counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.tools.benchmarks.counts.figures import NAMES, Figures, Found

FUNCTIONS: Final = 400
"""How many functions of a form are listed."""


def figures(found: Mapping[str, Figures]) -> str:
    """Return a table with a row for each figure, and a column for each form."""
    names = [name for name in NAMES if any(name in of_form for of_form in found.values())]
    rows = [[NAMES[name], *(number(of_form.get(name)) for of_form in found.values())] for name in names]
    return _table(["for each job", *found], rows)


def functions(found: Found, forms: Sequence[str]) -> str:
    """Return for each form a table of the functions that it calls, and how often for each job."""
    texts = []
    for form in forms:
        rows = [[number(count), name] for name, count in list(found.functions(form).items())[:FUNCTIONS]]
        texts.append(f"### {form}\n\n{_table(['calls a job', 'function'], rows)}")
    return "\n".join(texts)


def number(value: float | None) -> str:
    """Return a count as text, rounded to three digits below 100. Return an empty text for None."""
    if value is None:
        return ""
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.1f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
