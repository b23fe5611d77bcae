"""Celery with Redis, by its first steps: an app with a broker, a result backend to look at, `celery worker`."""

from tests.peers.brokers import redis_says
from tests.peers.place import Peer, Place

WORK = """
import os

from celery import Celery

import job

socket = os.environ["REDIS_SOCKET"]
app = Celery("work", broker=f"redis+socket://{socket}", backend=f"redis+socket://{socket}")


@app.task
def hold():
    job.hold()
"""
CLI = ("-m", "celery", "-A", "work")


def look(place: Place) -> str:
    """Where the message is, and what the result backend has recorded."""
    waiting, held = redis_says(place, "LLEN", "celery"), redis_says(place, "HLEN", "unacked")
    keys = [key for key in redis_says(place, "KEYS", "celery-task-meta-*").split() if key]
    record = redis_says(place, "GET", keys[0]) if keys else ""
    status = record.split('"status": "')[1].split('"')[0] if record else "none"
    reason = " (WorkerLostError)" if "WorkerLostError" in record else ""
    return f"messages queued {waiting}, unacknowledged {held}; result: {status}{reason}"


PEER = Peer(
    name="celery",
    distribution="celery",
    packages=("celery[redis]==5.7.0",),
    files={"work.py": WORK},
    prepare=[],
    enqueue=(*CLI, "call", "work.hold"),
    worker=(*CLI, "worker", "--loglevel=INFO"),
    look=look,
    succeeded="SUCCESS",
    repair="send the task again, from a record of one's own of what was sent; or set `acks_late`, see below",
    broker="redis",
    has_child=True,
)

ACKS_LATE = PEER._replace(
    name="celery-acks-late",
    files={"work.py": WORK + "\n\napp.conf.task_acks_late = True\n"},
    repair="wait for the visibility timeout, 1 h unless set; for a lost child, `task_reject_on_worker_lost` too",
)
