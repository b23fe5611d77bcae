"""The mutants still fit the code.

The test is apart from the tests that run against mutants, because in a copy with a mutant it fails whatever the
mutant is.
"""

from __future__ import annotations

import pytest

from tests.tools.mutation.runner import CHECKOUT, MUTANTS, QUICK, mutated


@pytest.mark.parametrize("path", sorted({mutant.file for mutant in MUTANTS}))
def test_mutants_of_each_file_fit_its_code(path):
    """Otherwise a mutant that no longer fits is noticed only when all mutants are run, which happens rarely."""
    text = (CHECKOUT / path).read_text()
    for mutant in MUTANTS:
        if mutant.file == path:
            assert mutated(text, mutant) != text, mutant.name


def test_mutants_name_tests_that_exist():
    """Otherwise pytest runs no test at all, and the run ends before its first mutant."""
    named = {test.partition("::")[0] for mutant in MUTANTS for test in mutant.tests or QUICK}
    assert [name for name in sorted(named) if not (CHECKOUT / name).exists()] == []
