"""The quick part of the fault suite, as CI runs it. It takes half a minute on two cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.process
@pytest.mark.timeout(400)
def test_fault_suite_quick_run_has_no_failures(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.faults", "--quick", "--jobs", "4", "--keep", tmp_path / "histories"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},  # as in a shell
    )
    assert done.returncode == 0, done.stdout
    assert ", 0 FAILED" in done.stdout
    assert "0 skipped" in done.stdout, done.stdout
