"""Mutants of chunks, workflows and retries: what one row, or one node, must not do to others.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant

TRUST_FLOW = [
    Mutant(
        "a row of another task joins a chunk",
        old=" AND NOT follows_odd",
        new="",
        statement="CLAIM_CHUNK",
        tests=("tests/chunks/test_odd_rows.py",),
    ),
    Mutant(
        "a row of another task is a chunk",
        old="tuple(others) if is_chunk else None",
        new="tuple(others)",
        inside="chunks.claim_chunk",
        tests=("tests/chunks/test_odd_rows.py",),
    ),
    Mutant(
        "a claimed row of another task moves the cursor of the plain lane",
        old="if job.chunk_key is not None:",
        new="if job.others is not None:",
        inside="lane_of",
        tests=("tests/chunks/test_odd_rows.py",),
    ),
    Mutant(
        "a copy keeps the chunk key of another task",
        old="        and not is_chunk_key(job.limit_key)\n",
        new="",
        inside="copies._limit_columns",
        tests=("tests/test_call_limits.py",),
    ),
    Mutant(
        "a ready dependent stays ready when its dependency is retried",
        old="WHERE (SELECT state FROM pgqueue_job WHERE id = edge.job_id) = 'ready'",
        new="WHERE false",
        statement="RESTORE",
        tests=("tests/graphs/test_retry.py",),
    ),
    Mutant(
        "a node whose dependency runs again is dead",
        old="if node.state not in FINISHED:",
        new="if False:",
        inside="node_arguments._decoded",
        tests=("tests/graphs/test_retry.py",),
    ),
    Mutant(
        "a worker does not make a postponed node wait",
        old="found.update(graphs.postpone(connection, self._postponed))",
        new="pass",
        inside="GraphChecks.check",
        tests=("tests/worker/test_graph_checks.py",),
    ),
    Mutant(
        "the end of a dependency beside its postponed dependent is missed",
        old="found_ids=found)",
        new="found_ids=self._locked_since.keys())",
        inside="GraphChecks.check",
        tests=("tests/worker/test_graph_checks.py",),
    ),
    Mutant(
        "the foreground does not make a postponed node wait",
        old="lifecycle.graphs.postpone(connection, ids)",
        new="ids",
        inside="foreground.write",
        tests=("tests/graphs/test_retry.py",),
    ),
    Mutant(
        "a dependent of a job that is cancelled again waits for the sweep",
        old="if State.CANCELLED in states.values():",
        new="if False:",
        inside="graphs.restore",
        tests=("tests/graphs/test_retry.py",),
    ),
    Mutant(
        "run_now leaves out jobs that wait for others",
        old="job.state IN ('ready', 'waiting')",
        new="job.state IN ('ready')",
        statement="RUN_NOW",
        tests=("tests/graphs/test_retry.py", "tests/test_states.py"),
    ),
    Mutant(
        "a retry of a queryset revives the first job of a key",
        old="self._keyed_ids[::-1]",
        new="self._keyed_ids",
        inside="ChosenJobs._in_order",
        tests=("tests/test_changed_jobs.py",),
    ),
    Mutant(
        "a queryset counts no dependents",
        old="chosen.note_changed(others)",
        new="pass",
        inside="JobQuerySet._in_batches",
        tests=("tests/test_changed_jobs.py",),
    ),
    Mutant(
        "a queryset counts dependents that it does not have",
        old="and self._ids[place] == job_id",
        new="",
        inside="ChosenJobs.note_changed",
        tests=("tests/test_changed_jobs.py",),
    ),
    Mutant(
        "a command or an action revives the first job of a key",
        old="superseded.add(earlier)",
        new="superseded.add(job_id)",
        inside="operations.superseded_ids",
        tests=("tests/test_changed_jobs.py", "tests/admin/test_job_actions.py"),
    ),
    Mutant(
        "an atomic chunk commits the writes of a job whose result cannot be stored",
        old="is_undone = self.task.atomic and",
        new="is_undone = False and",
        inside="ChunkAttempt._succeeded",
        tests=("tests/chunks/test_run.py",),
    ),
    Mutant(
        "a step runs in any thread",
        old="if ident != self._ident:",
        new="if False:",
        inside="StepThread.check",
        tests=("tests/steps/test_threads.py",),
    ),
    Mutant(
        "the first thread that calls a step of a coroutine owns its steps",
        old='if self._ident is None and hasattr(SyncToAsync.threadlocal, "main_event_loop"):',
        new="if self._ident is None:",
        inside="StepThread.check",
        tests=("tests/steps/test_threads.py",),
    ),
    Mutant(
        "a worker with --until-empty waits for a held key",
        old=" and not result.is_held",
        new="",
        inside="LimitedLanes._learn",
        tests=("tests/worker/test_until_empty.py",),
    ),
    Mutant(
        "a worker with --until-empty waits for a paused row with a chunk key",
        old="self.chunks.note_unclaimable(lane)",
        new="pass",
        inside="Lanes.postpone_chunk",
        tests=("tests/chunks/test_odd_rows.py",),
    ),
]
