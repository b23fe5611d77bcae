"""Mutants of rows that the database refuses, of results, and of what comes after a commit.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

BAD_ROWS = of_tests(
    (
        *("tests/concurrency/test_bad_rows.py", "tests/worker/test_unwritten.py"),
        "tests/worker/test_return_value.py",
    ),
    Mutant(
        "errors of rows are those of all",
        "        if not may_divide(connection, error):",
        "        if True:",
        file="refused_rows.py",
        times=2,
    ),
    Mutant(
        "no error is of a row but of its data", "not in STATES_OF_THE_SERVER", 'in ("22", "23")', inside="is_of_rows"
    ),
    Mutant("each error is of a row", "cause.sqlstate[:2] not in STATES_OF_THE_SERVER", "True", inside="is_of_rows"),
    Mutant(
        "a stale prepared statement is a row's fault",
        "connection.unprepared() if isinstance(connection, EngineConnection) else nullcontext()",
        "nullcontext()",
        inside="divided",
    ),
    Mutant("no end is tried in ASCII", "(in_ascii, as_kept,", "(as_kept,", inside="unwritten.FORMS"),
    Mutant("no end is tried as a retry", "as_kept, as_retry, _as_dead", "as_kept, _as_dead", inside="unwritten.FORMS"),
    Mutant(
        "a refused end is forgotten",
        "        self._keep(reports, refused)\n",
        "        pass\n",
        inside="UnwrittenReports.settle",
    ),
    Mutant(
        "refused ends are tried at full speed",
        "2.0 ** (tries[execution_id] - 1)",
        "0.0",
        inside="UnwrittenReports._keep",
    ),
    Mutant(
        "refused ends are nobody's", "return waiting | self.unwritten.ids()", "return waiting", inside="Completer.ids"
    ),
    Mutant(
        "crashes overflow after a failure",
        "least(job.crashes + (mine.outcome = 'crashed')::int, 32767)",
        "job.crashes + (mine.outcome = 'crashed')::int",
        "FAIL",
    ),
    Mutant(
        "crashes overflow after a rescue",
        "least(job.crashes + mine.started::int, 32767)",
        "job.crashes + mine.started::int",
        "RESCUE",
    ),
    Mutant(
        "rescue picks the refused again",
        "      AND id <> ALL (%(skipped_ids)s::bigint[])\n    ORDER BY id\n",
        "    ORDER BY id\n",
        "RESCUABLE",
    ),
    Mutant(
        "expiry picks the refused again",
        "      AND id <> ALL (%(skipped_ids)s::bigint[])\n    ORDER BY",
        "    ORDER BY",
        "EXPIRE",
    ),
    Mutant("no end is final where a retry is refused", "row._replace(delay_seconds=None)", "row", inside="rescue"),
    Mutant(
        "prune repeats a batch that is refused",
        " - {job_id for (job_id, _), _ in done.refused}",
        "",
        inside="pruning.prune",
    ),
    Mutant(
        "prune stops where all are refused",
        "return pruned.is_full",
        "return pruned.is_full and pruned.removed > 0",
        inside="Pruner._remove_batch",
    ),
    Mutant(
        "prune stays at the refused",
        "if pruned.locked:",
        "if pruned.locked or refused:",
        inside="Pruner._remove_batch",
    ),
    Mutant("an unreadable tick is owed", "return FIRST_TICK <= ", "return ", inside="firing.is_due"),
    Mutant(
        "an unreadable tick stays",
        "least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') = %(expected_at)s",
        "next_run_at = %(expected_at)s",
        "PLAN_SCHEDULE",
    ),
    Mutant("a job that was claimed since is requeued", " AND job.attempt = given.attempt", "", "REQUEUE"),
    Mutant(
        "a result that cannot be kept is a failure",
        "is_a(exception, Dead) or is_a(exception, ResultNotStored)",
        "is_a(exception, Dead)",
        inside="failure._failed",
    ),
    Mutant(
        "what has not run is a success",
        "            if type(value) not in PLAIN and not self.task.is_async:",
        "            if False:",
        inside="Attempt._call_function",
    ),
    Mutant(
        "an outage fails an atomic task",
        "if not is_open and not is_of_step and _is_outage(error):",
        "if False:",
        inside="atomic.transaction_of",
    ),
    Mutant(
        "an outage in an atomic task is one before it",
        "if not is_open and not is_of_step and _is_outage(error):",
        "if not is_of_step and _is_outage(error):",
        inside="atomic.transaction_of",
    ),
    Mutant(
        "an outage before an atomic step is one before its task",
        "if not is_open and not is_of_step and _is_outage(error):",
        "if not is_open and _is_outage(error):",
        inside="atomic.transaction_of",
    ),
    Mutant(
        "what comes after the commit is a failure", "if not committed or", "if True or", inside="atomic.transaction_of"
    ),
    Mutant(
        "an error of the commit is a success",
        "if not committed or isinstance(error, (KeyboardInterrupt, *passed))",
        "if isinstance(error, (KeyboardInterrupt, *passed))",
        inside="atomic.transaction_of",
    ),
    Mutant(
        "the finish has NULL in an array",
        "return [] if values.count(None) == len(values) else list(values)",
        "return list(values)",
        inside="sparse",
    ),
)
