"""Two runs of the demo on a small folder.

The second run keeps serving the admin; the tests change a document in its database and then stop it. The tests share
the two runs and depend on their order in this file.
"""

import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Start, end, users_of

pytestmark = pytest.mark.process

TAMPER = """
from django.db.models import F
from example_project.library.models import Document
assert Document.objects.filter(path__endswith="/module_7.py").update(words=F("words") + 1) == 1
"""


@pytest.fixture(scope="module")
def first_run(start: Start, folder: Path) -> tuple[int, str]:
    return end(start("demo", folder, "--deadline", 60))


@pytest.fixture(scope="module")
def served(start: Start, folder: Path, first_run: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process of the second run, which serves the admin, and its URL."""
    process = start("demo", folder, "--deadline", 60, "--serve", "--port", 0)
    assert process.stdout
    output = ""
    for line in process.stdout:
        output += line
        if found := re.search(r"http://\S+", line):
            yield process, found[0]
            return
    raise AssertionError(output)


def test_demo_first_run_reports_correct_counts(first_run):
    code, output = first_run
    assert code == 0, output
    assert "30 documents in = 25 succeeded + 5 dead" in output
    assert re.search(r"\b4 dead: binary file \(Dead\)", output)
    assert re.search(r"\b1 dead: not UTF-8 text \(Dead\)", output)
    assert re.search(r"announce_document +2 +2 +0 +1 +0\n", output)
    assert "30 documents: lines, words and SHA-256 match the files" in output
    assert "Everything is correct." in output


def test_demo_first_run_leaves_no_process(first_run, place):
    assert users_of(place) == []


def test_demo_serve_shows_the_admin_login(served):
    _, url = served
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 -- printed by the demo
        assert answer.status == 200
        assert "Log in" in answer.read().decode()


def test_search_indexed_words_finds_the_document(served, start):
    code, output = end(start("search", "--limit", 30, "savepoints", "or", "nowhere"))
    assert code == 0, output
    assert "module_3.py\n    Module 3 about savepoints." in output


def test_demo_while_another_runs_is_refused(served, start, folder):
    code, output = end(start("demo", folder))
    assert code == 1
    assert "Another demo is running" in output


def test_check_documents_wrong_count_is_reported(served, start):
    code, output = end(start("shell", "-c", TAMPER))
    assert code == 0, output
    code, output = end(start("check_documents"))
    assert code == 1
    assert "module_7.py: stored are" in output
    assert "its sum is" not in output


def test_demo_interrupt_stops_all_processes(served, place):
    process, _ = served
    assert len(users_of(place)) >= 5 or not Path("/proc/self").exists()  # demo, admin, worker and its two, PostgreSQL's
    process.send_signal(signal.SIGINT)
    code, output = end(process)
    assert code == 0, output
    assert "The admin has stopped." in output
    assert "The worker has stopped." in output
    assert users_of(place) == []
