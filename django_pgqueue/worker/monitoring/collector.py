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

from django_pgqueue.readings import DATABASE, Reading
from django_pgqueue.worker.runtime.health_report import HealthReport

from .metrics import METRICS, Histogram, Metric, Totals

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Part = tuple[tuple[str, ...], Totals]
"""The counts of one supervisor, after the values of the labels that distinguish it from others."""


class WorkerCollector(Collector):
    """Reads the metrics of one worker at each scrape, and adds the figures of the queue that were read for it.

    With several databases, each metric has the label `database`. `readings` then have it already.
    """

    def __init__(self, report: HealthReport, readings: Sequence[Reading]) -> None:
        self.report = report
        self.readings = readings

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its samples."""
        by_database = self.report.by_database
        names = (DATABASE,) if by_database else ()
        parts = [((alias,), Totals(memory)) for alias, memory in by_database.items()]
        for metric in METRICS:
            yield _family(metric, names, parts or [((), Totals(self.report.memory))])
        for gauge, samples in self.readings:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family


def _family(metric: Metric, names: Sequence[str], parts: Sequence[Part]) -> Family:
    """Return a metric with the samples of all parts of a worker. `names` are the labels of the parts."""
    names = [*names, *metric.labels]
    samples = [((*own, *labels), value) for own, totals in parts for labels, value in metric.read(totals)]
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=names)
        for labels, value in samples:
            if isinstance(value, Histogram):
                limits = [*(f"{limit:g}" for limit in value.limits), "+Inf"]
                buckets = list(zip(limits, accumulate(value.counts), strict=True))
                histograms.add_metric(labels, buckets=buckets, sum_value=value.total)
        return histograms
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=names)
    for labels, value in samples:
        if not isinstance(value, Histogram):
            family.add_metric(labels, value)
    return family


def render(report: HealthReport, accept: str, readings: Sequence[Reading] = ()) -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that the header `Accept` asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(report, readings))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
