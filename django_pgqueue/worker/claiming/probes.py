"""Mark and log the jobs that probe a limit key whose circuit breaker is open. Called by `LimitedLanes`."""

from __future__ import annotations

import logging

from django_pgqueue.display import visible
from django_pgqueue.lifecycle import Claimed
from django_pgqueue.lifecycle.limit_overrides import KeyControls
from django_pgqueue.log_events import event

logger = logging.getLogger("django_pgqueue.worker")


def with_probes(claimed: list[Claimed], controls: KeyControls) -> list[Claimed]:
    """Return the claimed jobs, with `is_probe` set for those of a key with an open breaker."""
    if not controls.open_breakers:
        return claimed
    return [_probe(job) if job.limit_key in controls.open_breakers else job for job in claimed]


def _probe(job: Claimed) -> Claimed:
    limit_key = visible(job.limit_key or "")
    logger.info(
        "job %s probes limit key %s, whose circuit breaker is open",
        job.job_id,
        limit_key,
        extra=event("breaker_probed", limit_key=limit_key, job_id=job.job_id),
    )
    return job._replace(is_probe=True)
