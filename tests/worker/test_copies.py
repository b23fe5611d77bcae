"""Test that a process that application code has forked does not go on as a copy of the worker."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.promise("copies-of-a-worker-end")
def test_call_here_that_forks_ends_the_copy():
    script = (
        "import os; from django_pgqueue.worker.runtime.process_info import call_here; "
        "call_here(os.fork); print('went on', flush=True)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "went on\n"
