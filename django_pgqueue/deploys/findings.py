"""Collect the problems of stored calls, add them up by task and problem, and write them as sentences and as JSON.

`stored` fills the collection, and the command prints it. It does no I/O.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from django_pgqueue import registry

from .calls import Problem

KINDS: Final = (
    *("due", "scheduled", "retrying", "waiting", "running", "dead"),
    *("schedule", "paused schedule", "undeclared schedule"),
    *("callback", "compensation"),
)
"""The kinds of stored calls: jobs in one of six states, schedules, callbacks of batches, compensations of steps."""
HARMLESS: Final = frozenset({"dead", "paused schedule", "undeclared schedule"})
"""Calls that run only if somebody asks for it, or that stop by themselves: their problems are warnings."""
OWNERS: Final = {kind: "schedule" if kind.endswith("schedule") else "job" for kind in KINDS} | {"callback": "batch"}
"""The owner of the id of an example, by kind."""
PLURALS: Final = {"job": "jobs", "schedule": "schedules", "batch": "batches"}


@dataclass(slots=True)
class Finding:
    """One problem of the calls of one task."""

    task_name: str
    problem: Problem
    is_warning: bool
    owner: str
    """The owner of the calls: "job", "schedule" or "batch"."""
    example: int
    """The lowest id of an owner that is known to have the problem."""
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of jobs, schedules or callbacks that have the problem."""
        return self.kinds.total()

    @property
    def noun(self) -> str:
        """The word for the jobs, schedules or callbacks that it counts."""
        if self.kinds.keys() == {"compensation"}:
            noun = "compensation"
        elif self.owner == "job":
            noun = "dead job" if self.is_warning else "job"
        else:
            [kind] = self.kinds if len(self.kinds) == 1 else [self.owner]
            noun = kind if self.is_warning or self.owner == "batch" else self.owner
        return noun if self.count == 1 else f"{noun}s"

    def __str__(self) -> str:
        verb = self.problem.verb[self.count > 1]
        subject = f"{self.count:,} {self.noun} of {registry.in_words(self.task_name)}"
        example = f"{self.owner} {self.example}"
        place = "tried on" if self.problem.code == "unreadable_value" else "for example"
        return f"{subject} {verb} {self.problem.rest} ({place} {example})"

    def as_json(self) -> dict[str, Any]:
        """Return the finding with stable keys."""
        return {
            "level": "warning" if self.is_warning else "error",
            "code": self.problem.code,
            "task": self.task_name,
            "of": PLURALS[self.owner],
            "count": self.count,
            "kinds": {kind: self.kinds[kind] for kind in KINDS if self.kinds[kind]},
            "example": self.example,
            "text": str(self),
        }


class Findings:
    """The problems that a check has found, each once for each task."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Problem, bool, str], Finding] = {}

    def add(self, task_name: str, problem: Problem, kind: str, count: int, example: int) -> None:
        """Add calls that have a problem."""
        key = task_name, problem, kind in HARMLESS, OWNERS[kind]
        finding = self._found.setdefault(key, Finding(*key, example=example))
        finding.kinds[kind] += count
        finding.example = min(finding.example, example)

    def sorted(self) -> list[Finding]:
        """Return the findings: errors before warnings, and the most frequent first."""
        return sorted(
            self._found.values(), key=lambda each: (each.is_warning, -each.count, each.task_name, each.problem)
        )
