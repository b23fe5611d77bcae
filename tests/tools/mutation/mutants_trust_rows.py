"""Mutants of the rules for failures of everything, and for refused rows: see `mutants.py`."""

from __future__ import annotations

from typing import Final

from tests.tools.mutation.mutants import Mutant

TRUST_ROWS: Final = [
    Mutant(
        "a row is to blame for its first failure",
        old="            return False\n\n    def wrote",
        new="            return True\n\n    def wrote",
        inside="Evidence",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "the success of another statement is evidence too",
        old="if failed == statement}",
        new="}",
        inside="Evidence.wrote",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "a written row is evidence against nobody",
        old="self._refusals.wrote(",
        new="(lambda *given: None)(",
        inside="Claimer._noted",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "a job that cannot be claimed is set aside at once",
        old="if self._refusals.note(job_id, error, statement):",
        new="if self._refusals.note(job_id, error, statement) or True:",
        inside="Claimer._note_failure",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "an outdated prepared statement is not repeated",
        old="if stop_preparing is None or not is_stale_plan(error) or not stop_preparing():",
        new="if True:",
        inside="statements.execute",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "a transaction with an outdated prepared statement is not repeated",
        old="        if not is_stale_plan(error):\n            raise",
        new="        raise",
        inside="statements.repeat_if_stale",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "a refused report gets another outcome without evidence",
        old="in SUCCESSES or refused.row.claimed.execution_id in to_blame:",
        new="in SUCCESSES or True:",
        inside="unwritten.in_form",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "a rescued job whose next attempt is refused is dead without evidence",
        old="if on_refused(expired[row.key.execution_id], refusal)",
        new="if on_refused(expired[row.key.execution_id], refusal) or True",
        inside="rescues.rescue",
        tests=("tests/worker/test_blame.py",),
    ),
    Mutant(
        "a refused row keeps the rows of its kind",
        old="        if not may_divide(connection, error):\n            raise\n    results",
        new="        raise\n    results",
        inside="ranges.in_ranges",
        tests=("tests/concurrency/test_refused_rows.py",),
    ),
    Mutant(
        "a missing privilege is looked for in all ranges of ids",
        old="            results.append(write(NONE))\n        parts",
        new="            pass\n        parts",
        inside="ranges.in_ranges",
        tests=("tests/concurrency/test_refused_rows.py",),
    ),
    Mutant(
        "the parts of all ids have a gap",
        old="[0, *(end + 1 for end in ends)]",
        new="[0, *(end + 2 for end in ends)]",
        inside="IdRange.halves",
        tests=("tests/concurrency/test_refused_rows.py",),
    ),
    Mutant(
        "a bulk act ends at a refused batch",
        old="        refused += batch.rows\n        if not rest.rows:\n            break",
        new="        break",
        inside="bulk_changes.change_batch",
        tests=("tests/worker/test_bulk_acts.py",),
    ),
    Mutant(
        "a bulk act fails at its last job if that is refused",
        old="and not passes_refused",
        new="",
        inside="bulk_changes.change_batch",
        tests=("tests/worker/test_bulk_acts.py",),
    ),
    Mutant(
        "an outage between two batches passes jobs by",
        old=">= PATIENCE_SECONDS",
        new=">= 0",
        inside="BulkActs._execute_batch",
        tests=("tests/worker/test_bulk_acts.py",),
    ),
    Mutant(
        "a failure of all jobs ends an act",
        old="        except INVALID as error:",
        new="        except (psycopg.Error, *INVALID) as error:",
        inside="BulkActs._execute",
        tests=("tests/worker/test_bulk_acts.py",),
    ),
    Mutant(
        "the jobs of a batch whose record is refused stay as they are",
        old="        refusal = error\n",
        new="        return {}, error\n",
        inside="bulk_changes._change",
        tests=("tests/worker/test_bulk_acts.py",),
    ),
    Mutant(
        "an orphan that is protected stops the rescues",
        old="    return divided(connection, keys, remove).refused",
        new="    remove(keys)\n    return []",
        inside="remove_orphans",
        tests=("tests/concurrency/test_refused_rows.py",),
    ),
    Mutant(
        "a division never ends by time",
        old="time.monotonic() >= until",
        new="False",
        inside="ranges._divide",
        tests=("tests/concurrency/test_refused_rows.py",),
    ),
    Mutant(
        "a division begins with the same rows each time",
        old="_left.pop(subject, None) or ",
        new="",
        inside="ranges._divide",
        tests=("tests/concurrency/test_refused_rows.py",),
    ),
    Mutant(
        "a wake-up wakes no range of jobs",
        old="          AND page.job_id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint\n",
        new="          AND %(first_id)s::bigint + %(last_id)s::bigint IS NOT NULL\n",
        statement="WAKE",
        tests=("tests/concurrency/test_refused_rows.py",),
    ),
]
