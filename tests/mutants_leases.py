"""Mutants of the fence by claim time, of worker ids, of what a process gives back, and of how it stops.

What a mutant is, and how they are tried: see `mutation`. Each names the tests that are to kill it.
"""

from tests.mutants import Mutant

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
]
