"""A worker as a real process: started, signalled, looked into, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.db import connection

from tests import helpers

QUICK = {
    "LEASE": 2.0,
    "RESCUE_INTERVAL": 0.25,
    "POLL_INTERVAL": 1.0,
    "POLL_INTERVAL_WITHOUT_LISTEN": 0.2,
    "PRUNE_INTERVAL": 0.5,
    "GRACE": 2.0,
}
"""Times short enough that a test need not wait long for a lease to run out."""


DATABASE_KEYS = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")


def environment(database: dict[str, Any] | None, **options: Any) -> dict[str, str]:
    """The environment of a process that is to use this test's database, or the one given."""
    where = database or {key: connection.settings_dict[key] for key in DATABASE_KEYS}
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
        "PGQUEUE_TEST_DATABASE": json.dumps(where),
        "PGQUEUE_TEST_OPTIONS": json.dumps(QUICK | options),
        "PYTHONWARNINGS": "default",
    }


def django(*arguments: str, database: dict[str, Any] | None = None, **options: Any) -> str:
    """Run a management command to its end; return what it wrote."""
    command = [sys.executable, "-m", "django", *arguments]
    done = subprocess.run(command, env=environment(database, **options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command_of(pid: int) -> str:
    """The name of a process, or nothing if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def descendants(pid: int) -> list[int]:
    """The processes below one, at all depths."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [one for child in text.split() for one in (int(child), *descendants(int(child)))]


class Worker:
    """`manage.py runworker` under this test's control."""

    def __init__(
        self,
        log: Path,
        *arguments: str,
        database: dict[str, Any] | None = None,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        output: int | None = None,
        **options: Any,
    ) -> None:
        """Start one: `prefix` is a program that starts it, `variables` go into its environment, options to PGQUEUE.

        What it writes is in the file `log`, except where `output` is another descriptor.
        """
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "django", "runworker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file if output is None else output,
                stderr=file if output is None else output,
                env=environment(database, **options) | dict(variables),
                start_new_session=True,
            )

    @property
    def children(self) -> list[int]:
        """The worker processes under the supervisor, the oldest first."""
        return [pid for pid in self.forked if not command_of(pid).startswith("pgqueue-")]

    @property
    def forked(self) -> list[int]:
        """All processes that the supervisor has forked, its helpers included."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    @property
    def said(self) -> str:
        """All that it has logged."""
        return self.log.read_text()

    def wait_for_child(self) -> int:
        """Wait until a worker process runs, and return its pid."""
        self.wait_until(lambda: set(self.forked) > set(self.children) != set())  # a helper gets its name after its fork
        return self.children[0]

    def wait_until(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        """Wait for a condition; if it does not come about, fail with what the worker has said."""
        try:
            return helpers.wait_until(condition, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said}") from None

    def wait_until_ready(self) -> int:
        """Wait until its fetcher and listener are connected; return the pid of its first child."""
        self.wait_for_child()
        self.wait_until(lambda: "is ready" in self.said)
        return self.wait_for_child()

    def send(self, number: int) -> None:
        """Send a signal to the supervisor alone."""
        self.process.send_signal(number)

    def send_all(self, number: int) -> None:
        """Send a signal to supervisor and children, as a terminal's Ctrl-C or an out-of-memory killer does."""
        for pid in [*self.children, self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def exit_code(self, seconds: float = 20) -> int:
        """Wait until it has ended; return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker has not ended in {seconds} s:\n{self.said}") from None

    def has_drained(self, seconds: float = 30) -> bool:
        """Wait until it has ended; say whether all was well."""
        assert self.exit_code(seconds) == 0, self.said
        return True

    def assert_sound(self) -> None:
        """Fail if anything in the worker's own machinery went wrong, whatever became of the jobs."""
        for words in ("Exception in callback", "never retrieved", "worker process failed", "cleaning up after"):
            assert words not in self.said, self.said

    def end(self) -> None:
        """End it and its children, whatever state they are in."""
        children = self.forked
        for pid in [self.process.pid, *children]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
