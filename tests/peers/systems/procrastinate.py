"""Procrastinate, by its README and quick start: an App, `procrastinate schema --apply`, `procrastinate worker`."""

from tests.peers.brokers import asking
from tests.peers.place import Peer

WORK = """
import procrastinate

import job

app = procrastinate.App(connector=procrastinate.PsycopgConnector())


@app.task(name="hold")
def hold():
    job.hold()
"""
CLI = ("-m", "procrastinate", "--app=work.app")

PEER = Peer(
    name="procrastinate",
    distribution="procrastinate",
    packages=("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
    files={"work.py": WORK},
    prepare=[(*CLI, "schema", "--apply")],
    enqueue=(*CLI, "defer", "hold", "{}"),
    worker=(*CLI, "worker"),
    look=asking("SELECT status || ', attempts ' || attempts FROM procrastinate_jobs"),
    succeeded="succeeded",
    repair="a periodic task of one's own that retries `job_manager.get_stalled_jobs()`, as its documentation shows",
)
