"""Mutants of signals about workers and processes, of releases and snoozes, of printed lines and of mistyped queues.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

WORKER = "django_pgqueue/worker/"

EVENTS = of_tests(
    ("tests/process/test_worker_signals.py",),
    Mutant(
        "an order does not end the wait for start receivers",
        "            return bool(orders)",
        "            return False",
        path=WORKER + "worker_process.py",
    ),
    Mutant(
        "isolated jobs do not wait for start receivers",
        "if self._fork_server.has_start_receivers and not self._process.has_started():",
        "if False:",
        path=WORKER + "isolation/slot_process.py",
    ),
    Mutant(
        "receivers that hang keep the worker from ending",
        "        if self._pid and time.monotonic() > self._stop_at:",
        "        if False:",
        path=WORKER + "supervision/worker_events.py",
    ),
    Mutant(
        "a snooze is reported as a release",
        "_SNOOZE: Final[_Signals] = {State.READY: signals.job_snoozed,",
        "_SNOOZE: Final[_Signals] = {State.READY: signals.job_released,",
        path="django_pgqueue/endings.py",
    ),
    Mutant(
        "a receiver that hangs leaves no time for exit functions",
        "seconds * RECEIVERS_SHARE",
        "seconds",
        path=WORKER + "runtime/exit_functions.py",
    ),
)
RECEIVERS = of_tests(
    ("tests/test_signals.py",),
    Mutant(
        "an aborted transaction is not noticed",
        "            raise_if_aborted(connection, responses)\n",
        "",
        path="django_pgqueue/reactions.py",
    ),
)
JOB_LINES = of_tests(
    ("tests/process/test_job_lines.py",),
    Mutant(
        "threads of the engine print the lines of jobs",
        '"django_pgqueue.jobs", ',
        "",
        path=WORKER + "runtime/background_log.py",
    ),
    Mutant(
        "an error breaks the line of its job",
        '    text = " ".join(text.split())\n',
        "",
        path="django_pgqueue/log.py",
    ),
)
LOG_CONTEXT = of_tests(
    ("tests/worker/test_log_context.py",),
    Mutant(
        "the running job replaces the fields of a record",
        "for name in fields.keys() - vars(record).keys()",
        "for name in fields",
        path="django_pgqueue/log.py",
    ),
    Mutant(
        "a long message of a cause is not seen",
        "exception.__cause__ or exception.__context__",
        "None",
        path=WORKER + "runtime/short_records.py",
    ),
)
QUEUES = of_tests(
    ("tests/test_queues.py",),
    Mutant(
        "numbered queues are suggested for each other",
        '    return DIGITS.sub("", first) == DIGITS.sub("", second)',
        "    return False",
        path="django_pgqueue/queues.py",
    ),
    Mutant(
        "an unlisted queue is accepted",
        "        raise ValueError(problem)",
        "        pass",
        path="django_pgqueue/queues.py",
    ),
    Mutant(
        "a queue with waiting jobs counts as mistyped",
        "    if name in names or waiting(name, database).exists():",
        "    if name in names:",
        path="django_pgqueue/queues.py",
    ),
)
