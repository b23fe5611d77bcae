"""Match the steps that a task calls with those that its job has stored.

`StepRunner` calls `enter()` for each step. It protects one rule: a job continues with code that still calls its stored
steps in their order. A step that the code has gained gets a position between the stored ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgqueue.lifecycle.steps import StoredStep
from django_pgqueue.states import StepKind
from django_pgqueue.steps import StepError, StepsChanged


class Place(NamedTuple):
    """The place of a step among the steps of its job, and the step if it is stored."""

    name: str
    position: float
    stored: StoredStep | None


class StepOrder:
    """The steps of one attempt, in the order of their calls."""

    def __init__(self, stored: Sequence[StoredStep]) -> None:
        self._stored = stored
        self._indexes = {step.name: index for index, step in enumerate(stored)}
        self._called: set[str] = set()
        self._next = 0
        """The index behind the last stored step that was called."""
        self._position = 0.0
        self._added = 0
        """How many new steps were called since the last stored one."""

    def enter(self, name: str, kind: StepKind) -> Place:
        """Return the place of the step that is called now.

        Raises:
            StepError: The attempt has called the step before.
            StepsChanged: The order or the kind of the stored steps does not fit the code.
        """
        if name in self._called:
            raise StepError(f"the step {name!r} is called twice in one attempt: give each step a name of its own")
        index = self._indexes.get(name)
        stored = None if index is None else self._stored[index]
        if index is None:
            self._position = self._new_position()
        elif index < self._next:
            raise StepsChanged(
                f"the step {name!r} is called after the step {self._stored[self._next - 1].name!r}, and this job has "
                "stored it before that step: restore the order of the steps, or give the moved step a new name"
            )
        else:
            assert stored is not None  # noqa: S101 -- for mypy: it has an index
            if stored.kind is not kind:
                raise StepsChanged(
                    f"the step {name!r} is called as {kind.value!r}, and this job has stored it as "
                    f"{stored.kind.value!r}: give the new step a name of its own"
                )
            self._next, self._position, self._added = index + 1, stored.position, 0
        self._called.add(name)
        return Place(name, self._position, stored)

    def _new_position(self) -> float:
        """Return a position between the last called step and the next stored one.

        The nth new step takes 1/(n + 1) of what is left between them, so 1/(n + 1) of the whole remains, and a loop of
        a million new steps finds room. If each took one half, the positions would be equal after 50.
        """
        if self._next == len(self._stored):
            return self._position + 1.0
        self._added += 1
        return self._position + (self._stored[self._next].position - self._position) / (self._added + 1)

    def not_called(self) -> list[str]:
        """Return the stored steps that the code has not called."""
        return [step.name for step in self._stored if step.name not in self._called]
