"""The real worker, in processes of its own, for a test that commits."""

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
"""The project's, on the test's database, as the test has them."""
LOOK_SECONDS: Final = 0.01
OURS: Final = ("pgqueue", "worker")
"""Not `runworker`: Channels has a command of that name, and an app that comes earlier in INSTALLED_APPS wins."""


class LiveWorker:
    """`manage.py pgqueue worker` on the test's database, with the test's `PGQUEUE` and `TASKS`; one at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "worker.log"
        self._health = directory / "health"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What the worker has written."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self, *arguments: str) -> LiveWorker:
        """Start it with these arguments of `runworker`, and wait until it is ready.

        Raises `RuntimeError`, with its log, if it ends before or is not ready within 30 s.
        """
        if self._process is not None:
            raise RuntimeError("the worker runs already: stop it first")
        if "DJANGO_SETTINGS_MODULE" not in os.environ:
            raise RuntimeError("live_worker needs settings in a module that DJANGO_SETTINGS_MODULE names")
        command = [sys.executable, "-m", "django", *OURS, "--health-file", str(self._health), *arguments]
        project = os.environ["DJANGO_SETTINGS_MODULE"]  # overridden settings do not know theirs
        (self._directory / "pgqueue_live_settings.py").write_text(SETTINGS.format(module=project))
        self._health.unlink(missing_ok=True)  # an earlier one's, which was ready
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, Django and our command
                command, env=_environment(self._directory), stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self.wait_for(self._is_ready, START_SECONDS, "the worker is not ready")
        except BaseException:
            self._end_at_once()
            raise
        return self

    def wait_for(self, condition: Callable[[], object], seconds: float = 30.0, what: str = "it did not happen") -> None:
        """Wait until a condition holds; raises `RuntimeError`, with the log, if that takes longer or it ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                why = "the worker has ended" if ended else f"within {seconds:g} s"
                raise RuntimeError(f"{what} ({why}). Its log:\n{self.log}")
            time.sleep(LOOK_SECONDS)

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Wait until no job is due or running; raises as `wait_for`."""
        from django.db.models import Q
        from django.db.models.functions import Now

        from django_pgqueue.models import Job  # after the apps are loaded

        busy = Job.objects.filter(Q(state="running") | Q(state="ready", run_after__lte=Now()))
        self.wait_for(lambda: not busy.exists(), seconds, "there are jobs left")

    def stop(self) -> None:
        """Stop it as an operator would; raises `RuntimeError`, with its log, if it does not end well."""
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
            raise RuntimeError(f"the worker ended with code {code}. Its log:\n{self.log}")

    def _end_at_once(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        is_well, _ = health.judge(str(self._health), ready=True)
        return is_well


def _environment(directory: Path) -> dict[str, str]:
    databases = {alias: dict(connections[alias].settings_dict) for alias in connections}
    changes = {"DATABASES": json.loads(json.dumps(databases, default=str))} | _changes()
    try:
        told = json.dumps(changes, default=_plain)
    except TypeError as error:
        raise RuntimeError(f"live_worker cannot be given the test's PGQUEUE or TASKS: {error}") from None
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "pgqueue_live_settings",
        "PGQUEUE_LIVE_CHANGES": told,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(directory), *sys.path, os.environ.get("PYTHONPATH", "")])),
    }


def _changes() -> dict[str, Any]:
    """Return what the test has changed; the rest is in the project's module as it was written, whatever it is."""
    project = sys.modules.get(os.environ["DJANGO_SETTINGS_MODULE"])
    now = {name: getattr(settings, name) for name in ("PGQUEUE", "TASKS") if hasattr(settings, name)}
    return {name: value for name, value in now.items() if value != getattr(project, name, None)}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{value!r} cannot be told to another process: override it in the settings module instead")
