"""Mutants of the cost of a plain job, in calls and statements. Nothing but the counts shows them.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

COUNTS = of_tests(
    ("tests/tools/benchmarks/counts/test_counts.py",),
    Mutant(
        "a plain job looks up its task three times more",
        "        execution_id = report.claimed.execution_id\n",
        "        execution_id = report.claimed.execution_id\n"
        "        [registry.get(report.claimed.task_name) for _ in range(3)]\n",
        inside="Pool.finished",
    ),
    Mutant(
        "each batch of completions has one more statement",
        "            done = finish(connection, ready, self._reactions)\n",
        '            connection.execute("SELECT 1")\n            done = finish(connection, ready, self._reactions)\n',
        inside="Completer.tick",
    ),
)
