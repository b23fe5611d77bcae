"""Applications on systems without the names of POSIX enqueue, test and operate. A worker says what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.process.harness import DATABASE_KEYS, environment

pytestmark = pytest.mark.slow


@pytest.fixture
def said(committing) -> list[str]:
    """Run the program without the names of POSIX, and return the lines that it prints."""
    where = {key: connection.settings_dict[key] for key in DATABASE_KEYS}
    database = {**where, "ENGINE": "django.db.backends.postgresql"}
    program = Path(__file__).with_name("without_posix_program.py")
    done = subprocess.run(
        [sys.executable, "-m", "tests.without_posix", str(program)],
        env=environment(database),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_application_without_posix_names_works(said: list[str]) -> None:
    assert "jobs 4" in said
    [run] = [line for line in said if line.startswith("run ")]
    assert run.endswith(" 7"), run
    pages = [line.split()[1:] for line in said if line.startswith("page ")]
    assert len(pages) == 8 and {status for _, status in pages} == {"200"}, pages
    commands = [line for line in said if line.startswith("command ")]
    assert len(commands) == 7 and not any("Error" in line for line in commands), commands


def test_worker_without_posix_names_says_what_it_needs(said: list[str]) -> None:
    sentence = "CommandError: A worker needs a POSIX system such as Linux, because it forks."
    found = {line.split()[0]: line for line in said if line.strip()}
    assert found["runworker"].startswith(f"runworker {sentence}")
    assert found["worker"].startswith(f"worker {sentence}")
    assert "needs flock()" in found["archive"] and "--table" in found["archive"]
