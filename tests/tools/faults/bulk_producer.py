"""A process that enqueues thousands of mixed calls at once, until they are committed, and writes down what it was told:
`python -m tests.tools.faults.bulk_producer --jobs 2400`.

Each try is one transaction with one `enqueue_many()` and a row of the application (`fault_order`) for each call. After
a COMMIT without an answer, it looks whether the jobs are there, and tries again only if they are not.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from typing import Any

import django
import psycopg

django.setup()

from django.db import Error, connection, transaction  # noqa: E402 -- after set-up

from django_pgqueue import enqueue_many  # noqa: E402 -- as above
from tests.tools.faults import failpoints, journal  # noqa: E402 -- as above
from tests.tools.faults.app import tasks  # noqa: E402 -- as above
from tests.tools.faults.app.tasks.keyed import keyed  # noqa: E402 -- as above

TRIES = 10
LONG_KEPT = keyed.using(priority=3)
PLAIN = (tasks.plain, tasks.coroutine, tasks.plain.using(priority=3))


def main() -> int:
    """Enqueue the calls; return 0 when they are committed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, required=True)
    tags = [uuid.uuid4().hex for _ in range(parser.parse_args().jobs)]
    calls = [call_of(place, tag) for place, tag in enumerate(tags)]
    for _ in range(TRIES):
        if attempt(calls, tags) == "committed" or found(tags):
            return 0
        time.sleep(0.1)
    return 1


def call_of(place: int, tag: str) -> Any:
    """Return a call: every other one has a unique key, and the tasks and options change."""
    if place % 2:
        task = (keyed, LONG_KEPT)[place % 3 == 0]
        return task.s(key=f"key {place:06}", tag=tag)
    return PLAIN[place % 3].s(tag=tag)


def attempt(calls: list[Any], tags: list[str]) -> str:
    """Enqueue the calls in one transaction, and say whether that was committed, rolled back, or nobody knows."""
    journal.write_each("enqueue-sent", [{"tag": tag, "ordered": True} for tag in tags])
    reached_commit = False
    try:
        lose_reply_of_commit()
        with transaction.atomic():
            ids = enqueue_many(calls)
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO public.fault_order (tag) SELECT unnest(%s::text[])", [tags])
            assert not ids.duplicates, ids.duplicates
            assert len(set(ids)) == len(calls), len(set(ids))
            reached_commit = True
        answer = "committed"
    except (Error, psycopg.Error) as error:  # a failpoint raises psycopg's own
        answer = "unknown" if reached_commit else "rolled back"
        journal.write("bulk-failed", answer=answer, error=str(error)[:200])
        connection.close()
    journal.write_each("enqueue-returned", [{"tag": tag, "answer": answer} for tag in tags])
    return answer


def lose_reply_of_commit() -> None:
    """Come by the point `commit.done` after each COMMIT of this connection."""
    connection.ensure_connection()
    raw = connection.connection
    commit = type(raw).commit

    def commit_and_come_by() -> None:
        commit(raw)
        failpoints.hit("commit.done", raw)

    raw.commit = commit_and_come_by


def found(tags: list[str]) -> bool:
    """Return whether the jobs are there: all, or none."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgqueue_job WHERE fault_tag(arguments) = ANY (%s)", [tags])
        [count] = cursor.fetchone()
    assert count in (0, len(tags)), f"{count} of {len(tags)} jobs are there"
    journal.write("bulk-found", count=count)
    return bool(count)


if __name__ == "__main__":
    sys.exit(main())
