"""Installs what `PGQUEUE_TEST_HOOKS` names, separated by commas, in the worker that a test starts.

A name can have arguments after colons: `broken_receiver:worker_process_started:hangs`.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.apps import AppConfig

from django_pgqueue import Breaker, Limit, signals
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import fetcher, next_scan
from django_pgqueue.worker.execution import process_events
from django_pgqueue.worker.runtime import django_connections, shared_connections

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


def on_worker_signal(name: str, **named: Any) -> None:
    """Write the signal, the kind of process, its id, and the thread."""
    note(f"{name} {named.get('kind', named.get('pid'))} {os.getpid()} {threading.current_thread().name}")


def hangs(**named: Any) -> None:
    threading.Event().wait()


def raises(**named: Any) -> None:
    raise ValueError("from a receiver")


def exits(**named: Any) -> None:
    raise SystemExit("from a receiver")


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
            name, *arguments = hook.split(":")
            getattr(self, name)(*arguments)

    def slow_receiver(self) -> None:
        signals.job_failed.connect(slow_receiver)

    def exiting_receiver(self) -> None:
        signals.job_failed.connect(exiting_receiver)

    def exit_functions(self, seconds: str = "0") -> None:
        """Write a line in a receiver, and in an exit function that takes this long."""
        signals.worker_process_stopping.connect(on_stopping)
        atexit.register(lambda: note(f"atexit {os.getpid()}"))
        atexit.register(lambda: time.sleep(float(seconds)))  # called before the other one

    def worker_signals(self) -> None:
        """Write a line for each signal about workers and their processes, and for each job that starts."""
        for name in ("worker_started", "worker_stopping", "worker_process_started", "worker_process_stopping"):
            getattr(signals, name).connect(partial(on_worker_signal, name), weak=False)
        signals.job_started.connect(lambda **_: note(f"job_started {os.getpid()}"), weak=False)

    def job_signals(self) -> None:
        """Write a line for each job that was released or snoozed."""
        for name in ("job_released", "job_snoozed"):
            getattr(signals, name).connect(
                lambda name=name, **named: note(f"{name} {named['job_id']} {named['delay_seconds']}"), weak=False
            )

    def broken_receiver(self, name: str, how: str, seconds: str = "2") -> None:
        """Connect a receiver that hangs, raises or exits to a signal, before those of `worker_signals`."""
        process_events.START_SECONDS = float(seconds)  # type: ignore[misc]  # 30 s would be long for a test
        getattr(signals, name).connect({"hangs": hangs, "raises": raises, "exits": exits}[how])

    def quick_idle(self) -> None:
        """Close idle connections after half a second, because the usual times would be long for a test."""
        shared_connections.IDLE_SECONDS = 0.5  # type: ignore[misc]
        django_connections.IDLE_SECONDS = 0.5  # type: ignore[misc]

    def slow_idle_scans(self, factor: str) -> None:
        """Multiply the waits between the scans of idle processes, because stalls of a busy host are longer."""
        times = float(factor)
        fetcher.IDLE_PAUSES_SECONDS = tuple(times * each for each in fetcher.IDLE_PAUSES_SECONDS)  # type: ignore[misc]
        next_scan.APART_SECONDS *= times  # type: ignore[misc]
        next_scan.UNDER_WAY_SECONDS *= times  # type: ignore[misc]

    def slow_start_receiver(self) -> None:
        def receiver(**named: Any) -> None:
            note("receiver began")
            time.sleep(60)

        signals.worker_process_started.connect(receiver, weak=False)

    def slow_exit_function(self) -> None:
        kinds: list[str] = []

        def note_slowly() -> None:
            time.sleep(1.5 if kinds == ["isolated"] else 0.0)
            note(f"atexit {os.getpid()}")

        signals.worker_process_stopping.connect(lambda kind, **_: kinds.append(kind), weak=False)
        atexit.register(note_slowly)

    def hanging_exit_function(self) -> None:
        atexit.register(lambda: threading.Event().wait())

    def raising_log_handler(self) -> None:
        logging.getLogger("django_pgqueue").addHandler(Raising())

    def breaker(self) -> None:
        """Declare a limit with a circuit breaker, which no task of the test app has."""
        limit = Limit("service", breaker=Breaker(attempts=3, pause=1))
        registry._limits = MappingProxyType({limit.name: limit})

    def blocking_log_handler(self) -> None:
        logging.getLogger("django_pgqueue").addHandler(Blocking())
