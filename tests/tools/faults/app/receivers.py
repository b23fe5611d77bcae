"""Receivers and exit functions that misbehave, for the soak: installed where the environment asks for them."""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import time
from typing import Any, Final

from django.db import connection

from django_pgqueue import signals
from tests.tools.faults import journal

VARIABLE: Final = "PGQUEUE_FAULTS_RECEIVERS"
HANG_SECONDS: Final = 3.0
"""Longer than the suite's lease."""
ODDS: Final = {"hang": 1, "exit": 2, "cancelled": 2, "error": 4, "query": 30, "nothing": 200}
"""How often each receiver call behaves so, relative to the others."""


def install() -> None:
    """Connect the receivers and register the exit functions."""
    if not os.environ.get(VARIABLE):
        return
    for signal in (
        signals.job_started,
        signals.job_succeeded,
        signals.job_failed,
        signals.job_dead,
        signals.job_cancelled,
        signals.job_rescued,
    ):
        signal.connect(_misbehave, weak=False)
    atexit.register(_leave)


def _misbehave(sender: str, **named: Any) -> None:
    # `random` is seeded by the operating system in each process: forked processes must not all do the same.
    behaviour = random.SystemRandom().choices(list(ODDS), list(ODDS.values()))[0]
    if behaviour == "hang":
        time.sleep(HANG_SECONDS)
    elif behaviour == "exit":
        raise SystemExit(3)
    elif behaviour == "cancelled":
        raise asyncio.CancelledError
    elif behaviour == "error":
        raise RuntimeError("a receiver that fails")
    elif behaviour == "query":
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")


def _leave() -> None:
    """Write that the exit functions run; every tenth process hangs in them."""
    journal.write("exit-function")
    if os.getpid() % 10 == 0:
        time.sleep(60)
