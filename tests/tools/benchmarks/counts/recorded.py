"""The recorded counts, and the comparison of new counts with them.

`recorded.json` has the figures of each form for each version of Python, and those of the server for each major version
of PostgreSQL. Calls of libraries are compared only if Django and psycopg have the recorded versions, because a release
of theirs may change them. The instructions of the server are recorded on demand, and not compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.tools.benchmarks.counts.figures import NAMES, SERVER_FIGURES, Figures, Found, each

FILE: Final = Path(__file__).with_name("recorded.json")
LIMIT: Final = 0.03
"""A count may be so much higher or lower than the recorded one."""
NOISE: Final = 0.002
"""Two counts of the same code differ by less than this."""
LEAST: Final = 1e-9
PYTHON, POSTGRESQL, BYTECODE, CALLGRIND = "python", "postgresql", "bytecode", "server_instructions"
LIBRARIES: Final = ("django", "psycopg")


class Change(NamedTuple):
    """A count that differs from the recorded one."""

    form: str
    figure: str
    recorded: float
    counted: float

    @property
    def is_rise(self) -> bool:
        """Whether the count is higher than the recorded one."""
        return self.counted > self.recorded

    def __str__(self) -> str:
        percent = f"{100 * (self.counted / self.recorded - 1):+.1f} %" if self.recorded else "new"
        return f"{self.form}: {NAMES[self.figure]} {self.recorded:,.6g} -> {self.counted:,.6g} a job ({percent})"


def parts_of(found: Found, name: str) -> dict[str, tuple[str, dict[str, Figures]]]:
    """Return what a count is recorded as, by section: the version, and the figures of each form.

    Args:
        found: The answer of the counted program.
        name: What its meter has counted: `calls` or `instructions`.
    """
    figures = each(found, found.forms, name)
    section = PYTHON if name == "calls" else BYTECODE
    parts = {section: (found.versions[PYTHON], _only(figures, (name, f"library_{name}"), section))}
    if any(SERVER_FIGURES[0] in of_form for of_form in figures.values()):
        parts[POSTGRESQL] = (found.versions[POSTGRESQL], _only(figures, SERVER_FIGURES, POSTGRESQL))
    return parts


def _only(figures: Mapping[str, Figures], names: tuple[str, ...], section: str) -> dict[str, Figures]:
    wanted = names[:1] if section == BYTECODE else names
    return {form: {name: round(of_form[name], 4) for name in wanted} for form, of_form in figures.items()}


def has_bytecode(found: Found) -> bool:
    """Return whether the Python of the counted program can count bytecode instructions: 3.12 or later."""
    return tuple(map(int, found.versions[PYTHON].split("."))) >= (3, 12)


def read() -> dict[str, Any]:
    """Return what is recorded: by section and version."""
    recorded: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return recorded


def _settled(figures: Figures, before: Figures) -> Figures:
    """Return the figures, with the recorded value of each one that differs only by noise: that changes no file."""
    return {
        name: before[name] if name in before and abs(value - before[name]) <= NOISE * before[name] else value
        for name, value in figures.items()
    }


def is_recorded(found: Found, name: str) -> bool:
    """Return whether there are counts for this version of Python or of PostgreSQL."""
    recorded = read()
    return any(version in recorded.get(section, {}) for section, (version, _) in parts_of(found, name).items())


def record(found: Found, name: str) -> None:
    """Keep these counts in place of those of the same versions."""
    libraries = {library: found.versions[library] for library in LIBRARIES}
    for section, (version, forms) in parts_of(found, name).items():
        _keep(section, version, {} if section == POSTGRESQL else libraries, forms)


def record_server_instructions(version: str, forms: Mapping[str, Figures]) -> None:
    """Keep the instructions of a major version of PostgreSQL. Nothing compares them, because they take minutes."""
    kept = read().get(CALLGRIND, {}).get(version, {}).get("forms", {})
    rounded = {form: {name: float(round(value)) for name, value in of_form.items()} for form, of_form in forms.items()}
    _keep(CALLGRIND, version, {}, {**kept, **rounded})


def _keep(section: str, version: str, libraries: Mapping[str, str], forms: Mapping[str, Figures]) -> None:
    recorded = read()
    versions = recorded.setdefault(section, {})
    before = versions.get(version, {"forms": {}})
    settled = {form: _settled(figures, before["forms"].get(form, {})) for form, figures in forms.items()}
    if settled == before["forms"] and all(before.get(name) == value for name, value in libraries.items()):
        return
    versions[version] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **libraries, "forms": settled}
    ordered = {section: dict(sorted(recorded[section].items())) for section in sorted(recorded)}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n")


def changes(found: Found, name: str) -> list[Change]:
    """Return the counts that differ from the recorded counts of these versions by more than 3 %."""
    recorded, changed = read(), []
    for section, (version, forms) in parts_of(found, name).items():
        kept = recorded.get(section, {}).get(version)
        if kept is None:
            continue
        has_same_libraries = all(kept.get(library) == found.versions[library] for library in LIBRARIES)
        for form, figures in forms.items():
            for figure, counted in figures.items():
                if figure.startswith("library_") and not has_same_libraries:
                    continue
                change = Change(form, figure, kept["forms"].get(form, {}).get(figure, 0.0), counted)
                if abs(change.counted - change.recorded) > LIMIT * change.recorded + LEAST:
                    changed.append(change)
    return changed


def message(changed: list[Change]) -> str:
    """Say which counts have changed, and how to record the new ones."""
    lines = [
        "A warm plain job costs more or less than recorded:",
        *(f"  {change}" for change in sorted(changed, key=lambda change: not change.is_rise)),
        "See which functions a form calls: bin/bench --counts --functions FORM",
        "Record the new counts, and say in the commit why they have changed: bin/bench --counts --record",
    ]
    return "\n".join(lines)
