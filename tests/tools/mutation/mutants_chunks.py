"""Mutants of chunks: when one is claimed, which jobs it has, and that each of its jobs ends by itself.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

IS_DUE = "(count >= %(size)s OR due_at <= statement_timestamp() + %(time_shift)s::interval)"

CHUNKS = [
    *of_tests(
        ("tests/chunks/test_claims.py",),
        Mutant("workers split a chunk", f"    WHERE {IS_DUE}\n", "    WHERE true\n", "CLAIM_CHUNK"),
        Mutant("a job that crashed a process is not alone", "NOT follows_isolated AND ", "", "CLAIM_CHUNK"),
        Mutant("a chunk has no bound of bytes", " AND size <= %(max_bytes)s", "", "CLAIM_CHUNK"),
        Mutant(
            "a chunk is due before it is full",
            "OFFSET given.size - 1",
            "OFFSET 0",
            "KEYS",
        ),
        Mutant(
            "chunks are prefetched",
            "        return not free_slots\n",
            "        return False\n",
            inside="ChunkKind.needs_slot",
        ),
        Mutant(
            "each chunk is claimed in a transaction of its own",
            "with transaction_of(connection) if slots > 1 else nullcontext():",
            "with nullcontext():",
            inside="ChunkKind.claim",
        ),
        Mutant(
            "a row of a later chunk divides the first",
            "        yield Part(lane, has_one_job=False)\n",
            "",
            inside="ChunkKind.parts",
        ),
        Mutant(
            "a worker ends before its chunks are due",
            "self.limited.need_slots or bool(self._waiting)",
            "self.limited.need_slots",
            inside="KeyPages.have_waiting",
        ),
    ),
    *of_tests(
        ("tests/chunks/test_slots.py",),
        Mutant(
            "only the first job of a chunk is reported",
            "        for other in report.others:\n",
            "        for other in ():\n",
            inside="Pool.finished",
        ),
        Mutant(
            "a lost lease stops the other jobs",
            "if members <= lost or task is None or task.atomic:",
            "if True:",
            inside="Pool.interrupt",
        ),
        Mutant(
            "a lost lease does not stop a transaction",
            "if members <= lost or task is None or task.atomic:",
            "if members <= lost:",
            inside="Pool.interrupt",
        ),
        Mutant(
            "to cancel one job stops all",
            "            if members <= asked:  # the other jobs of a chunk go on\n",
            "            if True:\n",
            inside="Pool.ask_to_cancel",
        ),
        Mutant(
            "the lease monitor does not know the other jobs",
            "        known |= {key for key, first_id in list(self._first_ids.items()) if first_id in known}\n",
            "",
            inside="InFlight.known_before",
        ),
        Mutant(
            "only the first job of a chunk is released",
            "        return [member for job in jobs for member in job.members]\n",
            "        return jobs\n",
            inside="InFlight.take",
        ),
    ),
    *of_tests(
        ("tests/chunks/test_run.py",),
        Mutant(
            "the function cannot end single jobs",
            "return of_others(job) if own_error is None else self._failure_of(job, own_error)",
            "return of_others(job)",
            inside="ChunkAttempt._reports.report_of_job",
        ),
        Mutant(
            "middleware gets the headers of the first job",
            " if all(_has(each.headers, *item) for each in others)]",
            "]",
            inside="ChunkAttempt._context",
        ),
        Mutant(
            "results need not be one for each job",
            "    if len(value) != len(chunk):\n",
            "    if False:\n",
            inside="chunks.results_of",
        ),
    ),
    *of_tests(
        ("tests/chunks/test_integrations.py",),
        Mutant(
            "a span is linked to the first job of a chunk only",
            "        jobs = context.chunk or (context,)\n",
            "        jobs = (context,)\n",
            inside="OpenTelemetryMiddleware._origin",
        ),
        Mutant(
            "an exception of a chunk has no job",
            'span.record_exception(error, {"messaging.message.id": str(job.job_id)})',
            "span.record_exception(error)",
            inside="_record_chunk",
        ),
        Mutant(
            "Sentry drops the same exception of another job",
            '                hint.pop("exc_info", None)  # otherwise Sentry drops the event as a duplicate\n',
            "                pass\n",
            inside="_capture",
        ),
        Mutant(
            "events of a chunk have the tags of its first job",
            "    if len(context.chunk) <= 1:\n        describe(",
            "    if True:\n        describe(",
            inside="describe_call",
        ),
    ),
    *of_tests(
        ("tests/chunks/test_worker.py",),
        Mutant(
            "a crash charges the first job only",
            "    running |= _others_of_chunks(left_open, running)\n",
            "",
            inside="_charges",
        ),
    ),
]
