"""Claims and completes by plain sessions: `sessions.py SESSIONS BATCH FIRST`, a thread and a connection for each.

The statements are the product's, by `lifecycle`. The sessions begin when there is a file `go`, claim so many jobs at a
time, run nothing, and end when no job is left. Prints one line of JSON: the jobs of each session, when the last one was
completed, and the CPU seconds of this process from `go` on.
"""

import json
import sys
import threading
import time

import django

django.setup()
import record  # type: ignore[import-not-found]  # noqa: E402 -- it lies beside a copy of this file

from django_pgqueue.db import engine_connection  # noqa: E402 -- as above
from django_pgqueue.db.engine_connection import EngineConnection as Connection  # noqa: E402 -- as above
from django_pgqueue.lifecycle import claims, completions  # noqa: E402 -- as above
from django_pgqueue.lifecycle.types import Claimed, Cursor, ExecutionKey, Lane, Succeeded  # noqa: E402 -- as above

sessions, batch, first = map(int, sys.argv[1:])
LANE, EMPTY = Lane("default", 0), Lane("nothing", 0)
START = Cursor()
WARM = 6
"""Statements of each kind before the start: a session plans each of them once, which takes longer than to claim."""
done = [0] * sessions
ended = [0.0] * sessions
ready = threading.Barrier(sessions + 1)
go = threading.Event()


def serve(place: int) -> None:
    """Claim and complete, from the lane's start whenever the session has come to its end."""
    connection = engine_connection.connect("default", "session")
    for _ in range(WARM):
        claim(connection, place, EMPTY, START)
        completions.succeed(connection, [Succeeded(ExecutionKey(-1, 0.0), None, 0.001, 0.0)])
    ready.wait()
    go.wait()
    cursor, is_left = START, True
    while is_left:
        claimed = claim(connection, place, LANE, cursor)
        is_left = bool(claimed) or cursor != START
        cursor = Cursor(claimed[-1].run_after, claimed[-1].job_id) if claimed else START
        if claimed:
            complete(connection, claimed)
            done[place] += len(claimed)
            ended[place] = time.monotonic()


def claim(connection: Connection, place: int, lane: Lane, cursor: Cursor) -> list[Claimed]:
    """Claim as a worker of its own."""
    return claims.claim(
        connection, {lane: cursor}, limit=batch, free_slots=batch, worker_id=first + place + 1, lease_seconds=60.0
    )


def complete(connection: Connection, claimed: list[Claimed]) -> None:
    """Note the runs, and record the success."""
    for one in claimed:
        [number] = json.loads(one.arguments)["args"]
        record.ran(number)
    completions.succeed(connection, [Succeeded(one.key, None, 0.001, 0.0) for one in claimed])


threads = [threading.Thread(target=serve, args=[place]) for place in range(sessions)]
for thread in threads:
    thread.start()
ready.wait()
(record.HERE / f"{record.READY}-{first}").touch()
while not (record.HERE / record.GO).exists():
    time.sleep(0.002)
used = time.process_time()
go.set()
for thread in threads:
    thread.join()
print(json.dumps({"jobs": done, "ended": max(ended), "cpu_seconds": time.process_time() - used}))
