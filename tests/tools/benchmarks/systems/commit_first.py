"""Yardstick: the pattern of many articles on `SKIP LOCKED`, with a plain table and a connection for each slot.

One statement claims one job and commits. Then the job runs, and a second statement records its success. The table has
the columns and the partial index that these articles propose. There are no heartbeats, attempts, leases or retries.
"""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django, ours
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

TABLE = """
import psycopg

with psycopg.connect() as connection:
    connection.execute(
        "CREATE TABLE job (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'pending', payload jsonb NOT NULL, "
        "priority int NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(), attempts int NOT NULL DEFAULT 0, "
        "locked_by text, locked_at timestamptz, finished_at timestamptz)"
    )
    connection.execute("CREATE INDEX ON job (priority DESC, run_at, id) WHERE state = 'pending'")
"""

ADAPTER = """
import psycopg


def start():
    pass


def enqueue_many(task, numbers):
    with psycopg.connect() as connection, connection.cursor().copy("COPY job (id, payload) FROM STDIN") as copy:
        for number in numbers:
            copy.write_row((number, '{"number": %d}' % number))
"""

LOOP = """
import signal
import sys
import threading
import time

import psycopg

import record

CLAIM = '''
    UPDATE job SET state = 'running', locked_by = %s, locked_at = now(), attempts = attempts + 1
    WHERE id = (
        SELECT id FROM job WHERE state = 'pending' AND run_at <= now()
        ORDER BY priority DESC, run_at, id
        LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING id, payload
'''
COMPLETE = "UPDATE job SET state = 'completed', finished_at = now(), locked_by = NULL, locked_at = NULL WHERE id = %s"
SECONDS = {"noop": 0.0, "nap": 0.05}[sys.argv[2]]
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())


def slot(name):
    with psycopg.connect(autocommit=True) as connection:
        while not stopping.is_set():
            found = connection.execute(CLAIM, (name,)).fetchone()
            if found is None:
                stopping.wait(0.05)
                continue
            if SECONDS:
                time.sleep(SECONDS)
            record.ran(found[0])
            connection.execute(COMPLETE, found[:1])


slots = [threading.Thread(target=slot, args=(f"slot-{place}",)) for place in range(int(sys.argv[1]))]
for each in slots:
    each.start()
while not stopping.wait(1):
    pass
for each in slots:
    each.join()
"""
UNFINISHED = "SELECT count(*) FROM job WHERE finished_at IS NULL"


def worker(load: Load) -> Command:
    return ("loop.py", str(load.concurrency or 10), load.task)


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


SYSTEM = System(
    name="commit-first",
    distribution="",
    packages=django.PACKAGES,
    files={"table.py": TABLE, "adapter.py": ADAPTER, "loop.py": LOOP},
    prepare=[("table.py",)],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset(),
    settings="one connection for each slot, one job in each claim, two commits for each job",
    path=ours.SYSTEM.path,
    ways=frozenset({"bulk"}),
)
