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
]
