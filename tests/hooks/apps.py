"""Installs what `PGQUEUE_TEST_HOOKS` names, separated by commas, in the worker that a test starts."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from django.apps import AppConfig

from django_pgqueue import signals

FILE = "PGQUEUE_TEST_HOOKS_FILE"
"""In the environment: where the hooks write a line about each call."""


def note(line: str) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def slow_receiver(**named: Any) -> None:
    note("receiver began")
    time.sleep(10)
    note("receiver ended")


def exiting_receiver(**named: Any) -> None:
    note("receiver began")
    raise SystemExit(0)


def on_stopping(kind: str, **named: Any) -> None:
    note(f"stopping {kind} {os.getpid()}")


class Raising(logging.Handler):
    """Raises what no handler should."""

    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit("from a log handler")


class Blocking(logging.Handler):
    """Blocks for ever in the first line that says that a process died."""

    def emit(self, record: logging.LogRecord) -> None:
        if "died" in record.getMessage():
            note(f"handler {os.getpid()} blocks")
            threading.Event().wait()


class HooksConfig(AppConfig):
    """Installs them."""

    name = "tests.hooks"

    def ready(self) -> None:
        for hook in os.environ["PGQUEUE_TEST_HOOKS"].split(","):
            getattr(self, hook)()

    def slow_receiver(self) -> None:
        signals.job_failed.connect(slow_receiver)

    def exiting_receiver(self) -> None:
        signals.job_failed.connect(exiting_receiver)

    def exit_functions(self) -> None:
        signals.worker_stopping.connect(on_stopping)
        atexit.register(lambda: note(f"atexit {os.getpid()}"))

    def slow_exit_function(self) -> None:
        kinds: list[str] = []

        def note_slowly() -> None:
            time.sleep(1.5 if kinds == ["isolated"] else 0.0)
            note(f"atexit {os.getpid()}")

        signals.worker_stopping.connect(lambda kind, **_: kinds.append(kind), weak=False)
        atexit.register(note_slowly)

    def hanging_exit_function(self) -> None:
        atexit.register(lambda: threading.Event().wait())

    def raising_log_handler(self) -> None:
        logging.getLogger("django_pgqueue").addHandler(Raising())

    def blocking_log_handler(self) -> None:
        logging.getLogger("django_pgqueue").addHandler(Blocking())
