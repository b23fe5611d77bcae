"""Run a real worker in its own processes, for tests that commit. The fixture `live_worker` uses this module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db import connections

from django_pgqueue import health

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 45.0
SETTINGS: Final = """
import json
import os

import {module} as project

globals().update({{name: value for name, value in vars(project).items() if name.isupper()}})
globals().update(json.loads(os.environ["PGQUEUE_LIVE_CHANGES"]))
"""
"""The worker's settings module: the project's settings with the test's database and overridden settings."""
POLL_SECONDS: Final = 0.01
COMMAND: Final = ("pgqueue", "worker")
"""Not `runworker`, because Channels has a command of that name. The app that is first in INSTALLED_APPS wins."""


class LiveWorker:
    """A real worker (`manage.py pgqueue worker`) on the test's database, with the test's `PGQUEUE` and `TASKS`.

    Start it again only after it has been stopped.

    Args:
        directory: An existing directory for its log, its health file and its settings module.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "worker.log"
        self._health = directory / "health"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The worker's output so far, standard output and standard error."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self, *arguments: str) -> LiveWorker:
        """Start the worker and wait until it is ready.

        Args:
            *arguments: Arguments of `runworker`, such as `"--queues", "mail"`.

        Returns:
            The worker itself.

        Raises:
            RuntimeError: The worker is already running, exits, or is not ready within 30 s. The message contains its
                log.
        """
        if self._process is not None:
            raise RuntimeError("the worker is already running: call stop() first")
        if "DJANGO_SETTINGS_MODULE" not in os.environ:
            raise RuntimeError("live_worker needs a settings module: set DJANGO_SETTINGS_MODULE")
        command = [sys.executable, "-m", "django", *COMMAND, "--health-file", str(self._health), *arguments]
        project = os.environ["DJANGO_SETTINGS_MODULE"]  # settings.SETTINGS_MODULE is None if a test overrides settings
        (self._directory / "pgqueue_live_settings.py").write_text(SETTINGS.format(module=project))
        self._health.unlink(missing_ok=True)  # the file of an earlier worker says that it is ready
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, Django and our command
                command, env=_environment(self._directory), stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self.wait_for(
                lambda: health.judge(str(self._health), ready=True)[0], START_SECONDS, "the worker is not ready"
            )
        except BaseException:
            self._kill()
            raise
        return self

    def wait_for(self, condition: Callable[[], object], seconds: float = 30.0, what: str = "it did not happen") -> None:
        """Wait until a condition is true.

        Args:
            condition: A function without arguments. It is called every 10 ms.
            seconds: Time to wait at most.
            what: Start of the error's message.

        Raises:
            RuntimeError: The condition is not true in time, or the worker exits. The message contains the worker's
                log.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                reason = "the worker has exited" if ended else f"waited {seconds:g} s"
                raise RuntimeError(f"{what} ({reason}). The worker's log:\n{self.log}")
            time.sleep(POLL_SECONDS)

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Wait until no job is due or running, and no job waits for one that is.

        Args:
            seconds: Time to wait at most.

        Raises:
            RuntimeError: Jobs are left after that time, or the worker exits. The message contains the worker's log.
        """
        from django.db.models import Exists, OuterRef, Q
        from django.db.models.functions import Now

        from django_pgqueue.models import Job, JobDependency  # models can be imported only after the apps are loaded

        busy = Job.objects.filter(Q(state="running") | Q(state="ready", run_after__lte=Now()))
        # A job of a workflow whose dependencies have ended becomes ready in a moment.
        open_needs = Q(needs__state__in=["waiting", "ready", "running"]) | Q(
            policy="block", needs__state__in=["dead", "cancelled"]
        )
        edges = JobDependency.objects.filter(open_needs, job=OuterRef("pk"))
        advancing = Job.objects.waiting().filter(~Exists(edges))
        self.wait_for(
            lambda: not (busy.exists() or advancing.exists() or busy.exists()), seconds, "jobs are still due or running"
        )

    def stop(self) -> None:
        """Stop the worker by SIGTERM and wait until it exits. Do nothing if it is not running.

        Raises:
            RuntimeError: The worker does not exit within 45 s, or its exit code is not 0. The message contains its
                log.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the worker did not stop within {STOP_SECONDS:g} s. Its log:\n{self.log}") from None
        if code:
            raise RuntimeError(f"the worker exited with code {code}. Its log:\n{self.log}")

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _environment(directory: Path) -> dict[str, str]:
    databases = {alias: dict(connections[alias].settings_dict) for alias in connections}
    changes = {"DATABASES": json.loads(json.dumps(databases, default=str))} | _changes()
    try:
        changes_json = json.dumps(changes, default=_plain)
    except TypeError as error:
        raise RuntimeError(f"live_worker cannot use the test's PGQUEUE or TASKS: {error}") from None
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "pgqueue_live_settings",
        "PGQUEUE_LIVE_CHANGES": changes_json,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(directory), *sys.path, os.environ.get("PYTHONPATH", "")])),
    }


def _changes() -> dict[str, Any]:
    """Return the settings that the test has overridden. The others come from the project's module."""
    project = sys.modules.get(os.environ["DJANGO_SETTINGS_MODULE"])
    now = {name: getattr(settings, name) for name in ("PGQUEUE", "TASKS") if hasattr(settings, name)}
    return {name: value for name, value in now.items() if value != getattr(project, name, None)}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{value!r} cannot be passed to another process: set it in the settings module instead")
