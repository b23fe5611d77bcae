"""Kills a worker process that goes on with jobs after its leases have ended.

A worker process exits by itself at the end of its leases (`LeaseGuard`). It cannot if C code keeps the interpreter
lock, or if the process is stopped. A timer inside the process would have the same weakness: only its own Python could
renew it. So the fork server of the worker process, which runs no code of the application, looks at the shared memory
that the supervisor's heartbeats renew.
"""

from __future__ import annotations

from typing import Final

from .board import Board

MARGIN_SECONDS: Final = 0.3
"""How long after the end of the leases the worker process may take to exit by itself."""
LOOK_SECONDS: Final = 1.0
"""The longest sleep: a suspended machine may have slept through the end of the leases."""
SHORTEST_LOOK_SECONDS: Final = 0.05


def seconds_until_look(board: Board) -> float:
    """Return how long to sleep before the next look."""
    if not board.running():
        return LOOK_SECONDS / 2
    return min(LOOK_SECONDS, max(SHORTEST_LOOK_SECONDS, board.lease_left_seconds + MARGIN_SECONDS))


def is_due(board: Board) -> bool:
    """Return whether the leases ended more than the margin ago while jobs run."""
    return board.lease_left_seconds < -MARGIN_SECONDS and bool(board.running())
