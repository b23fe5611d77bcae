"""The page of fault results has a line for each fault, and a run of all faults can replace its lists."""

from __future__ import annotations

import pytest

from tests.tools.faults import cli, results_page
from tests.tools.faults.catalogue import Fault, load
from tests.tools.faults.report import Row
from tests.tools.faults.results_page import BEGIN, END, PAGE

PAGE_TEXT = f"# Results\n\nBefore.\n\n{BEGIN}\nEarlier tables.\n\n{END}\nAfter.\n"
VERSIONS = {"system": "Linux 6.1.2", "postgresql": "18", "python": "3.11", "django": "5.2", "psycopg": "3.3"}


def fault(name: str) -> Fault:
    return next(each for each in load() if each.id == name)


def part(*rows: Row) -> str:
    return results_page.part(rows, date="2026-01-02", seed=7, jobs=2, seconds=600, versions=VERSIONS)


def test_groups_have_each_fault_once():
    grouped = [each for ids in results_page.GROUPS.values() for each in ids.split()]
    assert sorted(grouped) == sorted(each.id for each in load())


def test_page_has_a_line_for_each_fault():
    lines = list(results_page.results(PAGE.read_text()))
    assert sorted(name for name, _, _ in lines) == sorted(each.id for each in load())
    unknown = [name for name, _, result in lines if result == results_page.NOT_RUN]
    assert unknown == [], "run this fault, and write down its result"


def test_fault_without_a_line_is_marked_as_not_run():
    page = PAGE.read_text()
    without = page.replace("- **F04** ", "- ")
    assert without != page
    refreshed = {name: result for name, _, result in results_page.results(results_page.refreshed(without))}
    assert refreshed["F04"] == results_page.NOT_RUN


def test_page_has_the_texts_of_the_catalogue():
    assert results_page.main([]) == 0


def test_part_has_a_list_for_each_group_of_the_run():
    text = part(Row(fault("F04"), "ok", "exit code 0", 1.0), Row(fault("F02"), "ok", "closed", 1.0))
    assert "2 faults in 10 minutes. The results were: 2 passed, 0 failed, 0 skipped." in " ".join(text.split())
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Lost and frozen hosts and processes", "## Stops and signals"]
    assert [name for name, _, _ in results_page.results(f"{BEGIN}{text}{END}")] == ["F02", "F04"]


@pytest.mark.parametrize(
    ("status", "measured", "detail", "result"),
    [
        ("ok", "a (b)", "", "passed"),
        ("skipped", "no (nft)", "", "**skipped**: no (nft)"),
        ("FAILED", "see below", "Traceback\nAssertionError: 3 jobs\n", "**FAILED**: AssertionError: 3 jobs"),
    ],
)
def test_line_of_each_status_has_its_result(status, measured, detail, result):
    text = part(Row(fault("F04"), status, measured, 1.0, detail))
    assert list(results_page.results(f"{BEGIN}{text}{END}")) == [("F04", fault("F04").title, result)]


def test_write_replaces_only_the_part_between_the_comments(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE_TEXT)
    results_page.write(page, part(Row(fault("F04"), "ok", "exit code 0", 1.0)))
    text = page.read_text()
    assert text.startswith(PAGE_TEXT.partition(BEGIN)[0] + BEGIN)
    assert text.endswith(f"\n{END}\nAfter.\n")
    assert "Earlier tables" not in text
    assert [name for name, _, _ in results_page.results(text)] == ["F04"]


def test_write_into_another_file_writes_the_part_alone(tmp_path):
    results_page.write(tmp_path / "rows.md", "the part\n")
    assert (tmp_path / "rows.md").read_text() == "the part\n"


@pytest.mark.parametrize("option", [["--only", "F04"], ["--quick"], ["--soak", "1"]])
def test_run_of_some_faults_is_refused_for_the_page(tmp_path, option):
    page = tmp_path / "page.md"
    page.write_text(PAGE_TEXT)
    with pytest.raises(SystemExit, match="only a run of all faults"):
        cli.main([*option, "--markdown", str(page)])
    assert page.read_text() == PAGE_TEXT


def test_page_of_a_new_run_stays_when_it_is_refreshed():
    new = part(*(Row(each, "ok", "a | b", 1.0) for each in load()))
    page = results_page.written(PAGE.read_text(), new)
    assert page != PAGE.read_text()
    assert results_page.refreshed(page) == page
