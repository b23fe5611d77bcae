"""Whether the mutants still fit: apart, for in a copy with a mutant in it this fails whatever the mutant is."""

from __future__ import annotations

import pytest

from tests.tools.mutation.runner import CHECKOUT, MUTANTS, mutated


@pytest.mark.parametrize("path", sorted({mutant.file for mutant in MUTANTS}))
def test_every_mutant_fits_the_code(path):
    """One that does not would be found out only when all are tried, which is seldom."""
    text = (CHECKOUT / path).read_text()
    for mutant in MUTANTS:
        if mutant.file == path:
            assert mutated(text, mutant) != text, mutant.name
