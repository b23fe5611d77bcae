"""Compare the text of metrics with what the package prometheus_client writes for the same metrics."""

from __future__ import annotations

import itertools
import threading

import pytest

from django_pgqueue.ground import prometheus
from django_pgqueue.ground.prometheus import Family, Fresh, Histogram, families_of, render
from django_pgqueue.ground.readings import DATABASE_UP, Gauge, Reading

NUMBERS = (0.0, 1.0, 2.5, 0.001, 1e-7, -3.0, 999_999.0, 1e6, 1_234_567.0, 1_234_567.125, 1e7, 1e15, 1e22)
LABELLED = ("queue", "task", "outcome")
FAMILIES = [
    Family("pgqueue_attempts", "counter", "Attempts.", LABELLED, [(("mail", 'a"\\\n.é', "dead"), 3.0)]),
    Family("pgqueue_rescued", "counter", "Rescued.", (), [((), 1_500_000.0)]),
    Family("pgqueue_slots", "gauge", "Slots that are free.", ("n",), [((str(n),), n) for n in NUMBERS]),
    Family("pgqueue_empty", "gauge", "No samples.", ("n",), []),
    Family(
        "pgqueue_run_seconds",
        "histogram",
        "Time that attempts ran.",
        ("queue", "task"),
        [(("mail", "send"), Histogram((0.001, 0.5, 60, 3600.0), (1, 0, 2.5, 4, 3), 1234.5))],
    ),
    Family("pgqueue_sizes", "histogram", "Sizes.", (), [((), Histogram((1, 10, 2000), (0, 0, 0, 0), 0.0))]),
]


def by_the_client(families, accept):
    """Return what prometheus_client writes."""
    client = pytest.importorskip("prometheus_client")
    core, exposition = pytest.importorskip("prometheus_client.core"), client.exposition
    kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}

    class Collector:
        def collect(self):
            for name, kind, text, labels, samples in families:
                made = kinds.get(kind, core.HistogramMetricFamily)(name, text, labels=labels)
                for values, value in samples:
                    if kind == "histogram":
                        limits = [*(f"{limit:g}" for limit in value.limits), "+Inf"]
                        buckets = list(zip(limits, itertools.accumulate(value.counts), strict=True))
                        made.add_metric(values, buckets=buckets, sum_value=value.total)
                    else:
                        made.add_metric(values, value)
                yield made

    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    encoder, content_type = exposition.choose_encoder(accept)
    return encoder(registry).decode(), content_type


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4", "application/openmetrics-text"])
def test_render_writes_what_the_client_writes(accept):
    assert render(FAMILIES, accept) == by_the_client(FAMILIES, accept)


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.3"])
def test_render_writes_numbers_that_are_no_numbers(accept):
    numbers = [((text,), float(text)) for text in ("inf", "-inf", "nan")]
    family = Family("pgqueue_age", "gauge", "Age.", ("n",), numbers)
    assert render([family], accept)[0] == by_the_client([family], accept)[0]


def test_render_of_gauges_is_that_of_their_families():
    reading = Reading(Gauge("pgqueue_jobs", "Jobs by state.", ("queue", "state")), ((("mail", "due"), 3),))
    [family] = families_of([reading])
    assert render([family]) == (
        '# HELP pgqueue_jobs Jobs by state.\n# TYPE pgqueue_jobs gauge\npgqueue_jobs{queue="mail",state="due"} 3.0\n',
        prometheus.PLAIN,
    )
    assert render(families_of([Reading(DATABASE_UP, (((), 1.0),))]))[0].endswith("\npgqueue_database_up 1.0\n")


def test_fresh_value_is_read_once_until_it_is_old(monkeypatch):
    now, reads = [100.0], []
    monkeypatch.setattr(prometheus.time, "monotonic", lambda: now[0])
    fresh = Fresh(lambda: reads.append(1) or len(reads), 5.0)
    assert fresh.is_due
    assert [fresh.get(), fresh.get(), fresh.is_due] == [1, 1, False]
    now[0] = 105.0
    assert [fresh.is_due, fresh.get(), fresh.is_due] == [True, 2, False]


def test_fresh_value_is_read_by_one_thread_at_a_time():
    begun, released, found = threading.Event(), threading.Event(), []

    def read():
        begun.set()
        assert released.wait(10.0)
        return object()

    fresh = Fresh(read, 60.0)
    threads = [threading.Thread(target=lambda: found.append(fresh.get())) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(10.0)
    released.set()
    for thread in threads:
        thread.join(10.0)
    assert len(found) == 3 and len(set(found)) == 1
