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
SAGAS = (*REPLACED, *WIDENED, *CALLBACKS)
