"""What is told while it goes on."""

from __future__ import annotations

import sys
from datetime import UTC, datetime


def say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")
