"""Mutants of chunks: when one is claimed, which jobs it has, and that each of its jobs ends by itself.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ATTEMPT = "django_pgqueue/worker/execution/chunk_attempt.py"
POOL = "django_pgqueue/worker/slots/pool.py"
IN_FLIGHT = "django_pgqueue/worker/slots/inflight.py"
IS_DUE = "(count >= %(size)s OR due_at <= statement_timestamp() + %(time_shift)s::interval)"

CHUNKS = [
    *of_tests(
        ("tests/chunks/test_claims.py",),
        Mutant("workers split a chunk", f"    WHERE {IS_DUE}\n", "    WHERE true\n", "CLAIM_CHUNK"),
        Mutant("a job that crashed a process is not alone", "NOT follows_isolated AND ", "", "CLAIM_CHUNK"),
        Mutant("a chunk has no bound of bytes", " AND size <= %(max_bytes)s", "", "CLAIM_CHUNK"),
        Mutant(
            "a chunk is due before it is full",
            "CASE WHEN waiting.count >= given.size THEN waiting.last_at END",
            "waiting.last_at",
            "FIND_CHUNKS",
        ),
        Mutant(
            "chunks are prefetched",
            "            return not free_slots\n",
            "            return False\n",
            path="django_pgqueue/worker/claiming/claimer.py",
        ),
        Mutant(
            "each chunk is claimed in a transaction of its own",
            "with connection.transaction() if slots > 1 else nullcontext():",
            "with nullcontext():",
            path="django_pgqueue/worker/claiming/claimer.py",
        ),
        Mutant(
            "a row of a later chunk divides the first",
            "        if slots > 1:  # the row can be in a later chunk than the first\n",
            "        if False:\n",
            path="django_pgqueue/worker/claiming/claimer.py",
        ),
        Mutant(
            "a worker ends before its chunks are due",
            "self.limited.have_waiting or self.chunks.have_waiting",
            "self.limited.have_waiting",
            path="django_pgqueue/worker/claiming/lanes.py",
        ),
    ),
    *of_tests(
        ("tests/chunks/test_slots.py",),
        Mutant(
            "only the first job of a chunk is reported",
            "        for other in report.others:\n            self._hand_over(other)\n",
            "",
            path=POOL,
        ),
        Mutant(
            "a lost lease stops the other jobs",
            "if members <= lost or task is None or task.atomic:",
            "if True:",
            path=POOL,
        ),
        Mutant(
            "a lost lease does not stop a transaction",
            "if members <= lost or task is None or task.atomic:",
            "if members <= lost:",
            path=POOL,
        ),
        Mutant(
            "to cancel one job stops all",
            "            if members <= asked:  # the other jobs of a chunk go on\n",
            "            if True:\n",
            path=POOL,
        ),
        Mutant(
            "the lease monitor does not know the other jobs",
            "        known |= {key for key, first_id in list(self._first_ids.items()) if first_id in known}\n",
            "",
            path=IN_FLIGHT,
        ),
        Mutant(
            "only the first job of a chunk is released",
            "        return [member for job in jobs for member in job.members]\n",
            "        return jobs\n",
            path=IN_FLIGHT,
        ),
    ),
    *of_tests(
        ("tests/chunks/test_run.py",),
        Mutant(
            "the function cannot end single jobs",
            "return of_others(job) if own_error is None else self._failure_of(job, own_error)",
            "return of_others(job)",
            path=ATTEMPT,
        ),
        Mutant(
            "middleware gets the headers of the first job",
            " if all(_has(each.headers, *item) for each in others)]",
            "]",
            path=ATTEMPT,
        ),
        Mutant(
            "results need not be one for each job",
            "    if len(value) != len(chunk):\n",
            "    if False:\n",
            path="django_pgqueue/chunks.py",
        ),
    ),
    *of_tests(
        ("tests/chunks/test_integrations.py",),
        Mutant(
            "a span is linked to the first job of a chunk only",
            "        jobs = context.chunk or (context,)\n",
            "        jobs = (context,)\n",
            path="django_pgqueue/contrib/opentelemetry/middleware.py",
        ),
        Mutant(
            "an exception of a chunk has no job",
            'span.record_exception(error, {"messaging.message.id": str(job.job_id)})',
            "span.record_exception(error)",
            path="django_pgqueue/contrib/opentelemetry/middleware.py",
        ),
        Mutant(
            "Sentry drops the same exception of another job",
            '                hint.pop("exc_info", None)  # otherwise Sentry drops the event as a duplicate\n',
            "                pass\n",
            path="django_pgqueue/contrib/sentry/integration.py",
        ),
        Mutant(
            "events of a chunk have the tags of its first job",
            "    if len(context.chunk) <= 1:\n        describe(",
            "    if True:\n        describe(",
            path="django_pgqueue/contrib/sentry/integration.py",
        ),
    ),
    *of_tests(
        ("tests/chunks/test_worker.py",),
        Mutant(
            "a crash charges the first job only",
            "        charged_ids |= _others_of_chunks(left_open, charged_ids)\n",
            "",
            path="django_pgqueue/worker/supervision/open_executions.py",
        ),
    ),
]
