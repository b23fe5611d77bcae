"""Mutants of the cost of a plain job, in calls and statements, and of what a job skips because it does not use it.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

COUNTS = of_tests(
    ("tests/tools/benchmarks/counts/test_counts.py",),
    Mutant(
        "a plain job looks up its task three times more",
        "        execution_id = report.claimed.execution_id\n",
        "        execution_id = report.claimed.execution_id\n"
        "        [registry.get(report.claimed.task_name) for _ in range(3)]\n",
        inside="Pool.finished",
    ),
    Mutant(
        "each batch of completions has one more statement",
        "            done = finish(connection, ready, self._reactions)\n",
        '            connection.execute("SELECT 1")\n            done = finish(connection, ready, self._reactions)\n',
        inside="Completer.tick",
    ),
)
PLANS_OF_ATTEMPTS = [
    *of_tests(
        ("tests/worker/test_attempt_plan.py",),
        Mutant(
            "a plan outlives a change of the settings",
            " or plan.settings is not settings",
            "",
            inside="AttemptPlans.of",
        ),
        Mutant(
            "a plan outlives the registration of its task", " or plan.task is not task", "", inside="AttemptPlans.of"
        ),
    ),
    *of_tests(
        ("tests/worker/test_slots.py",),
        Mutant(
            "a job that has ended keeps its deadline", "if self.deadlines.watched:", "if False:", inside="Pool.finished"
        ),
        Mutant(
            "a request that came too late is watched for ever",
            "                self.watched.discard(execution_id)",
            "                pass",
            inside="Deadlines.tick",
        ),
    ),
    Mutant(
        "a coroutine gets the arguments of one job instead of its chunk",
        " and not self.is_of_chunk",
        "",
        inside="Attempt._acall",
        tests=("tests/chunks/test_slots.py",),
    ),
    Mutant(
        "the plan of a task with a sensitive result shows it",
        "self.hides_result = hides_result(task)",
        "self.hides_result = False",
        inside="AttemptPlan.__init__",
        tests=("tests/privacy/test_sensitive.py",),
    ),
    Mutant(
        "an atomic chunk completes its failed jobs",
        " if each.ending in SUCCESSES]",
        "]",
        inside="ChunkAttempt._successes",
        tests=("tests/chunks/test_run.py", "tests/chunks/test_slots.py"),
    ),
    Mutant(
        "successes with a receiver are not passed on",
        "if is_success and skipped is SUCCEEDED:",
        "if is_success:",
        inside="writer.finish",
        tests=("tests/worker/test_attempt.py",),
    ),
    Mutant(
        "a thread whose jobs use the database cleans up no connection",
        "elif self._connections:",
        "elif False:",
        inside="ThreadSlot._clean_up",
        tests=("tests/process/test_leaks.py",),
    ),
    Mutant(
        "jobs get the options that the settings gave them before a change",
        "if known[0] is not settings:",
        "if known[0] is None:",
        inside="TaskDefinition.columns",
        tests=("tests/test_enqueue.py",),
    ),
    Mutant(
        "a workflow changes the row of all later jobs of a task",
        "return row.copy()",
        "return row",
        inside="new_job.row_of",
        tests=("tests/test_enqueue.py",),
    ),
    Mutant(
        "a sequence of calls with other options begins as plain",
        "has_calls = TaskCall in map(type, sequence)",
        "has_calls = False",
        inside="Insertion.run",
        tests=("tests/test_enqueue_many.py", "tests/test_call_limits.py"),
    ),
    Mutant(
        "enqueue_many() does not convert what annotations say",
        "normalise_call(*stored)",
        "normalise_call(args, kwargs)",
        inside="Insertion._plain_calls",
        tests=("tests/arguments/test_calls.py",),
    ),
    Mutant(
        "time travel reaches no statement",
        'self.shift = f"{seconds:.6f} s" if seconds else "0 s"',
        "pass",
        inside="_Clock",
        tests=("tests/kit/test_run_jobs.py",),
    ),
    Mutant(
        "a new job has parameters that are no columns",
        'del values["delay_seconds"], values["expires_seconds"]',
        "pass",
        inside="as_job",
        tests=("tests/test_enqueue.py",),
    ),
    Mutant(
        "arguments of characters of four bytes may be too large",
        "if 4 * len(text) >",
        "if len(text) >",
        inside="encode_arguments",
        tests=("tests/test_serialization.py",),
    ),
]
