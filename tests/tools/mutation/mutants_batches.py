"""Mutants of batches: their ends, who may join, when a worker checks, and what the progress counts.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

UNCOUNTED = "WHERE batch_id IS NOT NULL"

BATCHES = [
    *of_tests(
        ("tests/batches/test_batch.py",),
        Mutant(
            "an open batch completes",
            "batch.closed_at IS NOT NULL AND NOT job.has_unfinished AS c",
            "NOT job.has_unfinished AS c",
            "END_BATCHES",
        ),
        Mutant("a batch with a dead job succeeds", "AND NOT job.has_failed AS succeeds", "AS succeeds", "END_BATCHES"),
        Mutant(
            "a cancelled job is no failure",
            "state IN ('dead', 'cancelled') LIMIT 1),\n            (",
            "state IN ('dead') LIMIT 1),\n            (",
            "END_BATCHES",
        ),
        Mutant(
            "a nested batch does not count",
            "AS nested\n                WHERE completed_at IS NULL",
            "AS nested WHERE false",
            "END_BATCHES",
        ),
        Mutant(
            "a failed nested batch does not count",
            "completed_at IS NOT NULL AND succeeded_at IS NULL",
            "false",
            "END_BATCHES",
        ),
        Mutant(
            "the end of a nested batch ends no parent",
            "each.name in ENDINGS and",
            "False and",
            inside="ends.batches.settle",
        ),
        Mutant(
            "a removed dead job is forgotten",
            "WHERE batch_id = batch.id AND state IN ('dead', 'cancelled')\n                LIMIT 1",
            "WHERE false\n                    LIMIT 1",
            "END_BATCHES",
        ),
        Mutant(
            "a batch that closes is not checked",
            "settle(connection, [batch_id]).raise_refused()",
            "pass",
            inside="Batch.close",
        ),
        Mutant("a complete batch takes jobs", "    if is_complete:\n", "    if False:\n", inside="check_open"),
        Mutant(
            "a callback may have a unique key",
            "if task.unique_key is not None:",
            "if False:",
            inside="callbacks.check_call",
        ),
        Mutant(
            "an old batch with jobs is removed",
            "(SELECT true FROM pgqueue_job WHERE batch_id = page.id LIMIT 1) IS NULL",
            "true",
            "PRUNE_BATCHES",
        ),
        Mutant(
            "an old batch with nested ones is removed",
            "(SELECT true FROM pgqueue_batch WHERE parent_id = page.id LIMIT 1) IS NULL",
            "true",
            "PRUNE_BATCHES",
        ),
        Mutant("the search keys of a callback are lost", 'row.pop("search_keys", None)', "None", inside="stored_job"),
        Mutant(
            "a foreground job does not end its batch",
            "    ends.check(connection, at_once=True)\n",
            "",
            inside="foreground.write",
        ),
        *(
            Mutant(f"{name} does not count the removed jobs", UNCOUNTED, "WHERE false", name)
            for name in ("REMOVE", "DELETE", "SUCCEED_AND_DISCARD")
        ),
    ),
    *of_tests(
        ("tests/concurrency/test_batches.py",),
        Mutant("a batch is ended without its lock", "FOR UPDATE SKIP LOCKED", "", "LOCK_BATCHES"),
        Mutant("a job is added without a lock", " FOR KEY SHARE", "", "JOIN_BATCH"),
        Mutant(
            "each session completes the batch",
            "batch.completed_at IS NULL AND batch.closed_at",
            "batch.closed_at",
            "END_BATCHES",
        ),
        Mutant(
            "a batch fails several times",
            "batch.failed_at IS NULL AND job.has_failed AS fails",
            "job.has_failed AS fails",
            "END_BATCHES",
        ),
        Mutant(
            "an old snapshot ends a batch",
            "sees_new_commits(django_connection) if is_open else True",
            "True",
            inside="own_transaction",
        ),
        Mutant(
            "the commit of a close is not noticed",
            "if connection.in_atomic_block:\n            # A job",
            "if False:\n            # A job",
            inside="Batch.close",
        ),
    ),
    *of_tests(
        ("tests/worker/test_end_checks.py",),
        Mutant(
            "each end is checked alone",
            "INTERVAL_SECONDS: Final = 0.05",
            "INTERVAL_SECONDS: Final = 0.0",
            inside="ends.batches.INTERVAL_SECONDS",
        ),
        Mutant(
            "a completer that stops leaves its batches",
            "if self._ends.due_in_seconds < NEVER:",
            "if False:",
            inside="Completer.at_end",
        ),
        Mutant("a locked batch is not checked again", "< LOCKED_SECONDS", "< 0", inside="_Pending.check"),
        Mutant(
            "the frequent sweep looks at complete batches",
            "batches.incomplete_batches(",
            "batches.unsettled_batches(",
            inside="_incomplete",
        ),
        Mutant(
            "no sweep looks at complete batches",
            "batches.unsettled_batches(",
            "batches.incomplete_batches(",
            inside="_unsettled",
        ),
        Mutant(
            "the sweep stays on its first page",
            "ids[-1] if len(ids) == SWEEP_LIMIT else None",
            "None",
            inside="page_of",
        ),
    ),
    *of_tests(
        ("tests/process/test_batches.py",),
        Mutant("no worker sweeps", "SWEEP_SECONDS: Final = 10.0", "SWEEP_SECONDS: Final = 1e9", inside="SWEEP_SECONDS"),
    ),
]
