"""Run workers as real processes in tests: start them, send them signals, read their logs, and always end them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from django.db import connection

from tests import helpers

from .preloaded import PreloadedProcess, can_fork_with

QUICK = {
    "LEASE": 2.0,
    "RESCUE_INTERVAL": 0.25,
    "POLL_INTERVAL": 1.0,
    "POLL_INTERVAL_WITHOUT_LISTEN": 0.2,
    "PRUNE_INTERVAL": 0.5,
    "GRACE": 2.0,
}
"""Settings with short times, so that a test need not wait long until a lease expires."""


DATABASE_KEYS = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")


def environment(database: dict[str, Any] | None, **options: Any) -> dict[str, str]:
    """Return the environment of a process that uses the given database, by default the database of this test."""
    where = database or {key: connection.settings_dict[key] for key in DATABASE_KEYS}
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
        "PGQUEUE_TEST_DATABASE": json.dumps(where),
        "PGQUEUE_TEST_OPTIONS": json.dumps(QUICK | options),
        "PYTHONWARNINGS": "default",
    }


def database_url() -> str:
    """Return the address of the database of this test."""
    where = {key: quote(str(connection.settings_dict[key]), safe="") for key in ("USER", "HOST", "PORT", "NAME")}
    return "postgresql://{USER}@{HOST}:{PORT}/{NAME}".format(**where)


def django(*arguments: str, database: dict[str, Any] | None = None, **options: Any) -> str:
    """Run a management command until it ends, and return its standard output."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        variables = environment(database, **options)
        process = PreloadedProcess(list(arguments), variables, output.fileno(), errors.fileno())
        code = process.wait()
        output.seek(0)
        errors.seek(0)
        assert code == 0, errors.read()
        return output.read()


def command_of(pid: int) -> str:
    """Return the name of a process, or an empty string if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, at all depths."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [one for child in text.split() for one in (int(child), *descendants(int(child)))]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; False for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def page(port: int, path: str) -> tuple[int, str]:
    """Return the status and the body of a page of the metrics port, or (0, "") while nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return 0, ""


class Worker:
    """A process of `manage.py runworker` that the test controls."""

    def __init__(
        self,
        log: Path,
        *arguments: str,
        database: dict[str, Any] | None = None,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        output: int | None = None,
        fresh_start: bool = False,
        **options: Any,
    ) -> None:
        """Start the worker, as a fork of a process with imported modules if that makes no difference.

        Args:
            log: The file to which the worker writes its output.
            arguments: Arguments of `runworker`.
            database: Settings of the database; by default, the database of this test.
            prefix: The command line of a program that starts the worker.
            variables: Additional environment variables.
            output: A file descriptor to which the worker writes instead of `log`.
            fresh_start: Start Python anew for the worker, in any case.
            options: Settings in PGQUEUE.
        """
        self.log = log
        command, variables_of_all = ["runworker", *arguments], environment(database, **options) | dict(variables)
        self.process: subprocess.Popen[bytes] | PreloadedProcess
        with log.open("ab") as file:
            written = file.fileno() if output is None else output
            if not prefix and not fresh_start and can_fork_with(variables):
                self.process = PreloadedProcess(command, variables_of_all, written, written)
                return
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "django", *command],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env=variables_of_all,
                start_new_session=True,
            )

    @property
    def children(self) -> list[int]:
        """The worker processes of the supervisor, oldest first."""
        return [pid for pid in self.forked if not command_of(pid).startswith("pgqueue-")]

    @property
    def forked(self) -> list[int]:
        """All processes that the supervisor has forked, including its helper processes."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    @property
    def said(self) -> str:
        """Everything that the worker has logged."""
        return self.log.read_text()

    def wait_for_child(self) -> int:
        """Wait until a worker process runs, and return its process id."""
        self.wait_until(lambda: set(self.forked) > set(self.children) != set())  # a helper is named after its fork
        return self.children[0]

    def wait_until(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        """Wait until a condition is true. If it stays false, fail with the worker's log."""
        try:
            return helpers.wait_until(condition, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said}") from None

    def wait_until_ready(self) -> int:
        """Wait until fetcher and listener are connected, and return the process id of the first worker process."""
        self.wait_for_child()
        self.wait_until(lambda: "is ready" in self.said)
        return self.wait_for_child()

    def send(self, number: int) -> None:
        """Send a signal to the supervisor only."""
        self.process.send_signal(number)

    def send_all(self, number: int) -> None:
        """Send a signal to the supervisor and its worker processes, as Ctrl-C or an out-of-memory killer does."""
        for pid in [*self.children, self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def exit_code(self, seconds: float = 20) -> int:
        """Wait until the worker has ended, and return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker has not ended in {seconds} s:\n{self.said}") from None

    def has_drained(self, seconds: float = 30) -> bool:
        """Wait until the worker has ended; return True, or fail if its exit code is not 0."""
        assert self.exit_code(seconds) == 0, self.said
        return True

    def assert_sound(self) -> None:
        """Fail if the log reports an error in the worker itself, whatever happened to the jobs."""
        for words in ("Exception in callback", "never retrieved", "worker process failed", "cleaning up after"):
            assert words not in self.said, self.said

    def end(self) -> None:
        """Kill the worker and the processes that it has forked, in whatever state they are."""
        children = self.forked
        for pid in [self.process.pid, *children]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
