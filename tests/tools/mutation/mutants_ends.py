"""Mutants of what follows the ends of jobs: which ends are checked at once, and what one check must not do to others.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ENDS = [
    *of_tests(
        ("tests/worker/test_every_end.py",),
        Mutant(
            "only reports of attempts are followed",
            "if self._follow is not None:",
            "if False:",
            inside="Reactions.after",
        ),
        Mutant(
            "an attempt to be repeated of a job that was asked to stop is not followed",
            " and transition.delay_seconds is None",
            "",
            inside="_is_reported",
        ),
        Mutant(
            "the end of a crash in an isolated process is read from its report",
            "{Ending.FAILED, Ending.CANCELLED}",
            "{Ending.FAILED, Ending.CANCELLED, Ending.CRASHED}",
            inside="REPORTED",
        ),
        Mutant(
            "a settlement process follows nothing",
            "        if transitions:\n",
            "        if False:\n",
            inside="settlement.main",
        ),
        Mutant(
            "a remote worker follows nothing",
            "    ends.note_reports(reports)\n",
            "",
            inside="contrib.remote.transitions._finish",
        ),
        Mutant(
            "a report that is stored in another form is not followed",
            "        self._on_written(reports)\n",
            "",
            inside="UnwrittenReports._finish",
        ),
        Mutant(
            "the batch of a job that no report describes is not found",
            "job.batch_id IS NOT NULL OR ",
            "",
            statement="FIND_ENDED",
        ),
        Mutant("the node that no report describes is not found", "OR job.in_graph ", "", statement="FIND_ENDED"),
        Mutant("steps that no report describes are lost", " OR step.has_compensations", "", statement="FIND_ENDED"),
        Mutant(
            "a compensation leads to no other one",
            "compensated_id(claimed.headers) if ending in SUCCESSES else None",
            "None",
            inside="_ended_job",
        ),
    ),
    *of_tests(
        ("tests/worker/test_end_checks.py",),
        Mutant(
            "batches are checked before workflows",
            "Graphs(), Batches()",
            "Batches(), Graphs()",
            inside="CHECKS",
        ),
        Mutant(
            "a refused check stops the completer",
            "if is_outage(error) or not isinstance(connection, EngineConnection):",
            "if True:",
            inside="_left_to_the_sweep",
        ),
        Mutant(
            "an outage drops what was noted",
            "if is_outage(error) or not isinstance(connection, EngineConnection):",
            "if not isinstance(connection, EngineConnection):",
            inside="_left_to_the_sweep",
        ),
        Mutant(
            "a refused row is hidden from the application",
            "if refused and not isinstance(connection, EngineConnection):",
            "if False:",
            inside="EndChecks.check",
        ),
        Mutant(
            "a job that a check ends is not noted",
            "                self.note(checked.ended)\n",
            "",
            inside="EndChecks.check",
        ),
        Mutant("a retried attempt is noted", "and each.delay_seconds is None", "", inside="ended_jobs"),
        Mutant("a removed job has steps to undo", " and ending is not Ending.DISCARDED", "", inside="_ended_job"),
    ),
]
