"""Mutants of the time from a commit to the first line of its job.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant

JOB_QUEUE = ("tests/worker/test_job_queue.py",)

LATENCY = [
    Mutant(
        "the server plans a query for each notification about new jobs",
        old="if payload or channel != CHANNEL:",
        new="if True:",
        inside="notifications._wake_workers",
        tests=("tests/test_enqueue.py",),
    ),
    Mutant(
        "each statement of the engine makes objects of its columns",
        old="if cursor.pgresult.nfields else",
        new="if cursor.description is not None else",
        inside="statements._run",
        tests=("tests/test_db.py",),
    ),
    Mutant(
        "a job that is put just before a thread sleeps is not seen",
        old="if self.queued:  # it may",
        new="if False:  # it may",
        inside="JobQueue.get",
        tests=JOB_QUEUE,
    ),
    Mutant(
        "a thread that is chosen at the end of its time leaves the wake-up for the next sleep",
        old="            lock.acquire()  # the other thread releases it now\n",
        new="",
        inside="JobQueue._stay_awake",
        tests=JOB_QUEUE,
    ),
    Mutant(
        "a job wakes the thread that has slept longest",
        old="self._idle.pop().release()",
        new="self._idle.pop(0).release()",
        inside="JobQueue.put",
        tests=JOB_QUEUE,
    ),
    Mutant(
        "a job wakes all threads",
        old="for _ in executions:",
        new="while True:",
        inside="JobQueue.put",
        tests=JOB_QUEUE,
    ),
]
