"""Mutants of the time from a commit to the first line of its job.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant

JOB_QUEUE = ("tests/worker/test_job_queue.py",)
FETCHER = ("tests/worker/test_fetcher.py",)

LATENCY = [
    Mutant(
        "the server plans a query for each notification about new jobs",
        old="        if payload:\n            raw.execute",
        new="        if True:\n            raw.execute",
        inside="notifications._wake_workers",
        tests=("tests/test_enqueue.py",),
    ),
    Mutant(
        "each statement of the engine makes objects of its columns",
        old="if cursor.pgresult is not None and cursor.pgresult.nfields else",
        new="if cursor.description is not None else",
        inside="EngineConnection.run_statement",
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
    Mutant(
        "an announced job is handed over before the connection is returned",
        old="            self._submit(claimed)\n        if claimed:",
        new="                self._submit(claimed)\n        if claimed:",
        inside="Fetcher._claim_before_scan",
        tests=FETCHER,
    ),
    Mutant(
        "the fetcher keeps the interpreter from the slot that starts an announced job",
        old="START_SECONDS if self.in_flight.waiting and not self.lanes.is_resting else 0.0",
        new="0.0",
        inside="Fetcher.tick",
        tests=FETCHER,
    ),
    Mutant(
        "the fetcher waits although the announced job has started",
        old="if self.in_flight.waiting and not",
        new="if not",
        inside="Fetcher.tick",
        tests=FETCHER,
    ),
    Mutant(
        "an announced claim begins at the start of its lane",
        old="self._cursors.get(lane, START)",
        new="START",
        inside="Lanes.recent_lanes",
        tests=FETCHER,
    ),
    Mutant(
        "each statement of the engine has a cursor of its own",
        old="cursor = self._cursor = self.cursor()",
        new="cursor = self.cursor()",
        inside="EngineConnection.run_statement",
        tests=("tests/test_db.py",),
    ),
    Mutant(
        "a process without limits prepares for keys after each notification",
        old="if self._has_keys:\n            self.keyed.expect_jobs()",
        new="if True:\n            self.keyed.expect_jobs()",
        inside="Lanes.expect_jobs",
        tests=("tests/worker/test_lanes.py",),
    ),
    Mutant(
        "an error of a statement leaves the connection open",
        old="                link.after_error()",
        new="                pass",
        inside="_Turn.__exit__",
        tests=("tests/worker/test_shared_connections.py",),
    ),
    Mutant(
        "an atomic block without autocommit keeps its notification",
        " and connection.commit_on_exit",
        "",
        inside="wake_workers_after_commit",
        tests=("tests/worker/test_waker.py",),
    ),
]
