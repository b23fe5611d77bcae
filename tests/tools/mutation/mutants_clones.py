"""Mutants of the clone guard, and of the adoption of a database.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ADOPT = "django_pgqueue/management/subcommands/adopt_command.py"
GUARD = "django_pgqueue/worker/runtime/clone_guard.py"
HEARTBEAT = "django_pgqueue/worker/supervision/heartbeat.py"
EXPLANATION = "django_pgqueue/stats/explanation.py"
OWNERSHIP = "django_pgqueue/stats/ownership.py"
LINK = "django_pgqueue/worker/runtime/connection.py"

CLONES = [
    *of_tests(
        ("tests/worker/test_clone_guard.py",),
        Mutant(
            "a foreign row beside the own one is overlooked",
            "for adopted in recorded if",
            "for adopted in recorded[-1:] if",
            path=GUARD,
        ),
        Mutant(
            "two first workers do not see each other",
            'on {socket.gethostname()}"[:150])\n        own, recorded = _read(connection)',
            'on {socket.gethostname()}"[:150])',
            path=GUARD,
        ),
        Mutant(
            "a refused connection is used later",
            "            connection.close()\n            raise\n        return connection",
            "            self._connection = connection\n            raise\n        return connection",
            path=LINK,
        ),
        Mutant(
            "the heartbeat extends the leases of a foreign database",
            "            clone_guard.check(connection)",
            "            pass",
            path=HEARTBEAT,
        ),
        Mutant(
            "a recorded installation is recorded again",
            "WHERE NOT EXISTS (SELECT FROM pgqueue_installation)\n",
            "",
            "RECORD_INSTALLATION",
        ),
    ),
    *of_tests(
        ("tests/doctor/test_worker_checks.py", "tests/stats/test_explanation.py"),
        Mutant(
            "the doctor takes an identifier that it may not read for another server",
            "Identity(identifier if is_known else server,",
            "Identity(identifier,",
            path=OWNERSHIP,
        ),
        Mutant(
            "why() says that workers wait although they only warn",
            'CLONE_GUARD == "refuse" else',
            'CLONE_GUARD != "off" else',
            path=EXPLANATION,
        ),
    ),
    *of_tests(
        ("tests/test_adopt.py",),
        Mutant("the other installation stays", "   OR database_oid <> %(database_oid)s\n", "", "ADOPT"),
        Mutant("adopt cancels in its own database", "if recorded and not foreign:", "if False:", path=ADOPT),
        Mutant(
            "adopt does not cancel running jobs",
            "return unfinished.cancel()",
            "return unfinished.cancel(running=False)",
            path=ADOPT,
        ),
        Mutant("adopt ignores live workers", "if not force and", "if False and", path=ADOPT),
        Mutant("queues of schedules are not paused", "names.update(Schedule", "set().update(Schedule", path=ADOPT),
    ),
]
