"""Tell the fetcher which limited jobs have ended, so that it uses their slots at once.

Called by the completer, in its thread, after it has written a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue import registry
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.slots.inflight import InFlight

from .limited_lanes import LimitedLanes
from .poll_requests import PollRequests


class EndedLimits:
    """Passes the limit keys of ended jobs to the lanes, and wakes the fetcher."""

    def __init__(self, limited: LimitedLanes, polls: PollRequests, in_flight: InFlight) -> None:
        self.limited = limited
        self.polls = polls
        self.in_flight = in_flight

    def is_awaited(self, report: Report) -> bool:
        """Return whether other jobs may wait for the end of this job, and no prefetched job takes the slot.

        These are jobs of the same limit key, and dependents of a node of a workflow. Safe from any thread. While there
        are prefetched jobs, larger batches of completions are better.
        """
        claimed = report.claimed
        return not self.in_flight.waiting and (bool(claimed.in_graph) or self.limited.is_busy(claimed.limit_key))

    def note(self, reports: Sequence[Report]) -> None:
        """Note the jobs of these reports. Costs nothing if no task of this process has a limit."""
        if not registry.limits():
            return
        keys = {report.claimed.limit_key for report in reports if report.claimed.limit_key is not None}
        if keys:
            self.limited.note_ended(keys)
            self.polls.wake()
