"""What a worker was asked to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from django_pgqueue.conf import get_settings
from django_pgqueue.task import Isolation


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line of `runworker`; None where a setting or nothing decides. Durations in seconds."""

    database: str
    queue_names: tuple[str, ...] = ()
    """Strict in this order; empty: all queues."""
    concurrency: int = field(default_factory=lambda: get_settings().CONCURRENCY)
    processes: int = field(default_factory=lambda: get_settings().PROCESSES)
    drain: bool = False
    """End when nothing due is left."""
    max_jobs: int | None = None
    """Replace a process after this many jobs."""
    max_rss_mb: int | None = None
    """Replace a process whose resident memory has grown beyond this many MiB."""
    grace_seconds: float = field(default_factory=lambda: get_settings().GRACE)
    listen: bool = True
    isolation: Isolation | None = None
    """"process": every job in a process of its own, whatever its task says."""
    health_file: str | None = None
    """Where to tell of the worker's health, once a second."""
