"""Yardstick (d): jobs of keys, one at a time for each key, by a bare loop of two statements in one transaction.

The first statement locks keys that have jobs, the second one claims where no job runs. There is no lease, no record of
attempts, no retry, and nothing that wakes the loop.
"""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django, ours
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Command

THREADS = 4
TABLE = """
import psycopg

with psycopg.connect() as connection:
    connection.execute('CREATE TABLE job (id bigint PRIMARY KEY, key text COLLATE "C", state smallint DEFAULT 0)')
    connection.execute("CREATE INDEX ON job (key, id) WHERE state = 0")
    connection.execute("CREATE INDEX ON job (key) WHERE state = 1")
"""

ADAPTER = """
import psycopg


def start():
    pass


def enqueue_many(task, numbers):
    with psycopg.connect() as connection:
        with connection.cursor().copy("COPY job (id, key) FROM STDIN") as copy:
            for number in numbers:
                copy.write_row((number, str(number % 1000)))
        connection.execute("ANALYZE job")
"""

LOOP = """
import sys
import threading
import time

import psycopg

import record

LOCK = '''
WITH RECURSIVE found AS (
    (SELECT key, 1 AS place FROM job WHERE state = 0 AND key > %s ORDER BY key LIMIT 1)
    UNION ALL
    SELECT next.key, place + 1
    FROM found
    CROSS JOIN LATERAL (
        SELECT key FROM job WHERE state = 0 AND job.key > found.key ORDER BY key LIMIT 1
    ) AS next
    WHERE place < 100
)
SELECT key, pg_try_advisory_xact_lock(hashtextextended(key, 0)) FROM found
'''
CLAIM = '''
UPDATE job SET state = 1
WHERE id = ANY (ARRAY (
    SELECT first.id
    FROM unnest(%s::text[]) AS given (key)
    CROSS JOIN LATERAL (
        SELECT id FROM job
        WHERE state = 0 AND job.key = given.key
          AND NOT EXISTS (SELECT FROM job AS running WHERE running.state = 1 AND running.key = given.key)
        ORDER BY id
        LIMIT 1
    ) AS first
))
RETURNING id
'''


def serve():
    after = ""
    with psycopg.connect(autocommit=True) as connection:
        while True:
            with connection.transaction():
                found = connection.execute(LOCK, [after]).fetchall()
                keys = [key for key, is_locked in found if is_locked]
                claimed = connection.execute(CLAIM, [keys]).fetchall() if keys else []
            after = found[-1][0] if len(found) == 100 else ""
            for number, in claimed:
                record.ran(number)
            if claimed:
                connection.execute("UPDATE job SET state = 2 WHERE id = ANY (%s)", [[number for number, in claimed]])
            elif not after:
                time.sleep(0.005)


for _ in range(int(sys.argv[1])):
    threading.Thread(target=serve).start()
"""


def worker(load: Load) -> Command:
    return ("loop.py", str(load.concurrency or THREADS))


def unfinished(bench: Bench) -> int:
    return bench.count("SELECT count(*) FROM job WHERE state <> 2")


SYSTEM = System(
    name="two-statements",
    distribution="",
    packages=django.PACKAGES,
    files={"table.py": TABLE, "adapter.py": ADAPTER, "loop.py": LOOP},
    prepare=[("table.py",)],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"locked"}),
    settings=f"{THREADS} threads with a connection each, 100 keys in one transaction",
    path=ours.SYSTEM.path,
    ways=frozenset({"bulk"}),
)
