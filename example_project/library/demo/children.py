"""The processes that the demo starts: a worker and the admin's web server, each with a log."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import example_project

MANAGE: Final = Path(example_project.__file__).with_name("manage.py")
PATIENCE_SECONDS: Final = 20.0
LOG_LINES: Final = 20


class Child:
    """A management command as a process of its own.

    In a session of its own too: a terminal's Ctrl-C goes to the demo alone, which then stops its children in order.
    """

    def __init__(self, name: str, *arguments: str, **environment: str) -> None:
        self.name = name
        handle, self.log_path = tempfile.mkstemp(prefix=f"pgqueue-demo-{name}-", suffix=".log")
        with os.fdopen(handle, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, MANAGE, *arguments],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None

    def stop(self) -> bool:
        """Ask the process to end, or see that it does; say whether it went of its own accord."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return False
        return code in (0, -signal.SIGTERM)

    def last_words(self) -> str:
        """Return the end of the process's log."""
        lines = Path(self.log_path).read_text(errors="replace").splitlines()
        return "\n".join([f"{self.log_path}:", *lines[-LOG_LINES:]])

    def forget(self) -> None:
        """Remove the log."""
        Path(self.log_path).unlink(missing_ok=True)


def start_worker() -> Child:
    """Start a worker as in production: two processes, no DEBUG, which keeps a list of all queries in memory."""
    arguments = ["--processes", "2", "--concurrency", "4", "--grace", "5"]
    return Child("worker", "runworker", *arguments, DEBUG="false")


def start_admin(port: int) -> Child:
    """Start Django's own web server."""
    return Child("admin", "runserver", "--noreload", f"127.0.0.1:{port}", DEBUG="true")


def free_port(wanted: int) -> int:
    """Return the port wanted, or if somebody has it one that nobody has."""
    for port in (wanted, 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            number: int = probe.getsockname()[1]
            return number
    raise OSError("127.0.0.1 has no free port")
