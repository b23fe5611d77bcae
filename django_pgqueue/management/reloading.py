"""`runworker --reload`: a worker for development, that starts anew when the project's code changes.

This process watches; the worker is another, and has all modules as they are now. What a running job has not ended
within a moment is given back, uncounted.
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

LOOK_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 1.0
"""Unless another is asked for: who changes code does not want to wait for the old."""
MARK: Final = "PGQUEUE_RELOADED"
"""In the environment of a worker that is watched: the same command line, which says `--reload` still."""
ELSEWHERE: Final = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})

Files = Mapping[Path, float]


def run(stdout: OutputWrapper) -> int:
    """Run workers one after another until told to stop; return the exit code of the last."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    seen = files()
    worker = start()
    try:
        while not stopping.wait(LOOK_SECONDS):
            now = files()
            changed = sorted({path for path, _ in set(seen.items()) ^ set(now.items())})
            seen = now
            if changed:
                stdout.write(f"{changed[0]} has changed: the worker starts anew.")
                stdout.flush()
                end(worker)
                worker = start()
    finally:
        code = end(worker)
    return code


def is_watched() -> bool:
    """Say whether this process is the worker that another watches."""
    return MARK in os.environ


def start() -> subprocess.Popen[bytes]:
    """Start the worker, by what this process was started with."""
    return subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env={**os.environ, MARK: "1"})  # noqa: S603 -- ours


def end(worker: subprocess.Popen[Any]) -> int:
    """Ask a worker to stop, if it runs, and wait until it has; return its exit code."""
    if worker.poll() is None:
        worker.terminate()
    return worker.wait()


def files() -> Files:
    """Return the project's Python files, and when each was last changed: below its apps and beside its settings."""
    found = {}
    for root in roots():
        with suppress(OSError):  # something has gone during the look: the next one sees it
            for path in root.rglob("*.py"):
                if ELSEWHERE.isdisjoint(path.relative_to(root).parts):
                    found[path] = path.stat().st_mtime
    return found


def roots() -> set[Path]:
    """Return the directories of code that somebody may be working on."""
    module = sys.modules[settings.SETTINGS_MODULE].__file__ if settings.SETTINGS_MODULE in sys.modules else None
    given = {Path(config.path) for config in apps.get_app_configs()} | ({Path(module).parent} if module else set())
    own = {path.resolve() for path in given if ELSEWHERE.isdisjoint(path.parts)}
    return {path for path in own if own.isdisjoint(path.parents)}
