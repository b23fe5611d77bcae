"""The options of one remote worker, as `manage.py pgqueue remote-worker` received them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from django_pgqueue.options import Isolation


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """The command line of `remote-worker`."""

    name: str = field(default_factory=socket.gethostname)
    queue_names: tuple[str, ...] = ()
    """Queues to serve, strictly in this order. Empty: all that the token gives access to."""
    task_names: tuple[str, ...] = ()
    """Tasks to run. Empty: all that the token gives access to."""
    concurrency: int = 10
    wait_seconds: float = 20.0
    """How long one claim waits for jobs."""
    grace_seconds: float = 25.0
    isolation: Isolation | None = None
    """"process": run every job in an isolated process, whatever its task says."""
    until_empty: bool = False
    """Stop when a claim has found no job and none runs."""
