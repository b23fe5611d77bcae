"""The secrets of the example project: the built-in ones are for development only."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BOTH = {"SECRET_KEY": "own", "SHOP_PAYMENT_SECRET": "own too"}


@pytest.mark.parametrize(
    ("environment", "starts"),
    [
        ({}, True),
        ({"DEBUG": "0"}, False),
        ({"DEBUG": "0", "SECRET_KEY": "own"}, False),
        ({"DEBUG": "0", **BOTH, "SECRET_KEY": "insecure-for-development-only"}, False),
        ({"DEBUG": "0", **BOTH}, True),
    ],
)
def test_example_without_debug_needs_own_secrets(environment: dict[str, str], starts: bool) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("DEBUG", *BOTH)}
    command = [sys.executable, "-c", "import example_project.settings"]
    done = subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is starts, done.stderr
    assert starts or "set the environment variables SECRET_KEY and SHOP_PAYMENT_SECRET" in done.stderr
