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
)
"""The owners of stored calls: jobs in one of five states, and schedules."""
HARMLESS: Final = frozenset({"dead", "paused schedule", "undeclared schedule"})
"""Calls that run only if somebody asks for it, or that stop by themselves: their problems are warnings."""
SCHEDULES: Final = frozenset(kind for kind in KINDS if kind.endswith("schedule"))


@dataclass(slots=True)
class Finding:
    """One problem of the calls of one task."""

    task_name: str
    problem: Problem
    is_warning: bool
    of_schedules: bool
    example: int
    """The lowest id of a job or a schedule that is known to have the problem."""
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of jobs, or of schedules, that have the problem."""
        return self.kinds.total()

    @property
    def noun(self) -> str:
        """The word for the jobs or schedules that it counts."""
        if self.of_schedules:
            noun = "schedule"
            [kind] = self.kinds if len(self.kinds) == 1 else [""]
            noun = kind if self.is_warning and kind else noun
        else:
            noun = "dead job" if self.is_warning else "job"
        return noun if self.count == 1 else f"{noun}s"

    def __str__(self) -> str:
        verb = self.problem.verb[self.count > 1]
        subject = f"{self.count:,} {self.noun} of {registry.in_words(self.task_name)}"
        example = f"schedule {self.example}" if self.of_schedules else f"job {self.example}"
        place = "tried on" if self.problem.code == "unreadable_value" else "for example"
        return f"{subject} {verb} {self.problem.rest} ({place} {example})"

    def as_json(self) -> dict[str, Any]:
        """Return the finding with stable keys."""
        return {
            "level": "warning" if self.is_warning else "error",
            "code": self.problem.code,
            "task": self.task_name,
            "of": "schedules" if self.of_schedules else "jobs",
            "count": self.count,
            "kinds": {kind: self.kinds[kind] for kind in KINDS if self.kinds[kind]},
            "example": self.example,
            "text": str(self),
        }


class Findings:
    """The problems that a check has found, each once for each task."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Problem, bool, bool], Finding] = {}

    def add(self, task_name: str, problem: Problem, kind: str, count: int, example: int) -> None:
        """Add calls that have a problem."""
        key = task_name, problem, kind in HARMLESS, kind in SCHEDULES
        finding = self._found.setdefault(key, Finding(*key, example=example))
        finding.kinds[kind] += count
        finding.example = min(finding.example, example)

    def sorted(self) -> list[Finding]:
        """Return the findings: errors before warnings, and the most frequent first."""
        return sorted(
            self._found.values(), key=lambda each: (each.is_warning, -each.count, each.task_name, each.problem)
        )
