"""Mutants of the tables in which a capability registers what other code does for it.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ROWS = of_tests(
    ("tests/worker/test_orphans.py",),
    Mutant(
        "no sweep removes the steps of deleted jobs",
        '    "steps": Orphans("the steps of job", sql.steps.PRUNE_STEPS),\n',
        "",
        inside="ORPHANS",
    ),
)

REGISTRATION = [*ROWS]
