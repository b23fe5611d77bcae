"""What a suite run says: a line for each fault as it ends, a summary, and the same as JSON."""

from __future__ import annotations

import json
import platform
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import django
import psycopg

import django_pgqueue
from tests.tools.faults.catalogue import Fault


class Row(NamedTuple):
    """How one scenario went; `status` is ok, FAILED or skipped."""

    fault: Fault
    status: str
    measured: str
    seconds: float
    detail: str = ""
    """Of a failure: everything that helps."""

    def line(self) -> str:
        """The row as one line of text."""
        fault = self.fault
        return (
            f"{self.status:7} {fault.id:5} {fault.title} | {fault.invariant} | expected: {fault.expected}"
            f" | measured: {self.measured} | {self.seconds:.1f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it."""
        fault = self.fault
        return {
            "id": fault.id,
            "fault": fault.title,
            "invariant": fault.invariant,
            "expected": fault.expected,
            "measured": self.measured,
            "status": self.status,
            "seconds": round(self.seconds, 1),
            "detail": self.detail,
        }


def counts(rows: list[Row]) -> dict[str, int]:
    """How many rows went which way."""
    found = Counter(row.status for row in rows)
    return {status: found[status] for status in ("ok", "FAILED", "skipped")}


def summary(rows: list[Row], seed: int) -> str:
    """The last lines: what failed, what was skipped and why, and the counts."""
    told = [f"{row.status}: {row.fault.id}: {row.detail or row.measured}" for row in rows if row.status != "ok"]
    tally = ", ".join(f"{number} {status}" for status, number in counts(rows).items())
    return "\n".join([*told, f"{len(rows)} faults: {tally}; seed {seed}"])


def versions(server: str) -> dict[str, str]:
    """What the run was made with."""
    return {
        "django_pgqueue": django_pgqueue.__version__,
        "postgresql": server,
        "python": platform.python_version(),
        "django": django.__version__,
        "psycopg": psycopg.__version__,
        "system": f"{platform.system()} {platform.release()}",
    }


def write(path: Path, rows: list[Row], *, seed: int, server: str, soak: dict[str, Any] | None = None) -> None:
    """Write the whole run as JSON."""
    whole = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "versions": versions(server),
        "summary": counts(rows),
        "faults": [row.as_dict() for row in rows],
        **({"soak": soak} if soak else {}),
    }
    path.write_text(json.dumps(whole, indent=2) + "\n")
