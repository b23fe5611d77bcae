"""Mutants of a worker with several databases, and of the database that a call chooses.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

GROUP = "django_pgqueue/worker/supervision/supervisor_group.py"
SIGNALS = "django_pgqueue/worker/supervision/stop_signals.py"
HEALTH = "django_pgqueue/worker/runtime/health_report.py"
BULK = "django_pgqueue/enqueue/bulk.py"
CALL = "django_pgqueue/enqueue/call_database.py"
OURS = "django_pgqueue/queue_databases.py"
CONNECTION = "django_pgqueue/db/engine_connection.py"

DATABASES = [
    *of_tests(
        ("tests/worker/test_supervisor_group.py",),
        Mutant(
            "the end of one supervisor stops no other",
            "        self._pass_on(1)\n\n    def _close",
            "\n    def _close",
            path=GROUP,
        ),
        Mutant(
            "an empty database stops the others",
            "(self._is_until_empty and exit_code == 0 and not was_stopped)",
            "False",
            path=GROUP,
        ),
        Mutant(
            "a supervisor that died ends the worker with exit code 0",
            "max(self.exit_code, int(exit_code != 0))",
            "0",
            path=GROUP,
        ),
        Mutant(
            "an ended supervisor makes its worker stuck",
            "    if memory.has_ended:\n",
            "    if False:\n",
            path=HEALTH,
        ),
        Mutant(
            "an empty database is not served again",
            "                if self._finished_elsewhere(member) > member.finished_elsewhere:\n",
            "                if False:\n",
            path=GROUP,
        ),
        Mutant(
            "a database is served again and again",
            "        member.finished_elsewhere = self._finished_elsewhere(member)\n",
            "        member.finished_elsewhere = 0\n",
            path=GROUP,
        ),
        Mutant(
            "supervisors outlive their main process",
            "max(1, self.received) if is_orphan else self.received",
            "self.received",
            path=SIGNALS,
        ),
        Mutant(
            "a signal acts again in each round",
            "> self.count:\n            self.count = count",
            "> 0:\n            self.count = count",
            path=SIGNALS,
        ),
        Mutant(
            "one ready database makes the worker ready",
            "status=min((judgement",
            "status=max((judgement",
            path=HEALTH,
        ),
        Mutant(
            "aliases for LISTEN count as databases of their own",
            " and alias not in get_settings().listen_aliases",
            "",
            path=OURS,
        ),
    ),
    *of_tests(
        ("tests/test_call_database.py",),
        Mutant(
            "a plain chunk mixes databases",
            "            if callable(task.database):\n                self._check_database(task, args, kwargs)\n",
            "",
            path=BULK,
        ),
        Mutant(
            "a batch checks the database of the first call only",
            "        if known is None or callable(task.database):",
            "        if known is None:",
            path=BULK,
        ),
        Mutant(
            "the function gets the arguments as they are stored",
            "    args, kwargs = task.decoded_call(*task.encoded_call(args, kwargs))",
            "    args, kwargs = task.encoded_call(args, kwargs)",
            path=CALL,
        ),
    ),
    *of_tests(
        ("tests/test_db.py",),
        Mutant(
            "many short statements keep their plans",
            "seconds < SLOW_SECONDS and self._spent_seconds < SPENT_SECONDS",
            "seconds < SLOW_SECONDS",
            path=CONNECTION,
        ),
        Mutant("statement time is never spent", "time.monotonic(), 0.0", "time.monotonic(), 1.0", path=CONNECTION),
    ),
]
