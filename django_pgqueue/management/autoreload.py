"""`runworker --reload`: a worker for development that restarts when the project's code changes.

Called by the `runworker` command. This process only polls the files. The worker is a process of its own, so each
restart imports all modules again. A running job has a short grace period at a restart. If it does not finish in time,
it is released, and the attempt is not counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.management.base import OutputWrapper

from .standard_streams import write_if_writable

POLL_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 1.0
"""Default of `--grace` with `--reload`: a developer does not want to wait for the old code."""
WATCHED_VARIABLE: Final = "PGQUEUE_RELOADED"
"""Environment variable that marks the worker, because its command line also has `--reload`."""
IGNORED_DIRECTORIES: Final = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})
"""Directories that contain no code of the project."""

Files = Mapping[Path, float]


def run(stdout: OutputWrapper) -> int:
    """Run one worker after another until SIGINT or SIGTERM. Return the exit code of the last one."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    seen = files()
    worker = start()
    try:
        while not stopping.wait(POLL_SECONDS):
            now = files()
            changed = sorted({path for path, _ in set(seen.items()) ^ set(now.items())})
            seen = now
            if changed:
                write_if_writable(stdout, f"{changed[0]} has changed: restarting the worker.")
                end(worker)
                worker = start()
    finally:
        code = end(worker)
    return code


def is_watched() -> bool:
    """Return whether this process is the worker, not the process that watches the files."""
    return WATCHED_VARIABLE in os.environ


def start() -> subprocess.Popen[bytes]:
    """Start a worker with the command line of this process."""
    return subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env={**os.environ, WATCHED_VARIABLE: "1"})  # noqa: S603 -- our own command line


def end(worker: subprocess.Popen[Any]) -> int:
    """Stop a worker if it is running, and wait for its end. Return its exit code."""
    if worker.poll() is None:
        worker.terminate()
    return worker.wait()


def files() -> Files:
    """Return the Python files below the project's apps and its settings, with the time of their last change."""
    found = {}
    for root in roots():
        with suppress(OSError):  # a file was removed during the scan: the next scan notices
            for path in root.rglob("*.py"):
                if IGNORED_DIRECTORIES.isdisjoint(path.relative_to(root).parts):
                    found[path] = path.stat().st_mtime
    return found


def roots() -> set[Path]:
    """Return the directories that contain the project's own code."""
    module = sys.modules[settings.SETTINGS_MODULE].__file__ if settings.SETTINGS_MODULE in sys.modules else None
    candidates = {Path(config.path) for config in apps.get_app_configs()} | ({Path(module).parent} if module else set())
    own = {path.resolve() for path in candidates if IGNORED_DIRECTORIES.isdisjoint(path.parts)}
    return {path for path in own if own.isdisjoint(path.parents)}
