"""The policy that a claim obeys for one limit key: the declared limit, changed by the overrides of operators.

Claims, foreground runs and the statistics compute it with `policy_of()`. Of each field, the override of the key counts
first, then the override of the limit's name, then the code.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from django_pgqueue.durations import MAX_SECONDS

from .limits import Limit, interval_seconds

Value = TypeVar("Value")


class Override(NamedTuple):
    """The values that an operator has set for a limit or for one of its keys. None: as without the override."""

    concurrency: int | None = None
    rate: str | None = None
    burst: int | None = None
    share: int | None = None


PROBING: Final = Override(concurrency=1)
"""While the circuit breaker of a key is open, one job at a time runs, whatever the other overrides say."""


class KeyPolicy(NamedTuple):
    """The values that a claim of one key obeys."""

    concurrency: int | None
    """Maximum jobs that run at a time. An ordered key has 1. None: no maximum."""
    rate: str | None
    interval_seconds: float | None
    """Seconds until a token of the rate comes back. None without a rate."""
    burst: int
    share: int
    is_ordered: bool


def policy_of(limit: Limit, *overrides: Override | None) -> KeyPolicy:
    """Return the policy of a key, from its limit and its overrides. Earlier overrides count first.

    An override of the rate and one of the burst can come from different rows, which nobody has checked together. A
    bucket that needs more than 100 years is therefore made smaller, because its times would not fit the database's.
    """
    given = [override for override in overrides if override is not None]
    if not given:
        slots = 1 if limit.ordered else limit.concurrency
        return KeyPolicy(slots, limit.rate, limit.interval_seconds, limit.burst, limit.share, limit.ordered)
    rate = _first([override.rate for override in given], limit.rate)
    burst = _first([override.burst for override in given], limit.burst)
    interval = None if rate is None else min(interval_seconds(rate), MAX_SECONDS)
    return KeyPolicy(
        concurrency=1 if limit.ordered else _first([override.concurrency for override in given], limit.concurrency),
        rate=rate,
        interval_seconds=interval,
        burst=burst if interval is None else min(burst, int(MAX_SECONDS / interval)),
        share=_first([override.share for override in given], limit.share),
        is_ordered=limit.ordered,
    )


def _first(values: list[Value | None], default: Value) -> Value:
    """Return the first value that is set."""
    return next((value for value in values if value is not None), default)
