"""The names in the fault suite match: those of scenarios and its tasks, and those of mutants and faults."""

import pytest

from tests.code_names import code_names
from tests.tools.faults import app_names
from tests.tools.faults.app.tasks import leaks, poison
from tests.tools.faults.catalogue import load
from tests.tools.faults.mutation import MUTANTS
from tests.tools.mutation.runner import mutated


def test_app_names_match_the_names_of_the_tasks():
    assert {*app_names.DEATHS, "segfault"} == set(poison.DEATHS)
    assert set(app_names.ERRORS) == set(poison.ERRORS)
    assert set(app_names.RESULTS) == set(poison.RESULTS)
    assert set(app_names.ODD_BACKOFFS) == set(poison.BACKOFFS)
    assert set(app_names.SPOILED) == set(leaks.SPOILED)
    assert set(app_names.STATEMENTS) == set(leaks.STATEMENTS)
    assert list(app_names.REFUSED) == list(leaks.REFUSED)


@pytest.mark.quick
def test_catalogue_each_fault_has_invariant_and_expected():
    faults = load()
    assert all(fault.invariant and fault.expected for fault in faults)
    assert [fault.id for fault in faults if fault.quick]


@pytest.mark.promise("defect-mutants-without-code")
def test_mutants_fit_the_code_and_name_known_faults():
    known = {fault.id for fault in load()}
    for broken in MUTANTS:
        mutated(broken.mutant, code_names())
        assert set(broken.faults.split(",")) <= known, broken.mutant.name
