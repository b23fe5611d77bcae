"""Mutants of the integrations with other libraries. `mutation` explains what a mutant is and how mutants are tried."""

from tests.tools.mutation.mutants import Mutant, of_tests

SENTRY = "django_pgqueue/contrib/sentry/"

TELEMETRY = "django_pgqueue/contrib/opentelemetry/"

CONTRIB = of_tests(
    ("tests/contrib/test_sentry.py",),
    Mutant(
        "jobs share one scope of Sentry",
        "with sentry_sdk.isolation_scope() as scope:\n            scope.clear_breadcrumbs()\n            describe_call",
        "for scope in [sentry_sdk.get_isolation_scope()]:\n            describe_call",
        path=SENTRY + "integration.py",
    ),
    Mutant(
        "the log line of a dead job is a second event",
        '    if privacy.is_about_failure(hint.get("log_record")):',
        "    if False:",
        path=SENTRY + "integration.py",
    ),
    Mutant(
        "events of sensitive tasks have variables",
        "    if task is not None and task.sensitive:",
        "    if False:",
        path=SENTRY + "integration.py",
    ),
    Mutant(
        "frames of the worker have variables",
        "                is_ours = True",
        "                pass",
        path=SENTRY + "privacy.py",
    ),
)

TRACED = of_tests(
    ("tests/contrib/test_opentelemetry.py",),
    Mutant(
        "attempts have no link to their producer",
        "for each in producers if each.is_valid}",
        "for each in producers if False}",
        path=TELEMETRY + "middleware.py",
    ),
    Mutant(
        "the end of a process flushes nothing",
        "                force_flush(FLUSH_MS)",
        "                pass",
        path=TELEMETRY + "measurements.py",
    ),
    Mutant(
        "statements of the worker are traced",
        "    connection.cursor_factory = psycopg.Cursor\n",
        "",
        path="django_pgqueue/db/engine_connection.py",
    ),
    Mutant(
        "a trace without room prevents the enqueue",
        "            fitting.popitem()",
        "            raise",
        path="django_pgqueue/contrib/trace_headers.py",
    ),
)
