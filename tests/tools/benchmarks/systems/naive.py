"""Yardsticks (b) and (c): a plain table, and a thread with a connection for each slot, which claims one job at a time,
holds its row for as long as the job takes, and commits. `FOR UPDATE` lets all wait for the same row; `SKIP LOCKED`
does not.
"""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django, ours
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

TABLE = """
import psycopg

with psycopg.connect() as connection:
    connection.execute("CREATE TABLE job (id bigint PRIMARY KEY, done boolean NOT NULL DEFAULT false)")
    connection.execute("CREATE INDEX ON job (id) WHERE NOT done")
"""

ADAPTER = """
import psycopg


def start():
    pass


def enqueue_many(task, numbers):
    with psycopg.connect() as connection, connection.cursor().copy("COPY job (id) FROM STDIN") as copy:
        for number in numbers:
            copy.write_row((number,))
"""

LOOP = """
import sys
import threading
import time

import psycopg

import record

CLAIM = "SELECT id FROM job WHERE NOT done ORDER BY id LIMIT 1 FOR UPDATE" + sys.argv[2]


def slot():
    with psycopg.connect() as connection:
        while True:
            with connection.transaction():
                found = connection.execute(CLAIM).fetchone()
                if found:
                    time.sleep(0.05)
                    record.ran(found[0])
                    connection.execute("UPDATE job SET done = true WHERE id = %s", found)
            if not found:
                time.sleep(0.05)


for _ in range(int(sys.argv[1])):
    threading.Thread(target=slot).start()
"""
UNFINISHED = "SELECT count(*) FROM job WHERE NOT done"


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


def naive(name: str, more: str) -> System:
    def worker(load: Load) -> Command:
        return ("loop.py", str(load.concurrency), more)

    return System(
        name=name,
        distribution="",
        packages=django.PACKAGES,
        files={"table.py": TABLE, "adapter.py": ADAPTER, "loop.py": LOOP},
        prepare=[("table.py",)],
        worker=worker,
        unfinished=unfinished,
        tasks=frozenset({"nap"}),
        settings="one connection for each slot, one job at a time, its row locked while it runs",
        path=ours.SYSTEM.path,
        ways=frozenset({"bulk"}),
    )


FOR_UPDATE = naive("for-update", "")
SKIP_LOCKED = naive("skip-locked", " SKIP LOCKED")
