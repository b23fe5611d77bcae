"""Kill a worker process that continues with jobs after its leases have ended.

A worker process exits by itself at the end of its leases (`LeaseGuard`). It cannot do so if C code keeps the
interpreter lock, or if the process is stopped. A timer inside the process would have the same weakness: only its own
Python code could renew it. The fork server of the worker process runs no code of the application. It therefore checks
the shared memory that the supervisor's heartbeats renew.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue.worker.runtime.shared_memory import ProcessState

MARGIN_SECONDS: Final = 0.3
"""How long after the end of the leases the worker process may take to exit by itself."""
CHECK_SECONDS: Final = 1.0
"""The longest sleep between two checks: a suspended machine may have slept through the end of the leases."""
SHORTEST_CHECK_SECONDS: Final = 0.05


def seconds_until_check(process_state: ProcessState) -> float:
    """Return how long to sleep before the next check."""
    if not process_state.running():
        return CHECK_SECONDS / 2
    return min(CHECK_SECONDS, max(SHORTEST_CHECK_SECONDS, process_state.lease_left_seconds + MARGIN_SECONDS))


def is_due(process_state: ProcessState) -> bool:
    """Return whether the leases ended longer than the margin ago while jobs still run."""
    return process_state.lease_left_seconds < -MARGIN_SECONDS and bool(process_state.running())
