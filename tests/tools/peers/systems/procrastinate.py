"""Procrastinate, by its README and quick start: an App, `procrastinate schema --apply`, `procrastinate worker`.

`RETRYING` adds what its documentation shows under "Retry stalled jobs", run each minute instead of each tenth.
"""

from tests.tools.peers.brokers import asking
from tests.tools.peers.place import Peer

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
    repair="retry what `job_manager.get_stalled_jobs()` finds, by hand or in a periodic task as documented",
)

RETRYING_TASK = """

@app.periodic(cron="* * * * *")
@app.task(queueing_lock="retry_stalled", pass_context=True)
async def retry_stalled(context, timestamp):
    for stalled in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(stalled)
"""

RETRYING = PEER._replace(
    name="procrastinate-retrying",
    files={"work.py": WORK + RETRYING_TASK},
    look=asking("SELECT status || ', attempts ' || attempts FROM procrastinate_jobs WHERE task_name = 'hold'"),
    takes_back=True,
)
