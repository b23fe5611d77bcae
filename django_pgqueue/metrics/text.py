"""The text format of Prometheus, version 0.0.4. Gauges need no more of it than this, and no library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from django_pgqueue.readings import Reading

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""The characters that a label's value escapes."""


def render(readings: Iterable[Reading]) -> str:
    """Return gauges in the text format of Prometheus.

    Args:
        readings: What `collect()` returned.
    """
    return "".join(f"{line}\n" for reading in readings for line in _lines(reading))


def _lines(reading: Reading) -> Iterator[str]:
    gauge, samples = reading
    yield f"# HELP {gauge.name} {gauge.help}"
    yield f"# TYPE {gauge.name} gauge"
    for values, value in samples:
        pairs = zip(gauge.labels, values, strict=True)
        labels = ",".join(f'{name}="{text.translate(ESCAPES)}"' for name, text in pairs)
        yield f"{gauge.name}{{{labels}}} {float(value)!r}" if labels else f"{gauge.name} {float(value)!r}"
