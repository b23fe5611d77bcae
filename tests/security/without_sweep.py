"""A module of tasks for workers whose sweep for missed events never runs, so that a test sees what else wakes jobs."""

from django_pgqueue.worker.maintenance import duties

duties.SWEEP_SECONDS = 1e9  # type: ignore[attr-defined]
