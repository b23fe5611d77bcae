"""Mutants of the fence by claim time, of worker ids, of what a process gives back, and of how it stops.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant

SUPERVISION = "tests/worker/test_supervision.py"
RESTARTED_IDS = "tests/concurrency/test_restarted_ids.py"
CLAIM_TIME = "          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms\n"
FENCED = ("SUCCEED", "SUCCEED_AND_DISCARD", "FAIL", "RELEASE", "END_CANCELLED", "NOTE_PROGRESS", "RESCUE")

LEASES = [
    *(
        Mutant(f"fence without the claim time in {statement}", CLAIM_TIME, "", statement, tests=(RESTARTED_IDS,))
        for statement in FENCED
    ),
    Mutant(
        "settled without the claim time",
        "      AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms\n",
        "",
        "SETTLE",
        tests=(RESTARTED_IDS,),
    ),
    Mutant(
        "orphans without the claim time",
        "          AND floor(1000 * date_part('epoch', claimed_at)) = given.claimed_ms\n",
        "",
        "REMOVE_ORPHANS",
        tests=(RESTARTED_IDS,),
    ),
    Mutant(
        "worker ids come from the sequence",
        "            %(worker_id)s::bigint,\n",
        "            %(worker_id)s::bigint, nextval('pgqueue_worker_id_seq'),\n",
        "REGISTER_WORKER",
        tests=(SUPERVISION,),
    ),
    Mutant(
        "a removed record of a worker stays away",
        "            register(connection, self.options, process.pid, process.worker_id)\n",
        "",
        inside="HeartbeatSender._is_extended",
        tests=(SUPERVISION,),
    ),
    Mutant(
        "a request waits for a notification",
        "            process.state.has_requests = True\n",
        "            pass\n",
        inside="HeartbeatSender._is_extended",
        tests=(SUPERVISION,),
    ),
    Mutant(
        "a request to stop is answered only",
        "                    self.process_state.stop_requested = True\n",
        "                    pass\n",
        inside="RequestAnswers.answer",
        tests=("tests/test_worker_requests.py",),
    ),
    Mutant(
        "a later answer replaces the first",
        "WHERE id = %(request_id)s AND answered_at IS NULL",
        "WHERE id = %(request_id)s",
        "ANSWER_REQUEST",
        tests=("tests/test_worker_requests.py",),
    ),
    Mutant(
        "a request is not audited",
        "            audit.add_audit(connection, AUDITED_AS[kind], chosen, jobs, done_by=by)\n",
        "",
        inside="request",
        tests=("tests/test_worker_requests.py",),
    ),
    Mutant(
        "a request outlives its audit",
        "with transaction.atomic(using=database):",
        "if True:",
        inside="request",
        tests=("tests/test_worker_requests.py",),
    ),
    Mutant(
        "a stack names the job of another worker",
        " AND worker_id = %(worker_id)s::bigint\n    )",
        "\n    )",
        "ADD_REQUEST",
        tests=("tests/test_worker_requests.py",),
    ),
    Mutant(
        "a locked record of a worker counts as extended",
        "        return answer.is_extended\n",
        "        return True\n",
        inside="HeartbeatSender._is_extended",
        tests=(SUPERVISION,),
    ),
    Mutant(
        "no heartbeat says what has started",
        "        if started_ids:\n",
        "        if not started_ids:\n",
        inside="HeartbeatSender._note_started",
        tests=(SUPERVISION,),
    ),
    Mutant(
        "an id in use here is held twice",
        "if any(each.execution_id in ids_in_use for each in job.members)]",
        "if False and ids_in_use]",
        inside="ClaimedIds.in_use",
        tests=("tests/worker/test_fetcher.py",),
    ),
    Mutant(
        "ids whose ends are being written are not in use",
        " | self.completer.ids()",
        "",
        inside="ClaimedIds.in_use",
        tests=("tests/worker/test_fetcher.py",),
    ),
    Mutant(
        "what a claim may still bring is released",
        "        claims_begun = self.claims.begun  #",
        "        claims_begun = 0  #",
        inside="LeaseMonitor._release_unknown",
        tests=("tests/worker/test_lease_monitor.py",),
    ),
    Mutant(
        "work after a commit is interrupted",
        "missing -= self._committed(missing)",
        "pass",
        inside="LeaseMonitor._compare",
        tests=("tests/process/test_application_code.py",),
    ),
    Mutant(
        "work after a commit is interrupted if the job keeps no row",
        "return success_ending(task, running.claimed) is Ending.DISCARDED",
        "return False",
        inside="LeaseMonitor._has_committed",
        tests=("tests/process/test_application_code.py",),
    ),
    Mutant(
        "an atomic job goes on after its deletion",
        "return success_ending(task, running.claimed) is Ending.DISCARDED",
        "return True",
        inside="LeaseMonitor._has_committed",
        tests=("tests/worker/test_lease_monitor.py",),
    ),
    Mutant(
        "claims that ended meanwhile count",
        'self._unknown.get(key, float("inf")) <= claims_ended]',
        'self._unknown.get(key, float("inf")) <= self.claims.ended]',
        inside="LeaseMonitor._release_unknown",
        tests=("tests/worker/test_lease_monitor.py",),
    ),
    Mutant(
        "a claim under way is not counted",
        "with self.claims.claim_under_way():",
        "if True:",
        inside="Fetcher._claim_from",
        tests=("tests/worker/test_fetcher.py",),
    ),
    Mutant(
        "what runs is released before the completer is empty",
        "        self.in_flight.close()\n",
        "        self.in_flight.close()\n        self.last_writes.release_running(0)\n",
        inside="WorkerProcess._end",
        tests=("tests/process/test_stopping.py",),
    ),
    Mutant(
        "what runs at a stop is not interrupted",
        "            pool.interrupt([job.execution_id for job in entry.claimed.members])\n",
        "            pass\n",
        inside="_interrupt",
        tests=("tests/process/test_stopping.py",),
    ),
    Mutant(
        "a job that fails when interrupted is charged",
        "    elif attempt.interrupted and not attempt.timed_out and not is_a(exception, Dead):\n",
        "    elif attempt.interrupted and is_a(exception, *STOPS, asyncio.CancelledError):\n",
        inside="_report_of",
        tests=("tests/process/test_stopping.py",),
    ),
    Mutant(
        "programs of isolated jobs outlive their worker",
        "        _kill_group(pid)\n    os._exit(0)\n",
        "        os.kill(pid, signal.SIGKILL)\n    os._exit(0)\n",
        inside="_main",
        tests=("tests/process/test_isolation.py",),
    ),
    Mutant(
        "programs of a dead isolated process go on",
        "    if ended.si_status != 0:\n",
        "    if False:\n",
        inside="_reap_next",
        tests=("tests/process/test_isolation.py",),
    ),
    Mutant(
        "an isolated process trusts its connections for ever",
        "        vars(connection)[HOOK] = watched.before_use\n",
        "",
        inside="django_connections.before_job",
        tests=("tests/process/test_ended_sessions.py", "tests/worker/test_callbacks.py"),
    ),
    Mutant(
        "a rescue of a job that ran leaves its task unknown",
        "        unknown_since = CASE WHEN NOT mine.started THEN job.unknown_since END,\n",
        "",
        "RESCUE",
        tests=("tests/test_states.py",),
    ),
    Mutant(
        "a release of a job that ran leaves its task unknown",
        "= 'released' AND NOT mine.started THEN",
        "= 'released' THEN",
        "RELEASE",
        tests=("tests/test_states.py",),
    ),
]
