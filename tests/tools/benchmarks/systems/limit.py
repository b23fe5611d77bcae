"""Yardstick (a): our own statements in a bare loop, two connections, a claim beside a finish. Nothing runs a job."""

from tests.tools.benchmarks.systems import ours
from tests.tools.benchmarks.systems.system import Load
from tests.tools.peers.place import Command

LOOP = """
import os
import queue
import sys
import threading

import django

django.setup()
from django_pgqueue.db import engine_connection
from django_pgqueue.lifecycle import claims, completions
from django_pgqueue.lifecycle.types import Cursor, Lane, Succeeded

import record

BATCH = 500
lane = Lane("default", 0)
claimed_batches = queue.Queue(maxsize=2)


def claim():
    connection = engine_connection.connect("default", "claim")
    cursor = Cursor()
    while True:
        claimed = claims.claim(
            connection, {lane: cursor}, limit=BATCH, free_slots=BATCH, worker_id=os.getpid(), lease_seconds=60.0
        )
        if not claimed:
            claimed_batches.put(None)
            return
        cursor = Cursor(claimed[-1].run_after, claimed[-1].job_id)
        claimed_batches.put(claimed)


def finish():
    connection = engine_connection.connect("default", "finish")
    number = 0
    while (claimed := claimed_batches.get()) is not None:
        completions.succeed(connection, [Succeeded(one.key, None, 0.001, 0.0) for one in claimed])
        for _ in claimed:
            record.ran(number)
            number += 1


thread = threading.Thread(target=claim)
thread.start()
finish()
"""


def worker(load: Load) -> Command:
    return ("loop.py",)


SYSTEM = ours.SYSTEM._replace(
    name="limit",
    files={**ours.SYSTEM.files, "loop.py": LOOP},
    worker=worker,
    tasks=frozenset({"noop"}),
    settings="claims and finishes of 500, as many as there are",
    ways=frozenset({"bulk"}),
)
