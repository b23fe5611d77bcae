"""Times the polls of a worker that find nothing: `polls.py`.

Prints one line of JSON. A poll scans for lanes and claims from those that are due, as the fetcher does. The polls
follow each other at once, and the first ten do not count: a worker that sleeps between them has colder caches.
"""

import json
import statistics
import time

import django

django.setup()
from django_pgqueue.db import engine_connection  # noqa: E402 -- as above
from django_pgqueue.lifecycle import claims  # noqa: E402 -- as above
from django_pgqueue.worker.claiming.lanes import Lanes  # noqa: E402 -- as above

WARM, TIMES = 10, 200
lanes = Lanes(())
connection = engine_connection.connect("default", "claim")


def poll() -> None:
    lanes.scan_again()  # otherwise there is a pause between two scans, and none after a whole circle
    cursors = lanes.ordered(connection, from_start=True)
    if not cursors:
        return
    if claims.claim(connection, cursors, limit=10, free_slots=10, worker_id=1_000_000, lease_seconds=60.0):
        raise RuntimeError("a job was due")


walls, cpus = [], []
for _ in range(WARM + TIMES):
    began, cpu_began = time.perf_counter(), time.thread_time()
    poll()
    cpus.append((time.thread_time() - cpu_began) * 1000)
    walls.append((time.perf_counter() - began) * 1000)
print(
    json.dumps(
        {
            "poll_ms": statistics.median(walls[WARM:]),
            "poll_ms_p95": statistics.quantiles(walls[WARM:], n=20)[-1],
            "poll_worker_cpu_ms": statistics.median(cpus[WARM:]),
        }
    )
)
