"""`runworker --reload`: a worker for development, that starts anew when the project's code changes.

This process watches; the worker is another, and has all modules as they are now. What a running job has not ended
within a moment is given back, uncounted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.management.base import OutputWrapper

LOOK_SECONDS: Final = 0.5
GRACE: Final = ("--grace", "1")
"""Unless another is asked for: who changes code does not want to wait for the old."""
ELSEWHERE: Final = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})

Files = Mapping[Path, float]


def run(stdout: OutputWrapper) -> int:
    """Run workers one after another until told to stop; return the exit code of the last."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    seen = files()
    worker = subprocess.Popen(command(sys.orig_argv))  # noqa: S603 -- what this process was started with
    while not stopping.wait(LOOK_SECONDS):
        now = files()
        changed = sorted({path for path, _ in set(seen.items()) ^ set(now.items())})
        seen = now
        if changed:
            stdout.write(f"{changed[0]} has changed: the worker starts anew.")
            stdout.flush()
            end(worker)
            worker = subprocess.Popen(command(sys.orig_argv))  # noqa: S603 -- as above
    return end(worker)


def command(argv: Iterable[str]) -> list[str]:
    """Return the command line of the worker, from that of this process."""
    words = [sys.executable, *(word for word in list(argv)[1:] if word != "--reload")]
    return words if any(word.startswith("--grace") for word in words) else [*words, *GRACE]


def end(worker: subprocess.Popen[Any]) -> int:
    """Ask a worker to stop, if it runs, and wait until it has; return its exit code."""
    if worker.poll() is None:
        worker.terminate()
    return worker.wait()


def files() -> Files:
    """Return the project's Python files, and when each was last changed: below its apps and beside its settings."""
    found = {}
    for root in roots():
        for path in root.rglob("*.py"):
            if ELSEWHERE.isdisjoint(path.relative_to(root).parts):
                try:
                    found[path] = path.stat().st_mtime
                except FileNotFoundError:  # between the two looks
                    continue
    return found


def roots() -> set[Path]:
    """Return the directories of code that somebody may be working on."""
    module = sys.modules[settings.SETTINGS_MODULE].__file__ if settings.SETTINGS_MODULE in sys.modules else None
    given = {Path(config.path) for config in apps.get_app_configs()} | ({Path(module).parent} if module else set())
    own = {path.resolve() for path in given if ELSEWHERE.isdisjoint(path.parts)}
    return {path for path in own if own.isdisjoint(path.parents)}
