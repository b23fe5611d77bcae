"""Read the overrides, pauses and open breakers of limits and limit keys, and compute the values that claims obey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.declared.limit_policies import PROBING, KeyPolicy, Override, policy_of
from django_pgqueue.declared.limits import name_of
from django_pgqueue.states import Pausable
from django_pgqueue.stats.answers import PauseStats
from django_pgqueue.stats.sentences import OpenedAt
from django_pgqueue.tasks import registry

from . import key_queries
from . import queries as limit_queries
from .answers import LimitValues, OverrideStats

CONTROLS_LIMIT: Final = 1000
"""Maximum number of overrides, of pauses, and of open breakers that `limits()` reads."""


@dataclass(slots=True)
class Controls:
    """The overrides and the pauses in force, by limit key or by the name of a limit."""

    overrides: dict[str, OverrideStats] = field(default_factory=dict)
    pauses: dict[str, PauseStats] = field(default_factory=dict)
    open_breakers: dict[str, OpenedAt] = field(default_factory=dict)
    """Limit keys whose circuit breakers are open, each with its first opening."""

    def policy_of(self, limit_key: str) -> KeyPolicy | None:
        """Return the policy of a key, or of the keys of a limit without overrides. None: no task declares the limit."""
        name = name_of(limit_key)
        declared = registry.limits().get(name)
        if declared is None:
            return None
        found = (self.overrides.get(each) for each in (limit_key, name))
        overrides = (None if each is None else _as_override(each) for each in found)
        return policy_of(declared, PROBING if self.has_open_breaker(limit_key) else None, *overrides)

    def has_open_breaker(self, limit_key: str) -> bool:
        """Return whether the circuit breaker of a key is open. Ignore a breaker that the code has no more."""
        declared = registry.limits().get(name_of(limit_key))
        return declared is not None and declared.breaker is not None and limit_key in self.open_breakers

    def values_of(self, limit_key: str) -> LimitValues | None:
        """Return the values of the policy of a key."""
        policy = self.policy_of(limit_key)
        if policy is None:
            return None
        return LimitValues(**{name: getattr(policy, name) for name in LimitValues.__slots__})

    def pause_of(self, limit_key: str) -> PauseStats | None:
        """Return the pause of a key or of its limit. If there are two, return the one that ends last."""
        found = [self.pauses[name] for name in (limit_key, name_of(limit_key)) if name in self.pauses]
        endless = [pause for pause in found if pause.until is None]
        return next(iter(endless), None) or max(found, key=lambda pause: pause.until or pause.paused_at, default=None)


def read_controls(connection: Connection) -> tuple[Controls, bool]:
    """Return the overrides, pauses and open breakers of all limits and keys, and whether these are all."""
    found = _read(connection, limit_queries.LIMIT_CONTROLS, {"limit": CONTROLS_LIMIT})
    return found, max(len(found.overrides), len(found.pauses), len(found.open_breakers)) < CONTROLS_LIMIT


def controls_of(connection: Connection, limit_keys: Iterable[str]) -> Controls:
    """Return the overrides, pauses and open breakers of these keys, and those of their limits' names."""
    names = {name for key in limit_keys for name in (key, name_of(key))}
    return _read(connection, key_queries.CONTROLS_OF_KEYS, {"names": sorted(names)})


def _read(connection: Connection, statement: str, params: Mapping[str, Any]) -> Controls:
    found = Controls()
    # The values have the fields of `OverrideStats`. Those of a pause begin with the time of the change.
    for is_pause, *values in execute(connection, statement, params):
        name = values[0]
        if is_pause is None:
            found.open_breakers[name] = OpenedAt(values[5], values[1])
        elif is_pause:
            found.pauses[name] = PauseStats(Pausable.LIMIT, name, *values[5:])
        else:
            found.overrides[name] = OverrideStats(**dict(zip(OverrideStats.__slots__, values, strict=True)))
    return found


def _as_override(stats: OverrideStats) -> Override:
    return Override(stats.concurrency, stats.rate, stats.burst, stats.share)
