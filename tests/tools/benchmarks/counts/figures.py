"""The figures of one form of a job, for each job, from what the counted program has printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

PACKAGE: Final = "django_pgqueue/"
FORMS: Final = ("thread", "coroutine", "atomic", "orm", "enqueue", "enqueue_many")
SERVER_FIGURES: Final = ("statements", "commits", "rows", "index_entries", "buffers", "wal_bytes")
NAMES: Final = {
    "calls": "Python calls, package",
    "library_calls": "Python calls, libraries",
    "functions": "different functions of the package",
    "files": "different files of the package",
    "instructions": "bytecode instructions, package",
    "library_instructions": "bytecode instructions, libraries",
    "locks": "lock acquisitions",
    "system_calls": "system calls",
    "statements": "statements",
    "commits": "commits",
    "rows": "rows written",
    "index_entries": "index entries written",
    "buffers": "buffers touched",
    "wal_bytes": "WAL bytes without full-page images",
    "server_instructions": "instructions of the server",
}
"""What each figure is called in tables and messages."""
Figures = dict[str, float]
"""By the name of a figure, its value for one job."""


class Found(NamedTuple):
    """What one process of the counted program has printed."""

    versions: dict[str, str]
    jobs: int
    forms: dict[str, dict[str, Any]]
    sessions: list[int]

    def of_server(self, form: str) -> Figures:
        """Return what the server has counted for each job."""
        return {name: self.forms[form][name] / self.jobs for name in SERVER_FIGURES}

    def of_program(self, form: str, name: str) -> Figures:
        """Return what the meter has counted for each job: in the package as `name`, and in libraries."""
        functions = self.functions(form)
        own = sum(count for function, count in functions.items() if function.startswith(PACKAGE))
        return {name: own, f"library_{name}": sum(functions.values()) - own}

    def functions(self, form: str) -> dict[str, float]:
        """Return the count of each function for each job, the largest first."""
        counts: Mapping[str, int] = self.forms[form]["functions"]
        return {name: count / self.jobs for name, count in sorted(counts.items(), key=lambda item: -item[1])}


def merged(*parts: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the figures of several counts together, by form."""
    forms = dict.fromkeys(form for part in parts for form in part)
    return {form: {name: value for part in parts for name, value in part.get(form, {}).items()} for form in forms}


def each(found: Found, forms: Iterable[str], *names: str) -> dict[str, Figures]:
    """Return by form what a meter has counted, under the first of these names, and what the server has, if read."""
    return {
        form: {
            **(found.of_program(form, names[0]) if names else {}),
            **(found.of_server(form) if SERVER_FIGURES[0] in found.forms[form] else {}),
        }
        for form in forms
    }


def entered(found: Found, forms: Iterable[str]) -> dict[str, Figures]:
    """Return by form how many different functions and files of the package the batches have entered."""
    figures = {}
    for form in forms:
        own = [function for function in found.functions(form) if function.startswith(PACKAGE)]
        files = {function.partition(" ")[0] for function in own}
        figures[form] = {"functions": float(len(own)), "files": float(len(files))}
    return figures
