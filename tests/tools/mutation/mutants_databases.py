"""Mutants of a worker with several databases, and of the database that a call chooses.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

DATABASES = [
    *of_tests(
        ("tests/worker/test_supervisor_group.py",),
        Mutant(
            "the end of one supervisor stops no other",
            "        self._pass_on(1)\n\n    def _close",
            "\n    def _close",
            inside="SupervisorGroup",
        ),
        Mutant(
            "an empty database stops the others",
            "(self._is_until_empty and exit_code == 0 and not was_stopped)",
            "False",
            inside="SupervisorGroup._ended",
        ),
        Mutant(
            "a supervisor that died ends the worker with exit code 0",
            "max(self.exit_code, int(exit_code != 0))",
            "0",
            inside="SupervisorGroup._ended",
        ),
        Mutant(
            "an ended supervisor makes its worker stuck",
            "    if memory.has_ended:\n",
            "    if False:\n",
            inside="health_report.judge",
        ),
        Mutant(
            "an empty database is not served again",
            "                if self._finished_elsewhere(member) > member.finished_elsewhere:\n",
            "                if False:\n",
            inside="SupervisorGroup._serve_again",
        ),
        Mutant(
            "a database is served again and again",
            "        member.finished_elsewhere = self._finished_elsewhere(member)\n",
            "        member.finished_elsewhere = 0\n",
            inside="SupervisorGroup._ended",
        ),
        Mutant(
            "supervisors outlive their main process",
            "max(1, self.received) if is_orphan else self.received",
            "self.received",
            inside="PassedOnSignals.count",
        ),
        Mutant(
            "a signal acts again in each round",
            "> self.count:\n            self.count = count",
            "> 0:\n            self.count = count",
            inside="StopSignals.look",
        ),
        Mutant(
            "one ready database makes the worker ready",
            "status=min((judgement",
            "status=max((judgement",
            inside="judge_all",
        ),
        Mutant(
            "aliases for LISTEN count as databases of their own",
            " and alias not in get_settings().listen_aliases",
            "",
            inside="_is_ours",
        ),
    ),
    *of_tests(
        ("tests/test_call_database.py",),
        Mutant(
            "a plain chunk mixes databases",
            "            if has_database_of_call:\n                self._check_database(task, args, kwargs)\n",
            "",
            inside="Insertion._plain_calls",
        ),
        Mutant(
            "a batch checks the database of the first call only",
            "        if known is None or callable(task.database):",
            "        if known is None:",
            inside="Insertion._row_of",
        ),
        Mutant(
            "the function gets the arguments as they are stored",
            "    args, kwargs = task.converted_call(args, kwargs)",
            "    args, kwargs = task.encoded_call(args, kwargs)",
            inside="_database_of_call",
        ),
    ),
    *of_tests(
        ("tests/test_db.py",),
        Mutant(
            "many short statements keep their plans",
            "seconds < SLOW_SECONDS and self._spent_seconds < SPENT_SECONDS",
            "seconds < SLOW_SECONDS",
            inside="EngineConnection.after_statement",
        ),
        Mutant(
            "statement time is never spent",
            "time.monotonic(), 0.0",
            "time.monotonic(), 1.0",
            inside="EngineConnection.after_statement",
        ),
    ),
]
