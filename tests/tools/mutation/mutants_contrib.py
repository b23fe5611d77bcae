"""Mutants of the integrations with other libraries. `mutation` explains what a mutant is and how mutants are tried."""

from tests.tools.mutation.mutants import Mutant, of_tests

CONTRIB = of_tests(
    ("tests/contrib/test_sentry.py",),
    Mutant(
        "jobs share one scope of Sentry",
        "with sentry_sdk.isolation_scope() as scope:\n            scope.clear_breadcrumbs()\n            describe_call",
        "for scope in [sentry_sdk.get_isolation_scope()]:\n            describe_call",
        inside="SentryReporter.run",
    ),
    Mutant(
        "the log line of a dead job is a second event",
        '    if is_about_failure(hint.get("log_record")):',
        "    if False:",
        inside="_filter",
    ),
    Mutant(
        "events of sensitive tasks have variables",
        "    if task is not None and task.sensitive:",
        "    if False:",
        inside="_describe_task",
    ),
    Mutant(
        "frames of the worker have variables",
        "                is_ours = True",
        "                pass",
        inside="without_engine_values",
    ),
)

TRACED = of_tests(
    ("tests/contrib/test_opentelemetry.py",),
    Mutant(
        "attempts have no link to their producer",
        "for each in producers if each.is_valid}",
        "for each in producers if False}",
        inside="OpenTelemetryMiddleware._origin",
    ),
    Mutant(
        "the end of a process flushes nothing",
        "                force_flush(FLUSH_MS)",
        "                pass",
        inside="flush",
    ),
    Mutant(
        "statements of the worker are traced",
        "    connection.cursor_factory = psycopg.Cursor\n",
        "",
        inside="engine_connection._open",
    ),
    Mutant(
        "a trace without room prevents the enqueue",
        "            fitting.popitem()",
        "            raise",
        inside="add_fitting",
    ),
)
