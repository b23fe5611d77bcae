"""Say to which lane a claimed job belongs, and where the next claim of that lane starts."""

from __future__ import annotations

from django_pgqueue.lifecycle import Claimed, Cursor, Lane


def cursor_behind(job: Claimed) -> Cursor:
    """Return the cursor at which the claim after this one starts: behind a job, or behind the last job of a chunk."""
    last = job if not job.others else job.others[-1]
    return Cursor(last.run_after, last.job_id)


def lane_of(job: Claimed) -> Lane:
    """Return the lane of a claimed job, or of a chunk by its first job."""
    if job.chunk_key is not None:
        return Lane(job.queue_name, job.priority, chunk_key=job.chunk_key)
    return Lane(job.queue_name, job.priority, job.limit_key is not None)
