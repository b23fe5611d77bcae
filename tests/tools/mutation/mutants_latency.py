"""Mutants of the time from a commit to the first line of its job.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant

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
]
