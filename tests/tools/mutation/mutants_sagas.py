"""Mutants of compensation, and of stored steps whose job is called anew.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

DROP = "    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM placed))\n"
KEEP = "    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM placed)) AND false\n"

REPLACED = of_tests(
    ("tests/steps/test_replaced.py",),
    *(
        Mutant(
            f"a replaced job keeps its old steps ({how})",
            DROP + ")\n" + after,
            KEEP + ")\n" + after,
            path="django_pgqueue/sql/unique.py",
        )
        for how, after in {
            "one": "SELECT id, run_after, enqueued_at, expires_at FROM placed",
            "many": "SELECT id, unique_key FROM placed",
            "window": "SELECT id, run_after, enqueued_at, expires_at, key FROM placed",
        }.items()
    ),
)
WIDENED = of_tests(
    ("tests/test_widen_check.py",),
    Mutant(
        "a wider constraint makes PostgreSQL read the table",
        "(new, schema_editor)} NOT VALID",
        "(new, schema_editor)}",
        path="django_pgqueue/db/migration_operations.py",
    ),
    Mutant(
        "a table that a router excludes gets a wider constraint",
        "allow_migrate_model(schema_editor.connection.alias, new)",
        "allow_migrate_model(schema_editor.connection.alias, new) and False",
        path="django_pgqueue/db/migration_operations.py",
    ),
)
CALLBACKS = (
    *of_tests(
        ("tests/test_check_deploy.py",),
        Mutant(
            "a callback that was called is checked before a deploy",
            "CASE WHEN failed_at IS NULL THEN on_failure::text END",
            "on_failure::text",
            path="django_pgqueue/sql/stored_calls.py",
        ),
    ),
    *of_tests(
        ("tests/history/test_erased_callbacks.py",),
        Mutant(
            "the callbacks of an incomplete batch are erased",
            "CASE WHEN completed_at < %(before_at)s::timestamptz THEN on_complete::text END",
            "on_complete::text",
            path="django_pgqueue/sql/history.py",
        ),
        Mutant(
            "an erasure of one job erases all callbacks of its task",
            """in wanted\n""",
            """in wanted or True\n""",
            path="django_pgqueue/history/callbacks.py",
        ),
    ),
)
SQL = "django_pgqueue/sql/sagas.py"
COMPENSATIONS = of_tests(
    ("tests/steps/test_sagas.py", "tests/concurrency/test_sagas.py"),
    Mutant("steps are undone in their order", "ORDER BY position DESC, name DESC", "ORDER BY position, name", path=SQL),
    Mutant(
        "a compensation does not wait for the one before",
        "WHERE id = later.compensation_id AND state <> 'succeeded' OFFSET 0",
        "WHERE id = later.compensation_id AND false OFFSET 0",
        path=SQL,
    ),
    Mutant(
        "two sessions add one compensation",
        "CASE WHEN step.compensation IS NULL THEN false ELSE true END\n",
        "true\n",
        path=SQL,
    ),
    Mutant(
        "a job that has succeeded keeps its compensations",
        "(SELECT id FROM ended WHERE state = 'succeeded')) AND compensation IS NOT NULL",
        "(SELECT id FROM ended WHERE state = 'succeeded')) AND false",
        path=SQL,
    ),
    Mutant(
        "an attempt uses a compensated step",
        "WHERE job_id = %(job_id)s::bigint AND compensation_id IS NULL",
        "WHERE job_id = %(job_id)s::bigint",
        path="django_pgqueue/sql/steps.py",
    ),
    Mutant(
        "a job is retried while it is compensated",
        "undo.state <> 'succeeded'\n              OR",
        "false\n              AND",
        path="django_pgqueue/sql/operator.py",
    ),
    Mutant(
        "a job is deleted before its compensations are enqueued",
        "(ARRAY (SELECT id FROM old)) AND compensation IS NOT NULL",
        "(ARRAY (SELECT id FROM old)) AND false",
        path="django_pgqueue/sql/operator.py",
    ),
    Mutant(
        "a compensation that cannot be enqueued is found after the step has run",
        "        compensations.check(step, self._connection)\n        try:\n            if step.atomic:",
        "        try:\n            if step.atomic:",
        path="django_pgqueue/worker/execution/step_runner.py",
    ),
)
RUNS = of_tests(
    ("tests/steps/test_run.py", "tests/steps/test_shown.py"),
    Mutant(
        "a gathered sleep ends the attempt while a step beside it runs",
        "        except Suspended:\n            await self._wait()\n",
        "        except Suspended:\n",
        path="django_pgqueue/worker/execution/async_calls.py",
    ),
    Mutant(
        "a step is dropped with the connection",
        "if is_open or is_of_rows(error)",
        "if True or is_of_rows(error)",
        path="django_pgqueue/worker/execution/step_store.py",
    ),
    Mutant(
        "a step drops a stop in its on_commit functions",
        "self.claimed, STOPS)",
        "self.claimed)",
        path="django_pgqueue/worker/execution/step_runner.py",
    ),
    Mutant(
        "an attempt ends while a step runs",
        "        self.is_over = True\n        await self._wait()\n",
        "        self.is_over = True\n",
        path="django_pgqueue/worker/execution/async_calls.py",
    ),
    Mutant(
        "a step may be called inside another one",
        "        refuse_nested(self, name)\n",
        "",
        path="django_pgqueue/worker/execution/step_runner.py",
    ),
    Mutant(
        "a wait without a timeout is reported with a delay of 100 years",
        "None if report.delay_seconds == FOREVER_SECONDS else report.delay_seconds",
        "report.delay_seconds",
        path="django_pgqueue/worker/completion/writer.py",
    ),
)
COMPLETIONS = of_tests(
    ("tests/process/test_sagas.py",),
    Mutant(
        "a worker leaves compensations to the sweep",
        "        self._compensations.check(connection, reports)\n",
        "",
        path="django_pgqueue/worker/completion/completer.py",
    ),
    Mutant(
        "no sweep looks for compensations",
        '            Duty("compensations", SWEEP_SECONDS, sagas.sweep),\n',
        "",
        path="django_pgqueue/worker/maintenance/maintenance.py",
    ),
)
SAGAS = (*REPLACED, *WIDENED, *CALLBACKS, *COMPENSATIONS, *RUNS, *COMPLETIONS)
