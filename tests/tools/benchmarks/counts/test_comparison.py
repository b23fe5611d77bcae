"""Tests of the comparison with the recorded counts, without a count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.benchmarks.counts import outside, recorded, tables
from tests.tools.benchmarks.counts.figures import SERVER_FIGURES, Found, entered

JOBS = 100
VERSIONS = {"python": "3.11", "django": "5.2", "psycopg": "3.2", "postgresql": "18"}


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty file in place of the recorded counts."""
    monkeypatch.setattr(recorded, "FILE", tmp_path / "recorded.json")
    return tmp_path / "recorded.json"


def counted(calls: int = 7700, library_calls: int = 2000, rows: int = 400, **versions: str) -> Found:
    """Return what the counted program prints, with these counts of 100 jobs."""
    functions = {"django_pgqueue/task.py Task.enqueue": calls, "library json/decoder.py decode": library_calls}
    figures = {**dict.fromkeys(SERVER_FIGURES, 100), "rows": rows, "functions": functions}
    return Found({**VERSIONS, **versions}, JOBS, {"thread": figures}, [])


def test_changes_same_counts_returns_none():
    recorded.record(counted(), "calls")
    assert recorded.changes(counted(), "calls") == []


def test_changes_rise_of_four_percent_names_figure_and_values():
    recorded.record(counted(), "calls")
    [change] = recorded.changes(counted(calls=8008), "calls")
    assert change.is_rise
    assert str(change) == "thread: Python calls, package 77 -> 80.08 a job (+4.0 %)"
    assert "bin/bench --counts --record" in recorded.message([change])


@pytest.mark.parametrize("calls", [7480, 7920])
def test_changes_less_than_three_percent_returns_none(calls):
    recorded.record(counted(), "calls")
    assert recorded.changes(counted(calls=calls), "calls") == []


def test_changes_fewer_calls_is_no_rise():
    recorded.record(counted(), "calls")
    [change] = recorded.changes(counted(calls=7000), "calls")
    assert not change.is_rise


def test_changes_one_more_row_found():
    recorded.record(counted(), "calls")
    assert [change.figure for change in recorded.changes(counted(rows=500), "calls")] == ["rows"]


def test_changes_new_django_ignores_library_calls():
    recorded.record(counted(), "calls")
    assert recorded.changes(counted(library_calls=3000, django="5.3"), "calls") == []
    assert [change.figure for change in recorded.changes(counted(library_calls=3000), "calls")] == ["library_calls"]


def test_is_recorded_other_versions_is_false():
    recorded.record(counted(), "calls")
    assert recorded.is_recorded(counted(), "calls")
    assert not recorded.is_recorded(counted(python="3.13", postgresql="17"), "calls")


def test_changes_other_python_compares_server_only():
    recorded.record(counted(), "calls")
    found = recorded.changes(counted(calls=9000, rows=500, python="3.13"), "calls")
    assert [change.figure for change in found] == ["rows"]


def test_record_second_version_keeps_first_one():
    recorded.record(counted(), "calls")
    recorded.record(counted(python="3.12", postgresql="15"), "calls")
    assert recorded.is_recorded(counted(), "calls")


def test_entered_counts_functions_and_files_of_package():
    assert entered(counted(), ["thread"]) == {"thread": {"functions": 1.0, "files": 1.0}}


def test_functions_table_has_calls_of_each_function():
    assert "| 77 | django_pgqueue/task.py Task.enqueue |" in tables.functions(counted(), ["thread"])


def test_system_calls_counted_between_marks(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "7 read(3)                 = 0\n"
        '7 access("/jobcounts/begin thread", F_OK) = -1 ENOENT\n'
        "7 poll([{fd=3}]) = 1\n"
        "8 futex(0x7f <unfinished ...>\n"
        "7 clock_nanosleep(CLOCK_MONOTONIC) = 0\n"
        "8 <... futex resumed>)    = 0\n"
        '7 access("/jobcounts/end", F_OK) = -1 ENOENT\n'
        "7 write(1)                = 0\n"
    )
    assert outside._calls_between_marks(log) == {"thread": {"poll": 1, "futex": 1}}


def test_record_server_instructions_keeps_other_forms(own_file):
    recorded.record_server_instructions("18", {"thread": {"server_instructions": 295_631.8}})
    recorded.record_server_instructions("18", {"orm": {"server_instructions": 1.0}})
    forms = recorded.read()["server_instructions"]["18"]["forms"]
    assert forms == {"thread": {"server_instructions": 295_632.0}, "orm": {"server_instructions": 1.0}}


def test_record_noise_leaves_file_as_it_is(own_file):
    recorded.record(counted(), "calls")
    before = own_file.read_text()
    recorded.record(counted(calls=7705), "calls")
    assert own_file.read_text() == before
    recorded.record(counted(calls=7800), "calls")
    assert recorded.changes(counted(calls=7800), "calls") == []
    assert own_file.read_text() != before
