"""Celery with Redis, by its first steps: an app with a broker, a result backend to look at, `celery worker`.

`ACKS_LATE` adds the one setting that makes it at-least-once; `CAREFUL` a visibility timeout of 60 s, which a job must
then not exceed, and the setting for a lost child.
"""

from tests.tools.peers.brokers import redis_says
from tests.tools.peers.place import Peer, Place

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
    repair="send the task again, from a record of one's own of what was sent",
    broker="redis",
    has_child=True,
)

LATE = "\n\napp.conf.task_acks_late = True\n"
CAREFUL_SETTINGS = """
app.conf.task_reject_on_worker_lost = True
app.conf.broker_transport_options = {"visibility_timeout": 60}
"""

ACKS_LATE = PEER._replace(
    name="celery-acks-late",
    files={"work.py": WORK + LATE},
    repair="a message unacknowledged: wait for the visibility timeout, 1 h unless set; none: send the task again",
)

CAREFUL = ACKS_LATE._replace(
    name="celery-careful",
    files={"work.py": WORK + LATE + CAREFUL_SETTINGS},
    takes_back=True,
)
