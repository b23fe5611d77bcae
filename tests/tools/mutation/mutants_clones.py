"""Mutants of the clone guard, and of the adoption of a database.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

CLONES = [
    *of_tests(
        ("tests/worker/test_clone_guard.py",),
        Mutant(
            "a foreign row beside the own one is overlooked",
            "for adopted in recorded if",
            "for adopted in recorded[-1:] if",
            inside="difference",
        ),
        Mutant(
            "two first workers do not see each other",
            'on {socket.gethostname()}"[:150])\n        own, recorded = _read(connection)',
            'on {socket.gethostname()}"[:150])',
            inside="difference",
        ),
        Mutant(
            "a refused connection is used later",
            "            connection.close()\n            raise\n        return connection",
            "            self.open_connection = connection\n            raise\n        return connection",
            inside="Link._connect",
        ),
        Mutant(
            "the heartbeat extends the leases of a foreign database",
            "            clone_guard.check(connection)",
            "            pass",
            inside="HeartbeatSender.send",
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
            inside="read_ownership",
        ),
        Mutant(
            "why() says that workers wait although they only warn",
            'CLONE_GUARD == "refuse" else',
            'CLONE_GUARD != "off" else',
            inside="other_installation",
        ),
    ),
    *of_tests(
        ("tests/test_adopt.py",),
        Mutant("the other installation stays", "   OR database_oid <> %(database_oid)s\n", "", "ADOPT"),
        Mutant(
            "adopt cancels in its own database",
            "if recorded and not foreign:",
            "if False:",
            inside="adopt_command._run",
        ),
        Mutant(
            "adopt does not cancel running jobs",
            "JobsToChange(connection, batch, record=record))",
            "JobsToChange(connection, batch, record=record), running=False)",
            inside="_cancel_jobs",
        ),
        Mutant("adopt ignores live workers", "if not force and", "if False and", inside="_refuse_live_database"),
        Mutant(
            "queues of schedules are not paused",
            "names.update(Schedule",
            "set().update(Schedule",
            inside="_pause_queues",
        ),
    ),
]
