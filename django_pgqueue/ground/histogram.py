"""Sort durations into buckets, and estimate percentiles from the counts of the buckets.

Worker processes count the waits and run times of attempts with `count_into()`, and `stats` reads the counts. The bounds
of the buckets grow by a constant factor, so the relative error of a percentile is the same for short and long
durations. Histograms can be added, because all of them have the same buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import repeat
from math import ceil
from typing import Final

SMALLEST_SECONDS: Final = 0.001
"""Upper bound of the first bucket. Shorter durations are not distinguished."""
BUCKETS_PER_OCTAVE: Final = 4
"""Number of buckets in which a duration doubles."""
OCTAVES: Final = 27
"""The last bound is 2**27 ms, about 37 hours. The last bucket contains all longer durations."""
BOUNDS: Final = [SMALLEST_SECONDS * 2 ** (n / BUCKETS_PER_OCTAVE) for n in range(BUCKETS_PER_OCTAVE * OCTAVES + 1)]
"""Upper bounds of the buckets in seconds, without the last bucket."""
RELATIVE_ERROR: Final = 2 ** (1 / (2 * BUCKETS_PER_OCTAVE)) - 1
"""Maximum relative error of a percentile between the first and the last bound: about 9.1 %."""


def count_into(counts: Counter[int], durations: Iterable[float], weight: int = 1) -> None:
    """Add durations in seconds to the counts of their buckets. Each counts `weight` times."""
    for bucket, count in Counter(map(bisect_left, repeat(BOUNDS), durations)).items():
        counts[bucket] += count * weight


def percentile(counts: Mapping[int, int], fraction: float) -> float | None:
    """Return the estimated duration in seconds that this fraction of the durations does not exceed.

    This is the nearest-rank percentile: the middle of the bucket that contains the duration of this rank.

    Args:
        counts: Number of durations by bucket.
        fraction: For example 0.95.

    Returns:
        None if there are no durations.
    """
    rank = ceil(fraction * sum(counts.values()))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0 and counts[bucket]:
            return _middle(bucket)
    return None


def _middle(bucket: int) -> float:
    """Return the geometric middle of a bucket. The first and the last bucket have one bound only, so return that."""
    if bucket in (0, len(BOUNDS)):
        return BOUNDS[min(bucket, len(BOUNDS) - 1)]
    return float(BOUNDS[bucket] / (1 + RELATIVE_ERROR))
