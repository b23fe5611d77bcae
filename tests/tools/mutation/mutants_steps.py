"""Mutants of durable steps and of events.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

SQL = "django_pgqueue/sql/steps.py"
RUNNER = "django_pgqueue/worker/execution/step_runner.py"

STATEMENTS = of_tests(
    ("tests/steps/test_statements.py",),
    Mutant(
        "a late worker stores its step",
        "  AND execution.outcome IS NULL\nFOR NO KEY UPDATE SKIP LOCKED\nON",
        "FOR NO KEY UPDATE SKIP LOCKED\nON",
        path=SQL,
    ),
    Mutant(
        "a rescue does not wait for a step that is being stored",
        "  AND execution.outcome IS NULL\nFOR NO KEY UPDATE SKIP LOCKED\nON",
        "  AND execution.outcome IS NULL\nON",
        path=SQL,
    ),
    Mutant(
        "a job that wakes too early sleeps longer",
        "CASE WHEN given.kind <> 'step' THEN (",
        "CASE WHEN false THEN (",
        path=SQL,
    ),
    Mutant(
        "an event ends the backoff of a failure",
        "              job.run_after = page.wake_at\n",
        "              true\n",
        path=SQL,
    ),
    Mutant(
        "the sweep ends the backoff of a failure",
        "              job.run_after = due.wake_at\n",
        "              true\n",
        path=SQL,
    ),
    Mutant(
        "a wait that was passed wakes its job",
        "      AND CASE WHEN step.event_name IS NULL THEN false ELSE step.finished_at IS NULL END\n",
        "      AND false\n",
        path=SQL,
    ),
    Mutant(
        "a suspension counts an attempt", "attempt = greatest(job.attempt - 1, 0)", "attempt = job.attempt", path=SQL
    ),
    Mutant(
        "an event of another key wakes a job",
        "      AND event_key = %(event_key)s::varchar\n      AND finished_at",
        "      AND finished_at",
        path=SQL,
    ),
    Mutant(
        "an event is received twice",
        "  AND id <> ALL (\n      ARRAY (SELECT coalesce(event_id, 0) FROM pgqueue_step "
        "WHERE job_id = %(job_id)s::bigint)\n  )",
        "  AND %(job_id)s::bigint > 0",
        path="django_pgqueue/sql/events.py",
    ),
    Mutant(
        "an event that came before the suspension does not wake the job",
        "lifecycle.steps.wake_suspended(connection, waiting)",
        "()",
        path="django_pgqueue/worker/completion/writer.py",
    ),
    Mutant(
        "a job whose event came before its suspension waits for a poll",
        "            waiting[job_id].delay_seconds = 0.0",
        "            pass",
        path="django_pgqueue/worker/completion/writer.py",
    ),
    Mutant(
        "the sweep looks at the first page only",
        "SweepMark(*mark) if found == limit else None",
        "None",
        path="django_pgqueue/lifecycle/steps.py",
    ),
)
RUNS = of_tests(
    ("tests/steps/test_run.py",),
    Mutant(
        "a stored step runs again",
        "        place, began = self._enter(step.name, StepKind.STEP), time.monotonic()\n"
        "        if place.stored is not None and place.stored.is_finished:",
        "        place, began = self._enter(step.name, StepKind.STEP), time.monotonic()\n        if False:",
        path=RUNNER,
    ),
    Mutant(
        "a step inside a transaction is stored",
        "if len(connection.atomic_blocks) > self._outer_blocks or not (",
        "if False and not (",
        path=RUNNER,
    ),
    Mutant(
        "a task that catches a suspension succeeds",
        "        if self.suspension is not None:\n            raise Suspended(self.suspension)\n"
        "        if self._order is not None and",
        "        if self._order is not None and",
        path=RUNNER,
    ),
    Mutant(
        "an atomic step has no transaction",
        "            if step.atomic:\n                return",
        "            if False:\n                return",
        path=RUNNER,
    ),
    Mutant("the retries of a step have no end", "if tries > step.retries or", "if False or", path=RUNNER),
    Mutant(
        "changed steps use up attempts",
        "is_a(exception, DoesNotFit, StepsChanged, NoTransaction)",
        "is_a(exception, DoesNotFit, NoTransaction)",
        path="django_pgqueue/worker/execution/failure.py",
    ),
    Mutant(
        "a task that catches changed steps succeeds",
        "if self._changed is not None:",
        "if False:",
        path=RUNNER,
    ),
    Mutant(
        "a task that catches changed steps fails",
        "return self._changed or (",
        "return (",
        path=RUNNER,
    ),
    Mutant(
        "stored steps may change their order",
        "        elif index < self._next:",
        "        elif False:",
        path="django_pgqueue/worker/execution/step_order.py",
    ),
    Mutant(
        "each new step takes half of the room",
        "/ (self._added + 1)",
        "/ 2",
        path="django_pgqueue/worker/execution/step_order.py",
    ),
    Mutant(
        "a discarded job leaves its steps",
        "        lifecycle.steps.remove_steps(connection, with_steps)",
        "        pass",
        path="django_pgqueue/worker/completion/writer.py",
    ),
)
STEPS = (*STATEMENTS, *RUNS)
