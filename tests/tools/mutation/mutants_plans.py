"""Mutants of clauses that only choose an index: without them, a statement reads the open rows of all jobs.

The results stay the same, so only the tests of plans can kill them. `mutation` explains what a mutant is and how
mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

PLANS = [
    *of_tests(
        ("tests/test_plans.py",),
        Mutant(
            "a compensation reads all that are pending",
            "CASE WHEN step.compensation IS NULL THEN false ELSE true END",
            "step.compensation IS NOT NULL",
            "COMPENSATE",
        ),
        Mutant(
            "lost executions are looked up in all open ones",
            "AND (SELECT true FROM pgqueue_execution WHERE id = page.execution_id AND outcome IS NULL) IS NULL",
            "AND NOT EXISTS (SELECT FROM pgqueue_execution WHERE id = page.execution_id + 0 AND outcome IS NULL)",
            "sql.stranded.ABANDONED",
        ),
    ),
    *of_tests(
        ("tests/graphs/test_plans.py",),
        Mutant(
            "the end of a node reads all waiting jobs",
            "WHERE job.id = decided.id\n",
            "WHERE job.id = decided.id AND job.state = 'waiting'\n",
            "ADVANCE",
        ),
    ),
    *of_tests(
        ("tests/batches/test_plans.py",),
        Mutant(
            "the end of a job reads all open batches",
            "FROM (SELECT completed_at FROM pgqueue_batch WHERE parent_id = batch.id OFFSET 0) AS nested",
            "FROM (SELECT completed_at FROM pgqueue_batch WHERE parent_id = batch.id) AS nested",
            "BATCHES_TO_END",
        ),
    ),
]
