"""The names that scenarios use are those that the suite's tasks know."""

from tests.tools.faults import app_names
from tests.tools.faults.app.tasks import leaks, poison
from tests.tools.faults.catalogue import load
from tests.tools.faults.mutation import MUTANTS
from tests.tools.mutation.runner import CHECKOUT, mutated


def test_names_are_known():
    assert {*app_names.DEATHS, "segfault"} == set(poison.DEATHS)
    assert set(app_names.ERRORS) == set(poison.ERRORS)
    assert set(app_names.RESULTS) == set(poison.RESULTS)
    assert set(app_names.ODD_BACKOFFS) == set(poison.BACKOFFS)
    assert set(app_names.SPOILED) == set(leaks.SPOILED)
    assert set(app_names.STATEMENTS) == set(leaks.STATEMENTS)
    assert list(app_names.REFUSED) == list(leaks.REFUSED)


def test_every_fault_says_what_it_expects():
    faults = load()
    assert all(fault.invariant and fault.expected for fault in faults)
    assert [fault.id for fault in faults if fault.quick]


def test_every_mutant_fits_the_code_and_names_faults_that_there_are():
    known = {fault.id for fault in load()}
    for broken in MUTANTS:
        mutated((CHECKOUT / broken.mutant.file).read_text(), broken.mutant)
        assert set(broken.faults.split(",")) <= known, broken.mutant.name
