"""The documentation names the tests that prove each promise, and a promise without a test is reported."""

from __future__ import annotations

import re

import pytest

from tests.tools import promises
from tests.tools.faults.catalogue import load

PAGE = "| what | checked by |\n|---|---|\n| it works <!-- works --> | {held} |\n"
TESTS = {"works": ["`tests/test_a.py::test_one`", "`tests/test_b.py::test_two`"]}


def test_pages_name_the_current_tests():
    pages = {page: (promises.TOP / page).read_text() for page in promises.PAGES}
    assert promises.problems(pages, promises.marked()) == []


def test_pages_name_known_faults():
    known = {fault.id for fault in load()}
    for page in promises.PAGES:
        for row in promises.rows((promises.TOP / page).read_text()):
            assert set(re.findall(r"\bF\d+[a-z]?\b", row)) <= known, row


def test_pages_have_their_tables():
    counts = [len(list(promises.rows((promises.TOP / page).read_text()))) for page in promises.PAGES]
    assert counts[0] > 130
    assert counts[1] > 70


def test_guarantees_begin_with_a_summary_and_end_with_the_tests():
    text = (promises.TOP / promises.PAGES[0]).read_text()
    summary, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert len(summary.splitlines()) <= 30, "the summary fits on one screen"
    titles = [section.partition("\n")[0] for section in sections]
    assert titles[-2:] == ["Not promised", "The tests"]
    assert all("`tests/" not in section for section in sections[:-1])
    linked = re.findall(r"^\[(.*?)\]\(#", sections[-1], re.MULTILINE)
    assert linked == titles[:-2], "each section has promises, and each promise a section"


def test_written_row_with_its_id_in_a_cell_lists_the_tests():
    text = promises.written("| where | promise | checked by |\n|---|---|---|\n| here | `works` | F19 |\n", TESTS)
    assert text.endswith("| here | `works` | `tests/test_a.py::test_one`, `tests/test_b.py::test_two`, F19 |\n")


def test_written_item_of_a_list_lists_the_tests():
    head = "# Page\n\n- `works`: no promise\n\n## The tests\n\n"
    text = promises.written(f"{head}- `works`: `tests/test_a.py::test_old`, F19\n", TESTS)
    items = "- `works`: `tests/test_a.py::test_one`, `tests/test_b.py::test_two`, F19\n"
    assert text == head + items
    assert promises.problems({"page": text}, TESTS) == []
    [problem] = promises.problems({"page": text + "- F19\n"}, TESTS)
    assert "a row without an id" in problem


def test_written_keeps_faults_and_replaces_tests():
    text = promises.written(PAGE.format(held="`tests/test_old.py::test_gone`, F19 to F21, and the checker"), TESTS)
    held = "`tests/test_a.py::test_one`, `tests/test_b.py::test_two`, F19 to F21, and the checker"
    assert text == PAGE.format(held=held)
    assert promises.problems({"page": text}, TESTS) == []


def test_written_row_with_tests_only_lists_the_tests():
    text = promises.written(PAGE.format(held=""), TESTS)
    assert text == PAGE.format(held="`tests/test_a.py::test_one`, `tests/test_b.py::test_two`")


@pytest.mark.parametrize("held", ["", "F90", "`tests/test_a.py::test_one`"])
def test_problems_renamed_test_page_is_out_of_date(held):
    [problem] = promises.problems({"page": PAGE.format(held=held)}, TESTS)
    assert "out of date" in problem


def test_problems_promise_without_test_is_found():
    [problem] = promises.problems({"page": PAGE.format(held="")}, {})
    assert "no test has @pytest.mark.promise('works')" in problem


@pytest.mark.parametrize("held", ["F90", "the model", "the checker over every history"])
def test_problems_promise_kept_by_a_program_passes(held):
    assert promises.problems({"page": PAGE.format(held=held)}, {}) == []


def test_problems_unknown_id_of_a_test_is_found():
    page = promises.written(PAGE.format(held=""), TESTS)
    [problem] = promises.problems({"page": page}, {**TESTS, "wroks": ["`tests/test_a.py::test_three`"]})
    assert "test_three" in problem
    assert "'wroks'" in problem


def test_problems_row_without_an_id_is_found():
    [problem] = promises.problems({"page": PAGE.format(held="F90").replace(" <!-- works -->", "")}, {})
    assert "a row without an id" in problem


def test_problems_two_rows_with_one_id_are_found():
    page = PAGE.format(held="F90")
    [problem] = promises.problems({"page": page + page.splitlines()[-1] + "\n"}, {})
    assert "2 rows" in problem
