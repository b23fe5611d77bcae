"""One rule is one test, which lists every violation. `for_each()` makes it from the check of one case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def check_each(cases: Iterable[Any], check: Callable[[Any], None]) -> None:
    """Check each case, and fail with all violations."""
    wrong = {}
    for case in cases:
        try:
            check(case)
        except AssertionError as error:
            wrong[str(case)] = str(error)
    assert not wrong, "\n".join(f"{case}: {problem}" for case, problem in wrong.items())


def for_each(cases: Iterable[Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Make one test, which covers all cases, of the check of one case.

    A test for each case and rule would make thousands of tests, which would take longer to start than to run.
    """
    known = list(cases)
    assert known, "a rule without cases checks nothing"

    def decorate(check: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            check_each(known, check)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
