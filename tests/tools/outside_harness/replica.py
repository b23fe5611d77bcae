"""Run the adapter as a process, and read the samples that it prints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = Path(__file__).parents[3]
SAMPLING_S: Final = 60
STOP_S: Final = 10
READY: Final = re.compile(r"ready after ([\d.]+) s")


class Replica:
    """One process of the adapter, in a session of its own.

    Args:
        variables: The variables of the protocol, besides those of this process.
        directory: Where to write what it prints. By default, a new directory that `kill()` removes.
    """

    def __init__(self, variables: Mapping[str, object], directory: Path | None = None) -> None:
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="pgqueue-replica-")
        where = directory or Path(self._temporary.name if self._temporary else "")
        self.lines, self.log = where / "lines", where / "log"
        self._seen = 0
        with self.lines.open("wb") as lines, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.tools.outside_harness.adapter"],
                cwd=CHECKOUT,
                env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                stdin=subprocess.DEVNULL,
                stdout=lines,
                stderr=log,
                start_new_session=True,
            )

    def records(self) -> list[dict[str, Any]]:
        """Return the complete lines that the adapter has printed. Each must be JSON."""
        return [json.loads(line) for line in self.lines.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def values(self, metric: str) -> list[float]:
        """Return the samples of a metric, oldest first."""
        return [record["value"] for record in self.records() if record.get("metric") == metric]

    def new_values(self) -> dict[str, list[float]]:
        """Return the samples of each metric since the last call."""
        records = self.records()
        found: dict[str, list[float]] = defaultdict(list)
        for record in records[self._seen :]:
            if "metric" in record:
                found[record["metric"]].append(record["value"])
        self._seen = len(records)
        return found

    def check(self) -> None:
        """Fail with the log if the adapter has ended."""
        assert self.process.poll() is None, self.log.read_text()

    def wait_until_sampling(self, samples: int = 1) -> None:
        """Wait for this many samples in which jobs have ended."""
        until = time.monotonic() + SAMPLING_S
        while sum(rate > 0 for rate in self.values("completion_rate")) < samples:
            self.check()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)

    def ready_seconds(self) -> float:
        """Return how long after its start the worker was ready, from the log; not a number if it is not there."""
        found = READY.search(self.log.read_text())
        return float(found[1]) if found else float("nan")

    def stop(self) -> None:
        """Stop the adapter as the harness does. Fail with the log if it does not exit with 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_S) == 0, self.log.read_text()

    def kill(self) -> None:
        """Kill all its processes, if they still run, and remove its directory."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._temporary:
            self._temporary.cleanup()
