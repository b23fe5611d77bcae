"""Write metrics in the text formats of Prometheus, version 0.0.4 and OpenMetrics 1.0.0, without a library.

The protected view of `metrics` and the worker's metrics port call `render()`. `Fresh` keeps their figures for some
seconds, so that scrapes cannot load the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from .readings import Reading

T = TypeVar("T")
Kind = Literal["counter", "gauge", "histogram"]

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""The characters that a label's value escapes."""
SPECIAL_NUMBERS: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class Histogram(NamedTuple):
    """The values of a histogram: the limits of its buckets, the count in each, and the sum."""

    limits: Sequence[float]
    counts: Sequence[float]
    total: float


class Family(NamedTuple):
    """One metric with its samples. The name of a counter has no `_total`, which the text format adds."""

    name: str
    kind: Kind
    help: str
    labels: Sequence[str]
    samples: Iterable[tuple[Sequence[str], float | Histogram]]


class Fresh(Generic[T]):
    """A value that is at most some seconds old. Threads that come while it is read wait for it."""

    def __init__(self, read: Callable[[], T], seconds: float) -> None:
        self._read, self._seconds = read, seconds
        self._lock = Lock()
        self._found: tuple[float, T] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the next call of `get()` reads the value."""
        return self._found is None or time.monotonic() >= self._found[0]

    def get(self) -> T:
        """Return the value. Read it if it is due."""
        with self._lock:
            if self._found is None or self.is_due:
                value = self._read()
                self._found = time.monotonic() + self._seconds, value
            return self._found[1]


def families_of(readings: Iterable[Reading]) -> Iterator[Family]:
    """Yield gauges of the queue as metrics."""
    return (Family(gauge.name, "gauge", gauge.help, gauge.labels, samples) for gauge, samples in readings)


def render(families: Iterable[Family], accept: str = "") -> tuple[str, str]:
    """Return metrics as text, and the content type of the text.

    Args:
        families: The metrics.
        accept: The header `Accept` of the request. The format is OpenMetrics if the header names it.
    """
    is_open = any(each.partition(";")[0].strip() == OPENMETRICS.partition(";")[0] for each in accept.split(","))
    text = "".join(f"{line}\n" for family in families for line in _lines(family, is_open=is_open))
    return (f"{text}# EOF\n", OPENMETRICS) if is_open else (text, PLAIN)


def _lines(family: Family, *, is_open: bool) -> Iterator[str]:
    counter = f"{family.name}_total" if family.kind == "counter" else family.name
    yield f"# HELP {family.name if is_open else counter} {family.help}"
    yield f"# TYPE {family.name if is_open else counter} {family.kind}"
    for values, value in family.samples:
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(value, Histogram):
            yield from _histogram_lines(family.name, labels, value)
        else:
            yield _line(counter, labels, value)


def _histogram_lines(name: str, labels: dict[str, str], histogram: Histogram) -> Iterator[str]:
    limits, counts = [*(f"{limit:g}" for limit in histogram.limits), "+Inf"], list(accumulate(histogram.counts))
    for limit, count in zip(limits, counts, strict=True):
        yield _line(f"{name}_bucket", {**labels, "le": limit}, count)
    yield _line(f"{name}_count", labels, counts[-1])
    yield _line(f"{name}_sum", labels, histogram.total)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{text.translate(ESCAPES)}"' for label, text in sorted(labels.items()))
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _number(value: float) -> str:
    """Return a number as Go writes it, with an exponent from a million on."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        digits = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0").rstrip(".")
        return f"{digits}e+{dot - 1:02d}"
    return SPECIAL_NUMBERS.get(text, text)
