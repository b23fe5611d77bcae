"""A clock for the package's modules that advances by each reading, so that no count depends on the machine's speed."""

from __future__ import annotations

import itertools
import sys
import time
from types import ModuleType
from typing import Final

READING_SECONDS: Final = 1e-6


class Clock(ModuleType):
    """Takes the place of the module `time`. A reading calls no Python function, as with the real clock."""

    def __init__(self) -> None:
        super().__init__("time")
        self.__dict__.update(vars(time))
        self._set(time.monotonic())

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self._set(self.monotonic() + seconds)

    def install(self) -> None:
        """Become the clock of each module of the package that is imported."""
        for name, module in list(sys.modules.items()):
            if name.startswith("django_pgqueue") and vars(module).get("time") is time:
                module.time = self  # type: ignore[attr-defined]  # it has imported it

    def _set(self, now: float) -> None:
        self.monotonic = itertools.count(now, READING_SECONDS).__next__
