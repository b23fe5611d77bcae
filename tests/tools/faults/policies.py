"""What was in force for each limit key, and when: the limit of the code, as overrides of operators changed it.

The checker works this out by itself, from the changes of the table of overrides. A claim may go by what was in force a
moment earlier. So it is judged by all policies that were in force since then, and keeps the limit if it keeps one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

from django_pgqueue.declared.limits import name_of
from tests.tools.faults.history import History, Override
from tests.tools.faults.limits import LIMITS, period_of

ALWAYS: Final = float("-inf")
NEVER: Final = float("inf")
Given = dict[str, Any]


class Policy(NamedTuple):
    """What a key admits: how much weight at a time, and how much in a period."""

    slots: int | None
    seconds: float | None
    """The period of the rate."""
    tokens: int
    burst: int

    @property
    def interval(self) -> float:
        """Seconds until a token comes back, or 0 without a rate."""
        return self.seconds / self.tokens if self.seconds else 0.0

    def tokens_of(self, weight: int) -> int:
        """Return how many tokens a job takes. One that is heavier than the bucket takes all."""
        return min(weight, self.burst) if self.seconds else weight


class Policies:
    """The policies of all keys in a history."""

    def __init__(self, history: History) -> None:
        self._changes: dict[str, list[tuple[float, Given]]] = defaultdict(list)
        """What was given for each name, and from when on."""
        by_name: dict[str, list[Override]] = defaultdict(list)
        for override in history.overrides:
            by_name[override.key].append(override)
        for name, overrides in by_name.items():
            self._changes[name] = list(_changes(overrides))
        self._known: dict[str, list[tuple[float, Policy]]] = {}

    def of(self, key: str) -> list[tuple[float, Policy]]:
        """Return the policies of a key, each with the time at which it began. The first one began at no time."""
        if key not in self._known:
            names = {key, name_of(key)}
            times = sorted({ALWAYS, *(at for name in names for at, _ in self._changes.get(name, ()))})
            policies = [(at, self._at(key, at)) for at in times]
            self._known[key] = [next(same) for _, same in groupby(policies, key=lambda each: each[1])]
        return self._known[key]

    def during(self, key: str, begin: float, end: float) -> list[Policy]:
        """Return the policies of a key that were in force at some time between these two, the earliest first."""
        policies = self.of(key)
        times = [at for at, _ in policies]
        return [policy for _, policy in policies[bisect_right(times, begin) - 1 : bisect_right(times, end)]]

    def _at(self, key: str, at: float) -> Policy:
        limit = LIMITS[name_of(key)]
        of_key, of_limit = (self._given(name, at) for name in (key, limit.name))

        def value(field: str) -> Any:
            found = [given[field] for given in (of_key, of_limit) if given.get(field) is not None]
            return found[0] if found else getattr(limit, field)

        period = period_of(value("rate"))
        seconds, tokens = period or (None, 0)
        return Policy(1 if limit.ordered else value("concurrency"), seconds, tokens, value("burst"))

    def _given(self, name: str, at: float) -> Given:
        return next((given for since, given in reversed(self._changes.get(name, ())) if since <= at), {})


def _changes(overrides: list[Override]) -> Iterator[tuple[float, Given]]:
    """Yield what the overrides of one name gave, and from when on. One that ends by itself gives nothing more."""
    for override, after in zip(overrides, [*overrides[1:], None], strict=True):
        yield override.at, override.given or {}
        if override.until is not None and (after is None or override.until < after.at):
            yield max(override.at, override.until), {}
