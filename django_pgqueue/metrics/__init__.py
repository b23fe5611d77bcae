"""Serve the figures of the queue to Prometheus. They come from the database, so no worker has to run.

`collect()` reads the gauges, `render()` writes them in Prometheus' text format, and `metrics_view` is a protected view
that does both. The figures of one worker's processes are on its metrics port: see `worker.monitoring`.
With `runworker --queue-metrics`, that port calls `collect()` too.
"""

from django_pgqueue.ground.readings import Gauge, Reading

from .gauges import collect
from .view import metrics_view, render

__all__ = ["Gauge", "Reading", "collect", "metrics_view", "render"]
