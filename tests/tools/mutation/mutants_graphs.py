"""Mutants of workflows: who is advanced and when, what a retry restores, how results are passed on, and what is kept.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

GRAPHS = [
    *of_tests(
        ("tests/concurrency/test_workflows.py",),
        Mutant("a job is advanced without its lock", "FOR NO KEY UPDATE SKIP LOCKED", "", "LOCK_WAITING"),
        Mutant(
            "a retry does not lock the dependents", "while missing :=", "while False and", inside="_lock_restorable"
        ),
        Mutant(
            "a retry restores nothing",
            "graphs.restore(connection, retried, limit) if retried else {}",
            "{}",
            inside="_retry_and_restore",
        ),
        Mutant(
            "a worker decides before it has the lock",
            "_decide(connection, locked)",
            "_decide(connection, job_ids)",
            inside="_advance_jobs",
        ),
        Mutant(
            "a dead dependency is ignored",
            "needed.needs_id), 'gone')\n              WHEN 'dead' THEN policy = 'cancel'",
            "needed.needs_id), 'gone')\n              WHEN 'dead' THEN false",
            "ADVANCE",
        ),
        Mutant(
            "a running dependency has ended",
            "WHEN 'running' THEN true\n                WHEN 'dead'",
            "WHEN 'running' THEN false\n                WHEN 'dead'",
            "ADVANCE",
        ),
        Mutant("a blocked job runs", "WHEN 'dead' THEN policy = 'block'\n                WHEN", "WHEN", "ADVANCE"),
        Mutant("a locked job is forgotten", "locked_ids=set(locked)", "locked_ids=set()", inside="advance_page"),
        Mutant(
            "a cancel advances nothing",
            "if ended := [job_id for job_id in nodes if changed[job_id] is State.CANCELLED]:",
            "if ended := []:",
            inside="operator.cancel",
        ),
    ),
    *of_tests(
        ("tests/graphs/test_run.py", "tests/graphs/test_build.py"),
        Mutant(
            "a dependency without a row blocks",
            "WHEN 'gone' THEN policy <> 'ignore'\n              ELSE false\n          END\n        ORDER BY",
            "WHEN 'gone' THEN policy = 'cancel'\n              ELSE false\n          END\n        ORDER BY",
            "ADVANCE",
        ),
        Mutant(
            "cancelled dependents are not marked", "SET has_cancelled = true", "SET has_cancelled = NULL", "ADVANCE"
        ),
        Mutant("a ready job is due in the past", "greatest(job.run_after, ", "least(job.run_after, ", "ADVANCE"),
        Mutant(
            "a retry restores what an operator has cancelled",
            "restored.id AND has_cancelled\n",
            "restored.id\n",
            "RESTORE",
        ),
        Mutant(
            "a retried job does not wait for its dependencies", "OR state = 'ready' AND (", "OR false AND (", "RESTORE"
        ),
        Mutant(
            "a restored job with another dead dependency waits for ever",
            "states |= {job.job_id: job.state for job in _decide(connection, sorted(ends))}",
            "pass",
            inside="graphs.restore",
        ),
        Mutant(
            "succeeded nodes are removed while others are dead",
            "'{waiting,ready,running,dead,cancelled}'",
            "'{waiting,ready,running}'",
            "LOCK_FINISHED",
        ),
        Mutant(
            "cancelled nodes are removed while a dead one can be retried",
            "'{waiting,ready,running,dead}'",
            "'{waiting,ready,running}'",
            "LOCK_FINISHED",
        ),
        *(
            Mutant(f"{name} removes nodes that others need", "job.in_graph IS NULL\n", "true\n", name)
            for name in ("LOCK_FINISHED", "DELETE")
        ),
        Mutant(
            "a node with retention=0 is discarded",
            "if keeps_nothing and any(",
            "if False and any(",
            inside="success_ending",
        ),
        Mutant("a list of results is not compressed", "ranges[-1][1] == job_id - 1", "False", inside="ranges_of"),
        Mutant(
            "arguments that look like markers are taken",
            "        if MARK in value:\n",
            "        if False:\n",
            inside="refuse_markers",
        ),
        Mutant(
            "an unfinished result is None",
            "if node.state != State.SUCCEEDED:",
            "if False:",
            inside="stored_values._decoded",
        ),
        Mutant(
            "a removed result is None",
            "if node.state is None:\n        return Dead(",
            "if node is None:\n        return (",
            inside="stored_values._decoded",
        ),
        Mutant(
            "an optional result fails",
            "        if is_optional:\n",
            "        if False:\n",
            inside="arguments_with_results.result_of",
        ),
        Mutant(
            "results may be ignored", "policy == FailurePolicy.IGNORE and", "False and", inside="Workflow._check_result"
        ),
        Mutant(
            "nodes of other workflows are taken",
            "if node.workflow is not self:",
            "if False:",
            inside="Workflow._place_of",
        ),
        Mutant(
            "a node may have a unique key",
            "if task.unique_key is not None:",
            "if False:",
            inside="Workflow._check_call",
        ),
        Mutant(
            "an enqueued workflow takes nodes",
            'if self._batch is not None:\n            raise InvalidTask("the workflow is enqueued already, and',
            'if False:\n            raise InvalidTask("the workflow is enqueued already, and',
            inside="Workflow._check_call",
        ),
        Mutant(
            "a foreground job advances nothing",
            "    ends.note_reports((report, *report.others))\n",
            "",
            inside="foreground.write",
        ),
    ),
    *of_tests(
        ("tests/worker/test_end_checks.py",),
        Mutant(
            "a locked job is not tried again", "for each in checked.locked}", "for each in ()}", inside="_Pending.check"
        ),
        Mutant("a locked job is tried for ever", "< LOCKED_SECONDS", "< 1e9", inside="_Pending.check"),
        Mutant("every job is checked", "or each.claimed.in_graph\n", "or True\n", inside="ended_jobs"),
        Mutant(
            "the batch of a ready job is checked",
            "if job.state is State.CANCELLED]",
            "]",
            inside="Graphs.check",
        ),
        Mutant(
            "the sweep reads the first page only",
            "self._after_id = swept.last_id or 0",
            "self._after_id = 0",
            inside="EndSweep.run",
        ),
        Mutant(
            "an unused sweep runs often",
            "if is_first and swept.is_empty and",
            "if False and",
            inside="EndSweep.run",
        ),
        Mutant("an unused rare sweep runs often", "and not self._sweep.is_rare", "", inside="EndSweep.run"),
        Mutant(
            "a sweep leaves the batch of a cancelled dependent", "checks.note(checked.ended)", "pass", inside="sweep"
        ),
        Mutant(
            "only the first page of dependents is advanced",
            "if count == FIND_LIMIT:",
            "if False:",
            inside="find_dependents",
        ),
        Mutant(
            "the reaction to 10,000 dependents waits for the last",
            "looked >= FIND_LIMIT",
            "False",
            inside="advance_page",
        ),
        Mutant(
            "the dependents of cancelled jobs wait",
            "if job.state is State.CANCELLED}",
            "if False}",
            inside="advance_page",
        ),
    ),
    *of_tests(
        ("tests/worker/test_later_checks.py",),
        Mutant(
            "the completer does all pages of a cascade",
            "if checked.left and reactor.later is not None:",
            "if False:",
            inside="_Pending.check",
        ),
        Mutant(
            "a page has no end",
            "if not left or looked >= FIND_LIMIT:",
            "if not left:",
            inside="advance_page",
        ),
        Mutant(
            "dependents of the first job come first",
            "job_ids[:-FIND_LIMIT], job_ids[-FIND_LIMIT:]",
            "job_ids[FIND_LIMIT:], job_ids[:FIND_LIMIT]",
            inside="find_dependents",
        ),
        Mutant(
            "each page begins with the first dependent again",
            "{last_needs_id: last_job_id}",
            "{last_needs_id: 0}",
            inside="find_dependents",
        ),
        Mutant("nobody wakes the maintenance", "        self._wake()\n", "", inside="LaterChecks.add"),
        Mutant(
            "the maintenance does the first page only",
            "return due_in_seconds if self._is_running else False",
            "return False",
            inside="LaterChecks.run",
        ),
        Mutant("the maintenance waits for the interval", "or self.is_new()", "", inside="Duty.is_due"),
        Mutant("a sweep drops the rest of a cascade", "checks.note_left(", "(lambda *left: None)(", inside="sweep"),
        Mutant(
            "an outage drops the rest of a cascade",
            "return not self._is_running and not self._added",
            "return not self._added",
            inside="LaterChecks.is_empty",
        ),
        Mutant(
            "what follows other ends has no pages",
            "Reactor(react, publish, later)",
            "Reactor(react, publish)",
            inside="follow",
        ),
    ),
    *of_tests(
        ("tests/worker/test_until_empty.py",),
        Mutant(
            "a worker ends before a cascade",
            " or not self.services.later_checks.is_empty()",
            "",
            inside="WorkerProcess._is_empty",
        ),
    ),
    *of_tests(
        ("tests/worker/test_completer.py", "tests/worker/test_limited_lanes.py"),
        Mutant(
            "the end of a node is written later",
            "(report.claimed.limit_key is not None or report.claimed.in_graph)",
            "report.claimed.limit_key is not None",
            inside="Completer.hand_over",
        ),
        Mutant(
            "nobody waits for a node",
            "(bool(claimed.in_graph) or self.limited.is_busy(claimed.limit_key))",
            "self.limited.is_busy(claimed.limit_key)",
            inside="EndedLimits.is_awaited",
        ),
    ),
    *of_tests(
        ("tests/graphs/test_build.py",),
        Mutant(
            "a node reads the results of any jobs",
            "not all(job_id in found for job_id in range(first, last + 1))",
            "False",
            inside="stored_values._check_amounts",
        ),
        Mutant(
            "data that looks like a marker is stored in other sequences",
            "elif not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):",
            "elif not isinstance(value, list | tuple):",
            inside="refuse_markers",
        ),
    ),
    *of_tests(
        ("tests/graphs/test_claimed_results.py",),
        Mutant(
            "claims keep large results",
            "THEN octet_length(job.result::text) <= %(most_bytes)s::integer",
            "THEN true",
            "READ_RESULTS",
        ),
        Mutant(
            "claims keep many results of a node", "0 < size <= MOST_RESULTS", "0 < size", inside="node_results._needs"
        ),
        Mutant(
            "claims keep any number of results", " and count + size <= MOST_OF_CLAIM", "", inside="node_results._needs"
        ),
        Mutant(
            "a failed read of results loses the claimed jobs",
            "except (*FAILURES, OSError)",
            "except OSError",
            inside="node_results.with_results",
        ),
        Mutant(
            "a coroutine with known results needs a thread",
            "if self.claimed.results is not None:",
            "if False:",
            inside="Attempt._add_results_in_thread",
        ),
    ),
    *of_tests(
        ("tests/graphs/test_plans.py",),
        Mutant(
            "each cancelled dependent is compared with all others",
            "(edge.job_id IN (SELECT id FROM given)) IS true",
            "edge.job_id IN (SELECT id FROM given)",
            "ADVANCE",
        ),
        Mutant(
            "each ready dependent is compared with all failed ones",
            "id NOT IN (SELECT id FROM failed)",
            "id NOT IN (SELECT id FROM failing)",
            "ADVANCE",
        ),
        Mutant(
            "each dependency is compared with all failed ones",
            "needs_id IN (SELECT id FROM failed)",
            "needs_id IN (SELECT id FROM failing)",
            "ADVANCE",
        ),
        Mutant(
            "each restored dependent is compared with all others",
            "needs_id IN (SELECT id FROM found)",
            "needs_id IN (SELECT id FROM restored)",
            "RESTORE",
        ),
        Mutant(
            "newest first is quadratic",
            "IN ('waiting', 'ready', 'running')\n          FROM",
            "IN ('nothing')\n          FROM",
            "FIND_DEPENDENTS",
        ),
    ),
    *of_tests(
        ("tests/graphs/test_retry_from.py",),
        Mutant(
            "dependents run without the node",
            "if plan.root_id not in job_ids:",
            "if False:",
            inside="workflow_retries._record",
        ),
        Mutant(
            "a changed workflow is retried",
            "if shown.read(request) != plan.seen:",
            "if False:",
            inside="retry_from._retry",
        ),
        Mutant("only direct dependents are retried", "found.add(node.job_id)", "pass", inside="nodes_from"),
        Mutant(
            "a job that is cancelled again seems to run",
            'if "cancel" in stopping:',
            "if False:",
            inside="downstream._effect",
        ),
        Mutant(
            "a cancelled dependent counts as a failure",
            " or not before[number] & stopped",
            " or True",
            inside="failed_path",
        ),
    ),
]
