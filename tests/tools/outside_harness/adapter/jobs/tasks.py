"""The task of the benchmark, as a plain function and as a coroutine. Each job waits for JOB_WORK_MS.

Jobs run in worker processes, and the adapter needs their latencies. A thread of each worker process therefore sends the
latencies of the jobs that have ended, every 100 ms, in a datagram to the Unix socket BENCH_TELEMETRY.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from array import array
from typing import Any

from django.dispatch import receiver

from django_pgqueue import task
from django_pgqueue.signals import worker_process_started

WORK_SECONDS = int(os.environ.get("JOB_WORK_MS", "1")) / 1000
SEND_SECONDS = 0.1
JOBS_IN_DATAGRAM = 4_000
MAX_LATENCY_US = 0xFFFFFFFF


class Latencies:
    """The latencies of the jobs that have ended since the last datagram, in microseconds.

    Each job adds two values: from `enqueue()` to its start, and from `enqueue()` to its end.
    """

    def __init__(self) -> None:
        self._values = array("I")
        self._lock = threading.Lock()

    def add(self, enqueued_at_us: int, started_at_us: int) -> None:
        """Add a job that ends now."""
        until_start, until_end = started_at_us - enqueued_at_us, _now_us() - enqueued_at_us
        with self._lock:
            self._values.extend(min(max(0, latency), MAX_LATENCY_US) for latency in (until_start, until_end))

    def take(self) -> array[int]:
        """Return the values, and forget them."""
        with self._lock:
            taken, self._values = self._values, array("I")
        return taken


latencies = Latencies()


@task(name="bench_job", queue_name="bench", store_result=False)
def bench_job(seq: int, enqueued_at_us: int, padding: str) -> None:
    """Wait in a thread."""
    started_at_us = _now_us()
    if WORK_SECONDS:
        time.sleep(WORK_SECONDS)
    latencies.add(enqueued_at_us, started_at_us)


@task(name="bench_job_async", queue_name="bench", store_result=False)
async def bench_job_async(seq: int, enqueued_at_us: int, padding: str) -> None:
    """Wait in the event loop."""
    started_at_us = _now_us()
    if WORK_SECONDS:
        await asyncio.sleep(WORK_SECONDS)
    latencies.add(enqueued_at_us, started_at_us)


def _now_us() -> int:
    return time.time_ns() // 1_000


@receiver(worker_process_started)
def start_sending(**_: Any) -> None:
    """Start the thread that sends the latencies of this worker process."""
    if path := os.environ.get("BENCH_TELEMETRY"):
        threading.Thread(target=_send_latencies, args=(path,), daemon=True, name="telemetry").start()


def _send_latencies(path: str) -> None:
    """Send latencies until the adapter has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.connect(path)
        while True:
            time.sleep(SEND_SECONDS)
            taken = latencies.take()
            for position in range(0, len(taken), 2 * JOBS_IN_DATAGRAM):
                try:
                    out.send(taken[position : position + 2 * JOBS_IN_DATAGRAM].tobytes())
                except OSError:
                    return
