"""The services of a real worker process, whose rounds this process calls in turn, so that each batch has the same size.

The slots are the real threads and the real event loop. The fetcher and the completer do not run in their own threads:
`Engine.run_batch()` calls one round of the fetcher, waits until all jobs have run, and calls one round of the
completer.

The names of some classes have changed. `Engine` knows the older names too, so that an older checkout can be counted.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from .batches import BATCH
from .clock import Clock

SERVICES: Final = ("worker.services:Services", "worker.child:Child")
MEMORY: Final = ("worker.runtime.shared_memory:ProcessState", "worker.shared_memory:ProcessState", "worker.board:Board")
ALLOWANCE: Final = (
    "worker.slots.queue_slots:Allowance",
    "worker.claiming.limited.allowance:Allowance",
    "worker.claiming.allowance:Allowance",
    "worker.allowance:Allowance",
)
SCANS: Final = (
    "worker.claiming.next_scan:SharedScans",
    "worker.claiming.many_lanes.shared_scans:SharedScans",
    "worker.claiming.shared_scans:SharedScans",
    "worker.shared_scans:SharedScans",
)
CONNECTIONS: Final = (
    "worker.runtime.django_connections:watch",
    "worker.django_connections:watch",
    "worker.hygiene:watch",
)
CANCEL: Final = ("worker.slots.query_cancel:watch", "worker.query_cancel:watch", "worker.cancelling:watch")
IDLE_FUNCTIONS: Final = frozenset({"_next", "get", "run", "select"})
"""The functions in which a thread of a slot or the event loop waits for a job."""
LONG_SECONDS: Final = 1e6
WAIT_SECONDS: Final = 300.0


class FixedRate:
    """Takes the place of the measured rate of starts: prefetching is limited by the size of a claim only."""

    def per_second(self) -> float:
        """Return a rate that no claim limits."""
        return 1e9


class Engine:
    """A worker with one slot. It is started and connected when it is created."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        options = found("worker.options:Options")(database="default", concurrency=1, processes=1, listen=False)
        memory = found(*MEMORY)(2)
        _hold_leases(memory)
        offers = {
            "options": lambda: options,
            "process_state": lambda: memory,
            "board": lambda: memory,
            "worker_id": lambda: 1,
            "orders": lambda: os.pipe()[0],
            "allowance": lambda: found(*ALLOWANCE)(1),
            "shared_scans": lambda: found(*SCANS)(1),
        }
        services = _built(found(*SERVICES), offers)
        self.fetcher, self.completer, self.pool = services.fetcher, services.completer, services.pool
        self._in_flight = services.in_flight if hasattr(services, "in_flight") else services.hand
        self.fetcher.claim_size.rate = FixedRate()
        found(*CONNECTIONS)()
        found(*CANCEL)()
        clock.install()
        self.pool.start()
        self.completer.tick()

    def run_batch(self) -> None:
        """Claim a batch of jobs, let them run, and write their completions."""
        self.fetcher.tick()
        self._wait_until_run()
        self.completer.tick()

    def _wait_until_run(self) -> None:
        """Wait until each job of the batch has been reported, and the slots wait for another one.

        This calls no Python function, so that nothing of it counts.
        """
        waiting, running, pending = self._in_flight.waiting, self._in_flight.running, self.completer.pending
        threads, deadline = _slot_threads(), time.monotonic() + WAIT_SECONDS
        while waiting or running or len(pending) < BATCH or not _are_idle(threads):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(pending)} of {BATCH} jobs have run after {WAIT_SECONDS:.0f} s")
            time.sleep(0.0005)


def found(*names: str) -> Any:
    """Return the first of these classes or functions that the counted checkout has."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(f"django_pgqueue.{module}"), attribute)
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"this checkout has none of {', '.join(names)}")


def _built(kind: Any, offers: dict[str, Callable[[], Any]]) -> Any:
    return kind(**{name: offers[name]() for name in inspect.signature(kind).parameters})


def _hold_leases(memory: Any) -> None:
    if hasattr(memory, "hold_until"):
        memory.hold_until(time.monotonic() + LONG_SECONDS)
    else:
        memory.lease_until = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) + LONG_SECONDS


def _slot_threads() -> list[int]:
    return [thread.ident or 0 for thread in threading.enumerate() if thread is not threading.main_thread()]


def _are_idle(threads: list[int]) -> bool:
    frames = sys._current_frames()
    return all(_name_of(frames[ident]) in IDLE_FUNCTIONS for ident in threads if ident in frames)


def _name_of(frame: FrameType) -> str:
    """Return the name of the function that a thread is in. A lock that counts is not one of them."""
    caller = frame.f_back if frame.f_code.co_name == "acquire" else None
    return (caller or frame).f_code.co_name
