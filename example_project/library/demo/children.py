"""The processes that the demo starts: a worker and a web server for the admin, each with a log file."""

from __future__ import annotations

import os
import secrets
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
STOP_SECONDS: Final = 20.0
LOG_LINES: Final = 20

SECRETS = {name: secrets.token_urlsafe() for name in ("SECRET_KEY", "SHOP_PAYMENT_SECRET")}
"""Secrets of this run of the demo. Without DEBUG, the settings accept no built-in ones."""


class Child:
    """A management command that runs in a process and a session of its own.

    Because of the session, Ctrl-C in a terminal signals only the demo, which then stops its children in order.
    """

    def __init__(self, name: str, *arguments: str, **environment: str) -> None:
        self.name = name
        handle, self.log_path = tempfile.mkstemp(prefix=f"pgqueue-demo-{name}-", suffix=".log")
        with os.fdopen(handle, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, MANAGE, *arguments],
                env={**SECRETS, **os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether the process has exited."""
        return self.process.poll() is not None

    def stop(self) -> bool:
        """Stop the process by SIGTERM, or by SIGKILL after 20 s. Return whether it exited cleanly."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return False
        return code in (0, -signal.SIGTERM)

    def log_tail(self) -> str:
        """Return the path and the last lines of the process's log."""
        lines = Path(self.log_path).read_text(errors="replace").splitlines()
        return "\n".join([f"{self.log_path}:", *lines[-LOG_LINES:]])

    def forget(self) -> None:
        """Delete the log."""
        Path(self.log_path).unlink(missing_ok=True)


def start_worker() -> Child:
    """Start a worker as in production: two processes, and no DEBUG, which would keep all queries in memory."""
    arguments = ["--processes", "2", "--concurrency", "4", "--grace", "5"]
    return Child("worker", "runworker", *arguments, DEBUG="false")


def start_admin(port: int) -> Child:
    """Start Django's development server, which serves the admin."""
    return Child("admin", "runserver", "--noreload", f"127.0.0.1:{port}", DEBUG="true")


def free_port(wanted: int) -> int:
    """Return the wanted port, or another free port if it is in use."""
    for port in (wanted, 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            number: int = probe.getsockname()[1]
            return number
    raise OSError("No free port on 127.0.0.1.")
