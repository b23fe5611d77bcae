"""Decide what a command may print: colours and moving lines are for terminals only.

`NO_COLOR` in the environment turns colours off (https://no-color.org), as `--no-color` does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from django.core.management.base import OutputWrapper


def is_terminal(stdout: OutputWrapper) -> bool:
    """Return whether the output is a terminal that understands control codes."""
    return stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def is_coloured(stdout: OutputWrapper, arguments: Mapping[str, Any]) -> bool:
    """Return whether lines may be coloured."""
    if arguments.get("force_color"):
        return True
    return is_terminal(stdout) and not arguments.get("no_color") and not os.environ.get("NO_COLOR")
