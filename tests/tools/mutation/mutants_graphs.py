"""Mutants of workflows: who is advanced and when, what a retry restores, how results are passed on, and what is kept.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

LIFECYCLE = "django_pgqueue/lifecycle/graphs.py"
OPERATOR = "django_pgqueue/lifecycle/operator.py"
CHECKS = "django_pgqueue/worker/completion/graph_checks.py"
NODES = "django_pgqueue/enqueue/nodes.py"
PLACEHOLDERS = "django_pgqueue/placeholders.py"
ARGUMENTS = "django_pgqueue/worker/execution/node_arguments.py"
WORKFLOWS = "django_pgqueue/workflows.py"
FOREGROUND = "django_pgqueue/worker/foreground.py"
REPORT = "django_pgqueue/worker/execution/report.py"
CLAIMED_RESULTS = "django_pgqueue/worker/claiming/node_results.py"
DUTIES = "django_pgqueue/worker/maintenance/graph_duties.py"

GRAPHS = [
    *of_tests(
        ("tests/concurrency/test_workflows.py",),
        Mutant("a job is advanced without its lock", "FOR NO KEY UPDATE SKIP LOCKED", "", "LOCK_WAITING"),
        Mutant("a retry does not lock the dependents", "while missing :=", "while False and", path=LIFECYCLE),
        Mutant(
            "a retry restores nothing",
            "graphs.restore(connection, retried, limit) if retried else {}",
            "{}",
            path=OPERATOR,
        ),
        Mutant(
            "a worker decides before it has the lock",
            "_decide(connection, locked)",
            "_decide(connection, job_ids)",
            path=LIFECYCLE,
        ),
        Mutant(
            "a dead dependency is ignored",
            "WHEN 'dead' THEN policy = 'cancel'\n              WHEN",
            "WHEN 'dead' THEN false\n              WHEN",
            "ADVANCE",
        ),
        Mutant(
            "a running dependency has ended",
            "WHEN 'running' THEN true\n                WHEN 'dead'",
            "WHEN 'running' THEN false\n                WHEN 'dead'",
            "ADVANCE",
        ),
        Mutant("a blocked job runs", "WHEN 'dead' THEN policy = 'block'\n                WHEN", "WHEN", "ADVANCE"),
        Mutant("a locked job is forgotten", "set(locked), refused", "set(), refused", path=LIFECYCLE),
        Mutant(
            "a cancel advances nothing",
            "if ended := [job_id for job_id in nodes if changed[job_id] is State.CANCELLED]:",
            "if ended := []:",
            path=OPERATOR,
        ),
    ),
    *of_tests(
        ("tests/graphs/test_run.py", "tests/graphs/test_build.py"),
        Mutant(
            "a dependency without a row blocks",
            "WHEN 'gone' THEN policy <> 'ignore'\n              ELSE",
            "WHEN 'gone' THEN policy = 'cancel'\n              ELSE",
            "ADVANCE",
        ),
        Mutant(
            "cancelled dependents are not marked", "SET has_cancelled = true", "SET has_cancelled = NULL", "ADVANCE"
        ),
        Mutant("a ready job is due in the past", "greatest(job.run_after, ", "least(job.run_after, ", "ADVANCE"),
        Mutant(
            "a retry restores what an operator has cancelled",
            "needs_id = restored.id AND has_cancelled OFFSET 0",
            "needs_id = restored.id OFFSET 0",
            "RESTORE",
        ),
        Mutant(
            "a retried job does not wait for its dependencies", "OR state = 'ready' AND (", "OR false AND (", "RESTORE"
        ),
        Mutant(
            "a restored job with another dead dependency waits for ever",
            "states |= {job.job_id: job.state for job in _decide(connection, sorted(waiting))}",
            "pass",
            path=LIFECYCLE,
        ),
        Mutant(
            "succeeded nodes are removed while others are dead",
            "'{waiting,ready,running,dead,cancelled}'",
            "'{waiting,ready,running}'",
            "PRUNE",
        ),
        Mutant(
            "cancelled nodes are removed while a dead one can be retried",
            "'{waiting,ready,running,dead}'",
            "'{waiting,ready,running}'",
            "PRUNE",
        ),
        *(
            Mutant(f"{name} removes nodes that others need", "job.in_graph IS NULL\n", "true\n", name)
            for name in ("PRUNE", "PRUNE_TASK", "DELETE", "ARCHIVE")
        ),
        Mutant("a node with retention=0 is discarded", "if keeps_nothing and any(", "if False and any(", path=REPORT),
        Mutant("a list of results is not compressed", "ranges[-1][1] == job_id - 1", "False", path=PLACEHOLDERS),
        Mutant(
            "arguments that look like markers are taken",
            "        if MARK in value:\n",
            "        if False:\n",
            path=PLACEHOLDERS,
        ),
        Mutant("an unfinished result is None", "if node.state != State.SUCCEEDED:", "if False:", path=ARGUMENTS),
        Mutant(
            "a removed result is None",
            "if node is None:\n        return Dead(",
            "if node is None:\n        return (",
            path=ARGUMENTS,
        ),
        Mutant("an optional result fails", "        if is_optional:\n", "        if False:\n", path=ARGUMENTS),
        Mutant("results may be ignored", "policy == FailurePolicy.IGNORE and", "False and", path=WORKFLOWS),
        Mutant("nodes of other workflows are taken", "if node.workflow is not self:", "if False:", path=WORKFLOWS),
        Mutant("a node may have a unique key", "if task.unique_key is not None:", "if False:", path=WORKFLOWS),
        Mutant(
            "an enqueued workflow takes nodes",
            'if self._batch is not None:\n            raise InvalidTask("the workflow is enqueued already, and',
            'if False:\n            raise InvalidTask("the workflow is enqueued already, and',
            path=WORKFLOWS,
        ),
        Mutant(
            "a foreground job advances nothing",
            "graph_ends.advance(connection, nodes, after",
            "graph_ends.advance(connection, [], after",
            path=FOREGROUND,
        ),
    ),
    *of_tests(
        ("tests/worker/test_graph_checks.py",),
        Mutant("a locked job is not tried again", "for job_id in locked}", "for job_id in ()}", path=CHECKS),
        Mutant("a locked job is tried for ever", "< LOCKED_SECONDS", "< 1e9", path=CHECKS),
        Mutant("every job is checked", "if r.claimed.in_graph and", "if", path=CHECKS),
        Mutant(
            "the batch of a ready job is checked",
            "and job.state is State.CANCELLED",
            "",
            path="django_pgqueue/graph_ends.py",
        ),
        Mutant(
            "the sweep reads the first page only",
            "self._swept_id = swept.last_id or 0",
            "self._swept_id = 0",
            path=DUTIES,
        ),
        Mutant("an unused sweep runs often", "if is_first and swept.is_empty:", "if False:", path=DUTIES),
        Mutant("only the first page of dependents is advanced", "if count < FIND_LIMIT:", "if True:", path=LIFECYCLE),
        Mutant(
            "the reaction to 10,000 dependents waits for the last",
            "                on_advanced(advanced)\n",
            "                pass\n        if jobs and not pending:\n            on_advanced(jobs)\n",
            path=LIFECYCLE,
        ),
        Mutant(
            "the dependents of cancelled jobs wait", "if job.state is State.CANCELLED}", "if False}", path=LIFECYCLE
        ),
    ),
    *of_tests(
        ("tests/worker/test_completer.py", "tests/worker/test_limited_lanes.py"),
        Mutant(
            "the end of a node is written later",
            "(report.claimed.limit_key is not None or report.claimed.in_graph)",
            "report.claimed.limit_key is not None",
            path="django_pgqueue/worker/completion/completer.py",
        ),
        Mutant(
            "nobody waits for a node",
            "(bool(claimed.in_graph) or self.limited.is_busy(claimed.limit_key))",
            "self.limited.is_busy(claimed.limit_key)",
            path="django_pgqueue/worker/claiming/ended_limits.py",
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
        Mutant("claims keep many results of a node", "0 < size <= MOST_RESULTS", "0 < size", path=CLAIMED_RESULTS),
        Mutant("claims keep any number of results", " and count + size <= MOST_OF_CLAIM", "", path=CLAIMED_RESULTS),
        Mutant(
            "a failed read of results loses the claimed jobs",
            "except (*lifecycle.FAILURES, OSError)",
            "except OSError",
            path=CLAIMED_RESULTS,
        ),
        Mutant(
            "a coroutine with known results needs a thread",
            "if self.claimed.results is not None:\n                self._add_results()",
            "if False:\n                self._add_results()",
            path="django_pgqueue/worker/execution/attempt.py",
        ),
    ),
    *of_tests(
        ("tests/graphs/test_plans.py",),
        Mutant(
            "newest first is quadratic",
            "IN ('waiting', 'ready', 'running')\n          FROM",
            "IN ('nothing')\n          FROM",
            "FIND_DEPENDENTS",
        ),
    ),
]
