"""Mutants of compensation, and of stored steps whose job is called anew.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

DROP = "    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM placed))\n"
KEEP = "    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM placed)) AND false\n"

REPLACED = of_tests(
    ("tests/steps/test_replaced.py",),
    *(
        Mutant(f"a replaced job keeps its old steps ({how})", DROP, KEEP, statement)
        for how, statement in {
            "one": "ENQUEUE_OR_REPLACE",
            "many": "ENQUEUE_MANY_OR_REPLACE",
            "window": "REPLACE_FOR_PERIOD",
        }.items()
    ),
)
CALLBACKS = (
    *of_tests(
        ("tests/test_check_deploy.py",),
        Mutant(
            "a callback that was called is checked before a deploy",
            "CASE WHEN failed_at IS NULL THEN on_failure::text END",
            "on_failure::text",
            statement="PENDING_CALLBACKS",
        ),
    ),
    *of_tests(
        ("tests/history/test_erased_callbacks.py",),
        Mutant(
            "the callbacks of an incomplete batch are erased",
            "CASE WHEN completed_at < %(before_at)s::timestamptz THEN on_complete::text END",
            "on_complete::text",
            statement="USED_CALLBACKS",
        ),
        Mutant(
            "an erasure of one job erases all callbacks of its task",
            """ in calls\n""",
            """ in calls or True\n""",
            inside="is_among",
        ),
    ),
)
COMPENSATIONS = of_tests(
    ("tests/steps/test_sagas.py", "tests/concurrency/test_sagas.py"),
    Mutant(
        "steps are undone in their order",
        "ORDER BY position DESC, name DESC",
        "ORDER BY position, name",
        statement="COMPENSATE",
    ),
    Mutant(
        "a compensation does not wait for the one before",
        "WHERE id = later.compensation_id AND state <> 'succeeded' OFFSET 0",
        "WHERE id = later.compensation_id AND false OFFSET 0",
        statement="COMPENSATE",
    ),
    Mutant(
        "two sessions add one compensation",
        "CASE WHEN step.compensation IS NULL THEN false ELSE true END\n",
        "true\n",
        statement="COMPENSATE",
    ),
    Mutant(
        "a job that has succeeded keeps its compensations",
        "(SELECT id FROM ended WHERE state = 'succeeded')) AND compensation IS NOT NULL",
        "(SELECT id FROM ended WHERE state = 'succeeded')) AND false",
        statement="COMPENSATE",
    ),
    Mutant(
        "an attempt uses a compensated step",
        "WHERE job_id = %(job_id)s::bigint AND compensation_id IS NULL",
        "WHERE job_id = %(job_id)s::bigint",
        statement="LOAD_STEPS",
    ),
    Mutant(
        "a job is retried while it is compensated",
        "undo.state <> 'succeeded'\n              OR",
        "false\n              AND",
        "operator.RETRY",
    ),
    Mutant(
        "a job is deleted before its compensations are enqueued",
        "(ARRAY (SELECT id FROM old)) AND compensation IS NOT NULL",
        "(ARRAY (SELECT id FROM old)) AND false",
        statement="DELETE",
    ),
    Mutant(
        "a compensation that cannot be enqueued is found after the step has run",
        "        step_store.check_compensation(step, self._connection)\n        try:\n            if step.atomic:",
        "        try:\n            if step.atomic:",
        inside="AttemptSteps.step",
    ),
)
RUNS = of_tests(
    ("tests/steps/test_run.py", "tests/steps/test_shown.py"),
    Mutant(
        "a gathered sleep ends the attempt while a step beside it runs",
        "        except Suspended:\n            await self._wait()\n",
        "        except Suspended:\n",
        inside="AsyncCalls.beside",
    ),
    Mutant(
        "a step is dropped with the connection",
        "if is_open or is_of_rows(error)",
        "if True or is_of_rows(error)",
        inside="store",
    ),
    Mutant(
        "a step drops a stop in its on_commit functions",
        "passed = STOPS if is_of_step else ()",
        "passed = ()",
        inside="atomic.transaction_of",
    ),
    Mutant(
        "an attempt ends while a step runs",
        "        self.is_over = True\n        await self._wait()\n",
        "        self.is_over = True\n",
        inside="AsyncCalls._end",
    ),
    Mutant(
        "a step may be called inside another one",
        "        refuse_nested(self, name)\n",
        "",
        inside="AttemptSteps._enter",
    ),
    Mutant(
        "a wait without a timeout is reported with a delay of 100 years",
        "None if report.delay_seconds == FOREVER_SECONDS else report.delay_seconds",
        "report.delay_seconds",
        inside="writer._transition_of",
    ),
)
COMPLETIONS = of_tests(
    ("tests/process/test_sagas.py",),
    Mutant(
        "a worker leaves compensations to the sweep",
        "            self._ends.note_reports(ready)\n",
        "",
        inside="Completer.tick",
    ),
    Mutant(
        "no sweep looks for compensations",
        'Sweep("compensations", _pending),',
        "",
        inside="Compensations",
    ),
)
SAGAS = (*REPLACED, *CALLBACKS, *COMPENSATIONS, *RUNS, *COMPLETIONS)
