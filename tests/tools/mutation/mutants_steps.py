"""Mutants of durable steps and of events.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

UNREADABLE = of_tests(
    ("tests/steps/test_unreadable.py",),
    Mutant(
        "a task that catches an unreadable value goes on",
        "self._misfit = error\n            raise",
        "raise",
        inside="AttemptSteps._read",
    ),
    Mutant(
        "an unreadable stored value fails the attempt",
        "except (ValueError, RecursionError) as error:",
        "except RecursionError as error:",
        inside="read_value",
    ),
)
STATEMENTS = of_tests(
    ("tests/steps/test_statements.py",),
    Mutant(
        "a late worker stores its step",
        "  AND execution.outcome IS NULL\nFOR NO KEY UPDATE SKIP LOCKED\nON",
        "FOR NO KEY UPDATE SKIP LOCKED\nON",
        statement="STORE_STEP",
    ),
    Mutant(
        "a rescue does not wait for a step that is being stored",
        "  AND execution.outcome IS NULL\nFOR NO KEY UPDATE SKIP LOCKED\nON",
        "  AND execution.outcome IS NULL\nON",
        statement="STORE_STEP",
    ),
    Mutant(
        "a job that wakes too early sleeps longer",
        "CASE WHEN given.kind <> 'step' THEN (",
        "CASE WHEN false THEN (",
        statement="SUSPEND",
    ),
    Mutant(
        "an event ends the backoff of a failure",
        "              job.run_after = page.wake_at\n",
        "              true\n",
        statement="WAKE",
    ),
    Mutant(
        "the sweep ends the backoff of a failure",
        "                    job.run_after = step.wake_at\n",
        "                    true\n",
        statement="WAKE_SUSPENDED",
    ),
    Mutant(
        "a wait that was passed wakes its job",
        "      AND CASE WHEN step.event_name IS NULL THEN false ELSE step.finished_at IS NULL END\n",
        "      AND false\n",
        statement="SUSPEND",
    ),
    Mutant(
        "a suspension counts an attempt",
        "attempt = greatest(job.attempt - 1, 0)",
        "attempt = job.attempt",
        statement="SUSPEND",
    ),
    Mutant(
        "an event of another key wakes a job",
        "      AND event_key = %(event_key)s::varchar\n      AND finished_at",
        "      AND finished_at",
        statement="WAKE",
    ),
    Mutant(
        "an event is received twice",
        "  AND id <> ALL (\n      ARRAY (SELECT coalesce(event_id, 0) FROM pgqueue_step "
        "WHERE job_id = %(job_id)s::bigint)\n  )",
        "  AND %(job_id)s::bigint > 0",
        statement="FIND_EVENT",
    ),
    Mutant(
        "an event that came before the suspension does not wake the job",
        "steps.wake_suspended(connection, waiting)",
        "()",
        inside="_write_suspended",
    ),
    Mutant(
        "a job whose event came before its suspension waits for a poll",
        "            waiting[job_id].delay_seconds = 0.0",
        "            pass",
        inside="_write_suspended",
    ),
    Mutant(
        "the sweep looks at the first page only",
        "SweepMark(*mark) if found == limit else None",
        "None",
        inside="wake_missed",
    ),
)
ROLES = of_tests(
    ("tests/security/test_roles.py",),
    Mutant(
        "a step without a compensation needs the right to store one",
        "        statement = sql.steps.STORE_STEP\n"
        '        del params["compensation"], params["compensation_arguments"]',
        "        pass",
        inside="store_step",
    ),
)
HEARD_EVENTS = of_tests(
    ("tests/worker/test_sent_events.py", "tests/worker/test_fetcher.py"),
    Mutant("an announced event waits for the sweep", "        self._wake()\n", "", inside="SentEvents.add"),
    Mutant(
        "forged events need memory without a limit",
        "deque[int](maxlen=MOST_EVENTS)",
        "deque[int]()",
        inside="SentEvents.__init__",
    ),
    Mutant(
        "a forged notification stops the fetcher",
        " if text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS",
        "",
        inside="notifications.sent_events",
    ),
)
SENDERS = of_tests(
    ("tests/security/test_roles.py",),
    Mutant(
        "a sender without the right to wake jobs notifies nobody",
        "            )\n        notify_event_sent(connection, event_id)",
        "            )",
        inside="event_sending._wake",
    ),
)
RUNS = of_tests(
    ("tests/steps/test_run.py",),
    Mutant(
        "a stored step runs again",
        "        place, began = self._enter(step.name, StepKind.STEP), time.monotonic()\n"
        "        if place.stored is not None and place.stored.is_finished:",
        "        place, began = self._enter(step.name, StepKind.STEP), time.monotonic()\n        if False:",
        inside="AttemptSteps.step",
    ),
    Mutant(
        "a step inside a transaction is stored",
        "if is_in_own_block or not (",
        "if False and not (",
        inside="refuse_in_transaction",
    ),
    Mutant(
        "a task that catches a suspension succeeds",
        "        if self.suspension is not None:\n            raise Suspended(self.suspension)\n",
        "",
        inside="AttemptSteps._raise_caught",
    ),
    Mutant(
        "an atomic step has no transaction",
        "            if step.atomic:\n                return",
        "            if False:\n                return",
        inside="AttemptSteps.step",
    ),
    Mutant(
        "the retries of a step have no end",
        "if tries > step.retries or",
        "if False or",
        inside="AttemptSteps._suspend_for_retry",
    ),
    Mutant(
        "changed steps use up attempts",
        "is_a(exception, DoesNotFit, StepsChanged, NoTransaction)",
        "is_a(exception, DoesNotFit, NoTransaction)",
        inside="_report_of",
    ),
    Mutant(
        "a task that catches changed steps succeeds",
        "if self._misfit is not None:",
        "if False:",
        inside="AttemptSteps._raise_caught",
    ),
    Mutant(
        "a task that catches changed steps fails",
        "return self._misfit or (",
        "return (",
        inside="AttemptSteps.cause_of_end",
    ),
    Mutant(
        "stored steps may change their order",
        "        elif index < self._next:",
        "        elif False:",
        inside="StepOrder.enter",
    ),
    Mutant(
        "each new step takes half of the room",
        "/ (self._added + 1)",
        "/ 2",
        inside="StepOrder._new_position",
    ),
    Mutant(
        "a discarded job leaves its steps",
        "        divided(connection, with_steps, partial(_remove_steps, connection))\n",
        "        pass\n",
        inside="_write_discarded",
    ),
)
STEPS = (*UNREADABLE, *STATEMENTS, *ROLES, *HEARD_EVENTS, *SENDERS, *RUNS)
