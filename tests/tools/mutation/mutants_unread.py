"""Mutants of figures that are read alone, and of ids that are ahead of their sequences.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

UNREAD = [
    *of_tests(
        ("tests/metrics/test_unread.py",),
        Mutant("one unreadable figure hides all others", "is_strict=False", "is_strict=True", inside="read_each"),
        Mutant(
            "an unreadable figure breaks the transaction",
            "with protected(self._connection):",
            "with nullcontext():",
            inside="Figures.read",
        ),
        Mutant("an unreadable figure is not named", "self.unread[name] = reason", "pass", inside="Figures.read"),
        Mutant("a missing table counts as a value", "[:2] in OF_VALUES", "", inside="unreadable"),
        Mutant(
            "a gauge of an unread figure is 0",
            "if any(figure in snapshot.figures.unread for figure in NEEDS.get(gauge.name, ())):",
            "if False:",
            inside="_samples",
        ),
        Mutant(
            "a page that cannot be read answers 500",
            "if (reason := unreadable(error)) is None:",
            "if (reason := unreadable(error)) is not False:",
            inside="_html",
        ),
    ),
    *of_tests(
        ("tests/doctor/test_database_checks.py",),
        Mutant("an id ahead of its sequence is fine", "last_id > drawn[table]", "False", inside="_ids"),
    ),
]
