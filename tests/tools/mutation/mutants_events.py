"""Mutants of the signals about workers and their processes, of releases and snoozes.

What a mutant is, and how they are tried: see `mutation`.
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
