"""What the adapter measures, and the lines of JSON that report it on standard output."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, deque
from datetime import UTC, datetime

from . import config

WINDOW_S = 30
"""The percentiles of a sample are those of this time before it."""
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


class Histogram:
    """The latencies of the last 30 s: one counter for each second, of values with three significant digits."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[int]]] = deque(maxlen=WINDOW_S + 1)
        self._lock = threading.Lock()

    def add(self, latencies_us: list[int]) -> None:
        """Add latencies of now, in microseconds."""
        second, rounded = int(time.monotonic()), Counter(map(_three_digits, latencies_us))
        with self._lock:
            if not self._seconds or self._seconds[-1][0] != second:
                self._seconds.append((second, Counter()))
            self._seconds[-1][1].update(rounded)

    def percentiles_ms(self) -> dict[str, float]:
        """Return each of `PERCENTILES` in milliseconds, or 0 if there is no latency."""
        oldest, merged = int(time.monotonic()) - WINDOW_S, Counter[int]()
        with self._lock:
            for second, counts in self._seconds:
                if second >= oldest:
                    merged.update(counts)
        total, seen, found = sum(merged.values()), 0, dict.fromkeys(PERCENTILES, 0.0)
        for latency_us, count in sorted(merged.items()):
            found |= {name: latency_us / 1000 for name, share in PERCENTILES.items() if seen < share * total}
            seen += count
        return found


def _three_digits(latency_us: int) -> int:
    """Return a latency with its lowest bits cleared, which leaves 11 bits."""
    lost_bits = max(0, latency_us.bit_length() - 11)
    return latency_us >> lost_bits << lost_bits


class Figures:
    """What the threads of the adapter have counted and measured."""

    def __init__(self) -> None:
        self.enqueued = self.completed = self.depth = 0
        self.target_rate = float(config.RATE)
        self.until_start, self.until_end, self.enqueueing = Histogram(), Histogram(), Histogram()


def emit(**record: object) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps({**record, "instance_id": config.INSTANCE}) + "\n")
    sys.stdout.flush()


def timestamp() -> str:
    """Return the time in the format of the protocol."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sample_until(stopping: threading.Event, figures: Figures) -> None:
    """Print the samples at each whole multiple of SAMPLE_EVERY_S on the clock, until the adapter stops."""
    period, last = config.SAMPLE_S, (time.monotonic(), figures.enqueued, figures.completed)
    while not stopping.wait(period - time.time() % period):
        now = time.monotonic(), figures.enqueued, figures.completed
        seconds, enqueued, completed = (new - old for new, old in zip(now, last, strict=True))
        if seconds < period / 2:
            continue  # the adapter has just started, or the clock was set back
        last = now
        metrics = _latencies(figures)
        metrics["enqueue_rate"] = enqueued / seconds, period
        metrics["completion_rate"] = completed / seconds, period
        if config.INSTANCE == 0:
            metrics["queue_depth"] = figures.depth, 0
            metrics["producer_target_rate"] = figures.target_rate, 0
        _print_samples(metrics)


def _latencies(figures: Figures) -> dict[str, tuple[float, int]]:
    histograms = {
        "producer": figures.enqueueing,
        "subscriber": figures.until_start,
        "claim": figures.until_start,
        "end_to_end": figures.until_end,
    }
    return {
        f"{name}_{percentile}_ms": (value, WINDOW_S)
        for name, histogram in histograms.items()
        for percentile, value in histogram.percentiles_ms().items()
    }


def _print_samples(metrics: dict[str, tuple[float, int]]) -> None:
    common = {"t": timestamp(), "system": config.SYSTEM, "kind": "adapter", "subject_kind": "adapter", "subject": ""}
    for name, (value, window) in metrics.items():
        emit(**common, metric=name, value=value, window_s=window)
