"""Tell the fetcher which limited jobs have ended, so that it uses their slots at once.

Called by the completer, in its thread, after it has written a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue import registry
from django_pgqueue.worker.execution.report import Report

from .limited_lanes import LimitedLanes
from .poll_requests import PollRequests


class EndedLimits:
    """Passes the limit keys of ended jobs to the lanes, and wakes the fetcher."""

    def __init__(self, limited: LimitedLanes, polls: PollRequests) -> None:
        self.limited = limited
        self.polls = polls

    def note(self, reports: Sequence[Report]) -> None:
        """Note the jobs of these reports. Costs nothing if no task of this process has a limit."""
        if not registry.limits():
            return
        keys = {report.claimed.limit_key for report in reports if report.claimed.limit_key is not None}
        if keys:
            self.limited.note_ended(keys)
            self.polls.wake()
