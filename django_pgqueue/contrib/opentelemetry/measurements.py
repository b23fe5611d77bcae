"""Count and time jobs with OpenTelemetry's metrics, and flush both providers before a process ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from opentelemetry import metrics, trace

from django_pgqueue import signals

SCOPE: Final = "django_pgqueue"
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 1800)
"""Bounds of the buckets of durations: those of the conventions up to 10 s, and further ones for long jobs."""
FLUSH_MS: Final = 900
"""How long each of the two providers may take to send what it has. The receivers have two seconds together."""
UID: Final = "pgqueue-opentelemetry"


class Measurements:
    """The instruments of one process."""

    def __init__(self) -> None:
        meter = metrics.get_meter(SCOPE)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that have ended."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of attempts.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        signals.job_enqueued.connect(self.enqueued, weak=False, dispatch_uid=UID)
        signals.worker_process_stopping.connect(flush, dispatch_uid=UID)

    def enqueued(self, sender: str, queue_name: str, **_: Any) -> None:
        """Count a job. A receiver of `job_enqueued`."""
        operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
        names = {"messaging.destination.name": queue_name, "pgqueue.task.name": sender}
        self._sent.add(1, {"messaging.system": "pgqueue", **operation, **names})

    def processed(self, seconds: float, attributes: dict[str, str], error_type: str) -> None:
        """Time a call of a task's function. `error_type` is empty if it has not failed."""
        self._duration.record(seconds, _with_error(attributes, error_type))

    def consumed(self, attributes: dict[str, str], error_types: Iterable[str]) -> None:
        """Count the attempts of a call, by their errors. An empty type is an attempt that has not failed."""
        for error_type, count in Counter(error_types).items():
            self._consumed.add(count, _with_error(attributes, error_type))


def _with_error(attributes: dict[str, str], error_type: str) -> dict[str, str]:
    return {**attributes, "error.type": error_type} if error_type else attributes


def flush(**_: Any) -> None:
    """Send the spans and the measurements of this process. A receiver of `worker_process_stopping`."""
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        force_flush = getattr(provider, "force_flush", None)  # the API's own providers have none
        if force_flush is not None:
            with suppress(Exception):  # an exporter that fails must not keep the other provider from its flush
                force_flush(FLUSH_MS)
