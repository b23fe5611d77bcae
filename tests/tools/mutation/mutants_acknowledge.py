"""Mutants of the acknowledgement of dead jobs: what it changes, what leaves the lists, and what a retry takes back.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ACKNOWLEDGE = [
    *of_tests(
        ("tests/test_acknowledge.py",),
        Mutant(
            "a job is acknowledged twice",
            "AND asked.state = 'dead' AND asked.acknowledged_at IS NULL",
            "AND asked.state = 'dead'",
            "ACKNOWLEDGE",
        ),
        Mutant(
            "an acknowledgement does not compare finished_at",
            "job.state <> seen.state OR job.finished_at IS DISTINCT FROM nullif(seen.instant, '')::timestamptz",
            "job.state <> seen.state",
            "ACKNOWLEDGE",
        ),
        Mutant(
            "an acknowledged job still blocks its key",
            "CASE WHEN asked.is_blocking THEN 3 ELSE",
            "CASE WHEN false THEN 3 ELSE",
            "ACKNOWLEDGE",
        ),
        Mutant("a retried job is still acknowledged", "acknowledged_at = NULL, ", "", "RETRY"),
        Mutant(
            "a retried job blocks its key no more",
            "            ELSE 2\n",
            "            ELSE 1\n",
            "RETRY",
        ),
        Mutant(
            "an act changes a job that was acknowledged since",
            "seen.acknowledged <> '' AND",
            "false AND",
            "RETRY",
        ),
        Mutant(
            "a retry with an erased key blocks the others",
            "= ':[erased]' THEN 1",
            "= ':[erased]' THEN 2",
            "RETRY",
        ),
        Mutant(
            "nobody wakes the workers of a key that was unblocked",
            "if unblocking:",
            "if False:",
            inside="job_operations.acknowledge",
        ),
        Mutant(
            "acknowledged jobs count as failures of their task",
            "ELSE least(failing.dead, jobs.dead)",
            "ELSE failing.dead",
            inside="DEAD_IN_A_ROW",
        ),
    ),
    *of_tests(
        ("tests/worker/test_bulk_acts.py",),
        Mutant(
            "a bulk act on dead letters takes acknowledged jobs",
            "\n      AND acknowledged_at IS NULL",
            "",
            "DEAD_LETTER",
        ),
        Mutant(
            "a preview of a list counts acknowledged jobs",
            "(acknowledged_at IS NULL OR NOT %(acknowledges)s::boolean)",
            "(true OR NOT %(acknowledges)s::boolean)",
            "BULK_PAGE_LISTED",
        ),
    ),
    *of_tests(
        ("tests/admin/test_acknowledge.py",),
        Mutant(
            "a bulk act needs no reason",
            "if action in NEED_REASON and not reason:",
            "if False:",
            inside="_request_once",
        ),
        Mutant(
            "a page shows the reason of an earlier death",
            "acts.filter(entry__began_at__gte=job.finished_at)",
            "acts",
            inside="acknowledgement_of",
        ),
    ),
]
