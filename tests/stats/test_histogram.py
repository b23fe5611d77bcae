"""The buckets of durations, and the percentiles estimated from them."""

import random
from collections import Counter
from math import ceil

import pytest

from django_pgqueue.ground import histogram


def counts_of(durations):
    counts = Counter()
    histogram.count_into(counts, durations)
    return counts


def nearest_rank(durations, fraction):
    return sorted(durations)[ceil(fraction * len(durations)) - 1]


@pytest.mark.promise("stats-percentile-error")
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("median", [0.01, 1.0, 3600.0])
def test_percentile_error_is_at_most_nine_percent(median, spread):
    chance = random.Random(17)
    durations = [min(max(chance.lognormvariate(0, spread) * median, 0.001), 100_000) for _ in range(2000)]
    counts = counts_of(durations)
    for fraction in (0.5, 0.95, 0.99):
        exact = nearest_rank(durations, fraction)
        assert histogram.percentile(counts, fraction) == pytest.approx(exact, rel=0.091)
    assert 0.09 < histogram.RELATIVE_ERROR < 0.091


def test_percentile_at_each_bound_stays_within_error():
    for bound in histogram.BOUNDS[1:]:
        for duration in (bound * 1.0001, bound * 0.9999, bound):
            if duration < histogram.BOUNDS[-1]:
                assert histogram.percentile(counts_of([duration]), 0.5) == pytest.approx(duration, rel=0.091)


def test_percentile_outside_the_bounds_returns_nearest_bound():
    assert histogram.percentile(counts_of([-1.0, 0.0, 1e-6]), 0.99) == 0.001
    assert histogram.percentile(counts_of([1e9]), 0.5) == pytest.approx(2**27 / 1000)


def test_percentile_of_added_histograms_counts_both():
    together = counts_of([0.1] * 90) + counts_of([10.0] * 10)
    assert histogram.percentile(together, 0.9) == pytest.approx(0.1, rel=0.091)
    assert histogram.percentile(together, 0.91) == pytest.approx(10, rel=0.091)


def test_percentile_without_durations_returns_none():
    assert histogram.percentile({}, 0.5) is None
