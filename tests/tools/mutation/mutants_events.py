"""Mutants of signals about workers and processes, of releases and snoozes, of printed lines and of mistyped queues.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

EVENTS = of_tests(
    ("tests/process/test_worker_signals.py",),
    Mutant(
        "an order does not end the wait for start receivers",
        "            return bool(orders)",
        "            return False",
        inside="WorkerProcess._call_start_receivers.is_ordered",
    ),
    Mutant(
        "isolated jobs do not wait for start receivers",
        "if self._fork_server.has_start_receivers and not self.current.has_started():",
        "if False:",
        inside="SlotProcess.get",
    ),
    Mutant(
        "receivers that hang keep the worker from ending",
        "        if self._pid and time.monotonic() > self._stop_at:",
        "        if False:",
        inside="WorkerEvents.tick",
    ),
    Mutant(
        "a snooze is reported as a release",
        "_SNOOZE: Final[_Signals] = {State.READY: signals.job_snoozed,",
        "_SNOOZE: Final[_Signals] = {State.READY: signals.job_released,",
        inside="_SNOOZE",
    ),
    Mutant(
        "a receiver that hangs leaves no time for exit functions",
        "seconds * RECEIVERS_SHARE",
        "seconds",
        inside="run_exit_functions",
    ),
)
RECEIVERS = of_tests(
    ("tests/test_signals.py",),
    Mutant(
        "an aborted transaction is not noticed",
        "            raise_if_aborted(connection, responses)\n",
        "",
        inside="after_enqueue",
    ),
)
JOB_LINES = of_tests(
    ("tests/process/test_job_lines.py",),
    Mutant(
        "threads of the engine print the lines of jobs",
        '"django_pgqueue.jobs", ',
        "",
        inside="LOGGERS",
    ),
    Mutant(
        "an error breaks the line of its job",
        '    text = " ".join(text.split())\n',
        "",
        inside="log._error",
    ),
)
LOG_CONTEXT = of_tests(
    ("tests/worker/test_log_context.py",),
    Mutant(
        "the running job replaces the fields of a record",
        "for name in fields.keys() - vars(record).keys()",
        "for name in fields",
        inside="add_job",
    ),
    Mutant(
        "a long message of a cause is not seen",
        "exception.__cause__ or exception.__context__",
        "None",
        inside="_chain",
    ),
)
QUEUES = of_tests(
    ("tests/test_queues.py",),
    Mutant(
        "numbered queues are suggested for each other",
        '    return DIGITS.sub("", first) == DIGITS.sub("", second)',
        "    return False",
        inside="_differ_in_digits",
    ),
    Mutant(
        "an unlisted queue is accepted",
        "        raise ValueError(problem)",
        "        pass",
        inside="queues.check",
    ),
    Mutant(
        "a queue with waiting jobs counts as mistyped",
        "    if name in names or waiting(name, database).exists():",
        "    if name in names:",
        inside="queues._mistyped",
    ),
)
