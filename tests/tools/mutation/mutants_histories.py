"""Mutants that a history of many transitions, or two sessions in a rare order, detect: of workflows and durable steps.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

HISTORIES = [
    *of_tests(
        ("tests/test_stateful_workflows.py",),
        Mutant(
            "a retry reports a node that is cancelled again",
            "None if state in FINISHED else state.value",
            "state.value",
            inside="_retry_and_restore",
        ),
        Mutant(
            "the sweep of waiting jobs misses failed dependencies",
            "WHERE fails IS NOT false OR waits IS NOT true",
            "WHERE waits IS NOT true",
            "FIND_MISSED",
        ),
        Mutant(
            "the sweep of waiting jobs forgets the policy ignore",
            "WHERE fails IS NOT false OR waits IS NOT true",
            "WHERE fails",
            "FIND_MISSED",
        ),
        Mutant(
            "a restored job keeps the marks of its cancellation",
            "SET has_cancelled = NULL",
            "SET has_cancelled = true",
            "RESTORE",
        ),
        Mutant(
            "only the direct dependents are restored",
            "    WHERE (SELECT state FROM pgqueue_job WHERE id = edge.job_id) = 'cancelled'\n),\nfound",
            "    WHERE edge.job_id = ANY (%(job_ids)s::bigint[])\n),\nfound",
            "RESTORE",
        ),
        Mutant(
            "an end by cancellation is no failure of a batch",
            "WHERE batch_id = batch.id AND state IN ('dead', 'cancelled') LIMIT 1",
            "WHERE batch_id = batch.id AND state = 'dead' LIMIT 1",
            "END_BATCHES",
        ),
        Mutant(
            "a waiting job does not keep its batch open",
            "state IN ('waiting', 'ready', 'running')",
            "state IN ('ready', 'running')",
            "END_BATCHES",
        ),
        Mutant(
            "a removed dead job is forgotten by its batch",
            "WHERE batch_id = batch.id AND state IN ('dead', 'cancelled')\n",
            "WHERE batch_id = batch.id AND false\n",
            "END_BATCHES",
        ),
        Mutant(
            "a callback is added at each look",
            "batch.failed_at IS NULL AND job.has_failed AS fails",
            "job.has_failed AS fails",
            "END_BATCHES",
        ),
        Mutant(
            "a deleted node leaves its edges behind",
            "pgqueue_dependency WHERE job_id = ANY",
            "pgqueue_dependency WHERE false AND job_id = ANY",
            "DELETE",
        ),
    ),
    *of_tests(
        ("tests/test_stateful_steps.py",),
        Mutant(
            "a lost attempt stores steps",
            "  AND execution.outcome IS NULL\nFOR NO KEY UPDATE",
            "FOR NO KEY UPDATE",
            "STORE_STEP",
        ),
        Mutant(
            "a lost attempt is suspended",
            "          AND execution.outcome IS NULL\n          AND job.execution_id = execution.id\n",
            "",
            "SUSPEND",
        ),
        Mutant("a suspended job expires", "        expires_at = NULL,\n", "", "SUSPEND"),
        Mutant("a job receives an event twice", "  AND id <> ALL (", "  AND -1 <> ALL (", "FIND_EVENT"),
        Mutant(
            "a received event wakes again",
            "event.id <> ALL (",
            "-1 <> ALL (",
            "WAKE_SUSPENDED",
        ),
        Mutant(
            "a cancelled job is not undone",
            "WHERE ended.state <> 'succeeded'",
            "WHERE ended.state = 'dead'",
            "COMPENSATE",
        ),
        Mutant(
            "a step is undone beside a later one",
            "WHERE later.job_id = ended.id AND later.compensation_id IS NOT NULL",
            "WHERE false",
            "COMPENSATE",
        ),
        Mutant(
            "a job is pruned before it is undone",
            "(ARRAY (SELECT id FROM old)) AND compensation IS NOT NULL",
            "(ARRAY (SELECT id FROM old)) AND false",
            "LOCK_FINISHED",
        ),
        Mutant(
            "a replaced job keeps its steps",
            "DELETE FROM pgqueue_step WHERE job_id",
            "DELETE FROM pgqueue_step WHERE false AND job_id",
            "ENQUEUE_OR_REPLACE",
        ),
    ),
    *of_tests(
        ("tests/steps/test_replaced.py",),
        *(
            Mutant(
                f"a job that has something to undo is replaced by {statement}",
                "AND compensation IS NOT NULL LIMIT 1",
                "AND false LIMIT 1",
                statement,
            )
            for statement in ("ENQUEUE_OR_REPLACE", "ENQUEUE_MANY_OR_REPLACE", "REPLACE_FOR_PERIOD")
        ),
    ),
    *of_tests(
        ("tests/concurrency/test_sagas.py",),
        Mutant(
            "a job that has changed since the snapshot is compensated",
            "          AND finished_at = (SELECT finished_at FROM pgqueue_job AS seen WHERE seen.id = given.id)\n",
            "",
            "COMPENSATE",
        ),
    ),
    *of_tests(
        ("tests/steps/test_replaced.py",),
        Mutant(
            "a step that was stored while the replacing call waited is kept",
            "if has_steps and replaced:",
            "if False:",
            inside="_steps_removed",
        ),
    ),
    *of_tests(
        ("tests/concurrency/test_workflows.py",),
        Mutant(
            "nodes are retried one by one before their dependencies",
            "nodes = graphs.nodes_of(connection, job_ids)",
            "nodes: list[int] = []",
            inside="_retry_order",
        ),
    ),
    *of_tests(
        ("tests/test_stateful_workflows.py", "tests/batches/test_batch.py"),
        Mutant(
            "a nested batch that failed is no failure",
            "WHERE completed_at IS NOT NULL AND succeeded_at IS NULL",
            "WHERE false",
            "END_BATCHES",
        ),
    ),
]
