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
]
