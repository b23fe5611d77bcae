"""Render the metrics in a format of Prometheus, with the package prometheus_client.

Only the metrics process imports this module, and only for a scrape: the package is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from django_pgqueue.readings import Reading
from django_pgqueue.worker.runtime.health_report import HealthReport

from .metrics import METRICS, Histogram, Metric, Totals

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class WorkerCollector(Collector):
    """Reads the metrics of one worker at each scrape, and adds the figures of the queue that were read for it."""

    def __init__(self, report: HealthReport, readings: Sequence[Reading]) -> None:
        self.report = report
        self.readings = readings

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its samples."""
        totals = Totals(self.report)
        for metric in METRICS:
            yield _family(metric, totals)
        for gauge, samples in self.readings:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family


def _family(metric: Metric, totals: Totals) -> Family:
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in metric.read(totals):
            if isinstance(value, Histogram):
                limits = [*(f"{limit:g}" for limit in value.limits), "+Inf"]
                buckets = list(zip(limits, accumulate(value.counts), strict=True))
                histograms.add_metric(labels, buckets=buckets, sum_value=value.total)
        return histograms
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(totals):
        if not isinstance(value, Histogram):
            family.add_metric(labels, value)
    return family


def render(report: HealthReport, accept: str, readings: Sequence[Reading] = ()) -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that the header `Accept` asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(report, readings))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
