"""Keep the cursor of each lane, and move the cursors of lanes in which a claim has left nothing to claim.

Used by `Lanes`, in the fetcher's thread. Without cursors, each claim would walk again over the dead index entries of
claimed jobs, and over jobs that cannot be claimed now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django_pgqueue.lifecycle.types import EPOCH, Claimed, Cursor, Lane

MARGIN: Final = timedelta(seconds=2)
"""How far behind the last scan the cursor of an exhausted lane stays. A job that is due now and commits within this
time after it was enqueued is still ahead of the cursor."""
CURSORS: Final = 1000
"""How many cursors are kept for lanes without ready jobs."""


def cursor_behind(job: Claimed) -> Cursor:
    """Return the cursor at which the claim after this one starts: behind a job, or behind the last job of a chunk."""
    last = job if not job.others else job.others[-1]
    return Cursor(last.run_after, last.job_id)


def lane_of(job: Claimed) -> Lane:
    """Return the lane of a claimed job, or of a chunk by its first job."""
    if job.chunk_key is not None:
        return Lane(job.queue_name, job.priority, chunk_key=job.chunk_key)
    return Lane(job.queue_name, job.priority, job.limit_key is not None)


class LaneCursors(dict[Lane, Cursor]):
    """The cursors by lane. The one that moved last comes last."""

    def move(self, lane: Lane, cursor: Cursor) -> None:
        """Set the cursor of a lane, even if that is further back."""
        self.pop(lane, None)
        self[lane] = cursor

    def pass_by(self, exhausted: Collection[Lane], seen_at: datetime) -> None:
        """Move the cursors of exhausted lanes up to the last scan (`seen_at`): jobs left there cannot be claimed now.

        Such jobs belong to a paused task, or another transaction has locked their rows. If their lanes kept the old
        cursors, each claim would walk over all of them.
        """
        if not exhausted:
            return
        passed = Cursor(seen_at - MARGIN) if seen_at > EPOCH else Cursor()
        for lane in exhausted:
            self.move(lane, max(self.get(lane, passed), passed))

    def passed(self, due_in: Mapping[Lane, float], seen_at: datetime) -> set[Lane]:
        """Return the lanes of a scan whose first ready job the cursor has passed, or may have passed.

        A claim from the start of another lane would only walk over index entries of claimed jobs. The times are
        microseconds, and `due_in` is exact for years.
        """
        ready = ((lane, seen_at + timedelta(seconds=seconds)) for lane, seconds in due_in.items() if seconds <= 0)
        return {lane for lane, first_at in ready if lane in self and first_at <= self[lane].run_after}


def exhausted_lanes(
    cursors: Mapping[Lane, Cursor], claimed: Sequence[Claimed], *, all_exhausted: bool
) -> Sequence[Lane]:
    """Return the lanes in which a claim has left nothing to claim.

    A claim takes the lanes in order. It has therefore exhausted the lanes before the last one in which it found a job,
    and all lanes if it returned fewer jobs than it could (`all_exhausted`).
    """
    lanes = list(cursors)
    if all_exhausted:
        return lanes
    return lanes[: lanes.index(Lane(claimed[-1].queue_name, claimed[-1].priority)) if claimed else 0]


def forget_oldest(by_lane: dict[Lane, Any], ready: Collection[Lane]) -> None:
    """Drop the oldest entries beyond `CURSORS`, but keep all entries of lanes that have ready jobs.

    Entries of other lanes are kept because a queue that has run empty gets jobs again. Without its cursor, the next
    claim would walk over the dead index entries of all jobs that were claimed there before.
    """
    for lane in [lane for lane in by_lane if lane not in ready][:-CURSORS]:
        del by_lane[lane]
