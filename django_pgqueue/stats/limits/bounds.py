"""How many ready jobs of limits and of limit keys are counted at most.

`figures` and `key_figures` use the same bounds, so that a limit without keys has the same number in both.
"""

from __future__ import annotations

from typing import Final

JOBS_LIMIT: Final = 10_000
"""Maximum number of ready jobs of one limit or key to count in one lane."""
JOBS_TOTAL: Final = 100_000
"""Maximum number of ready jobs to count for one answer. An index alone counts them: 0.1 µs each."""


def jobs_limit(ranges: int) -> int:
    """Return how many ready jobs of each of so many ranges of limit keys to count."""
    return min(JOBS_LIMIT, share_of(JOBS_TOTAL, ranges))


def share_of(total: int, parts: int) -> int:
    """Return the share of one of several parts. It has one digit other than 0, because people read it."""
    share = max(total // max(parts, 1), 2)
    unit = int(10 ** (len(str(share)) - 1))
    return share // unit * unit
