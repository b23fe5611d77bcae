"""One cause, its kinds, and the order in which causes are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from django.utils.translation import ngettext

from django_pgqueue.display import in_line
from django_pgqueue.stats.answers import NONE, Count, PauseStats
from django_pgqueue.tasks.registry import in_words


class CauseKind(StrEnum):
    """The kinds of causes. The values are stable. Of causes with as many jobs, the first kind here comes first."""

    NO_WORKER = "no worker"
    QUEUE_NOT_SERVED = "queue not served"
    """Workers run, and none of them serves the queue."""
    UNKNOWN_TASK = "unknown task"
    """Workers release the jobs, because they do not know the task, or because the arguments do not fit it."""
    LIMIT_UNDECLARED = "limit undeclared"
    LOST = "lost"
    """The leases of running jobs are over, and no worker has rescued them."""
    WORKER_LOST = "worker lost"
    """A worker process ended without a stop within the last hour, and no other one has started on its host since."""
    BLOCKED_BY_DEAD = "blocked by dead"
    """A dead job of an ordered key comes first, and waits for an operator."""
    DEPENDENCY_FAILED = "dependency failed"
    """Jobs of workflows wait for a dead job."""
    DEPENDENCY_ACKNOWLEDGED = "dependency acknowledged"
    """Jobs of workflows wait for a dead job that somebody has acknowledged, which does not end their wait."""
    WORKFLOW_FAILED = "workflow failed"
    """Jobs of workflows were cancelled, because a job before them died within the last 24 hours."""
    SCHEDULE_FAILED = "schedule failed"
    """A schedule could not be fired."""
    SCHEDULE_LATE = "schedule late"
    SCHEDULE_FAILING = "schedule failing"
    """The latest jobs of a schedule died."""
    TASK_FAILING = "task failing"
    """Jobs of a task died within the last hour, and none succeeded since."""
    JOBS_DIED = "jobs died"
    """Jobs died within the last 24 hours, and were neither retried nor acknowledged."""
    QUEUE_PAUSED = "queue paused"
    TASK_PAUSED = "task paused"
    LIMIT_PAUSED = "limit paused"
    BREAKER_OPEN = "breaker open"
    KEY_ORDER = "key order"
    """The first job of an ordered key is due later, and the others wait for it."""
    KEY_HELD = "key held"
    """A limit key is held, because a task raised `Throttled`."""
    JOB_HANGING = "job hanging"
    """Jobs run for much longer than the other attempts of their task."""
    SLOTS_BUSY = "slots busy"
    LIMIT_SLOTS = "limit slots"
    LIMIT_RATE = "limit rate"
    MIXED_RELEASES = "mixed releases"
    """Live workers have run different releases for 15 minutes."""
    ONE_KEY = "one key"
    """Nearly all due jobs of a limit have one key."""


URGENT: Final = frozenset(
    {
        CauseKind.NO_WORKER,
        CauseKind.QUEUE_NOT_SERVED,
        CauseKind.UNKNOWN_TASK,
        CauseKind.LIMIT_UNDECLARED,
        CauseKind.LOST,
        CauseKind.BLOCKED_BY_DEAD,
        CauseKind.DEPENDENCY_FAILED,
        CauseKind.DEPENDENCY_ACKNOWLEDGED,
        CauseKind.SCHEDULE_FAILED,
    }
)
"""Kinds that do not end by themselves, and that nobody has caused on purpose."""
SENTENCE_LIMIT: Final = 1000
"""Maximum number of characters of a sentence."""
ORDER: Final = {kind: place for place, kind in enumerate(CauseKind)}
BACKGROUND: Final = frozenset({CauseKind.ONE_KEY})
"""Kinds that explain another cause. They come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that keeps jobs from running, or makes them fail.

    Attributes:
        kind: What it is.
        sentence: The same for people, with the number of jobs.
        jobs: How many jobs it concerns.
        name: The queue, the task, the limit or the schedule. Empty if it concerns none of them alone.
        limit_key: The limit key, if it concerns only one, and if keys were asked for.
        pause: The pause that holds the jobs, or that of a task whose jobs died.
        job_id: A job to look at: the dead job in the way, for example.
        batch_id: The workflow of the job, if it failed.
        schedule_id: The schedule. Of a failing task, the one whose latest jobs are among those that died.
        is_urgent: Whether it lasts until somebody acts, and nobody has caused it on purpose.
    """

    kind: CauseKind
    sentence: str
    jobs: Count = NONE
    name: str = ""
    limit_key: str | None = None
    pause: PauseStats | None = None
    job_id: int | None = None
    batch_id: int | None = None
    schedule_id: int | None = None
    is_urgent: bool = False


def ranked(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Return causes in the order of their importance: urgent ones first, then by the number of jobs.

    Sentences contain texts from rows, such as reasons of pauses. They are put on one line, and cut.
    """
    return tuple(
        sorted(
            (replace(cause, sentence=in_line(cause.sentence[:SENTENCE_LIMIT])) for cause in causes),
            key=lambda cause: (
                not cause.is_urgent,
                cause.kind in BACKGROUND,
                -cause.jobs.value,
                ORDER[cause.kind],
                cause.name,
            ),
        )
    )


def jobs_wait(jobs: Count, reason: str, task_name: str = "") -> str:
    """Return a sentence with the reason, which is a sentence too: "5,000 jobs of x wait: an operator has …"."""
    text = (
        ngettext(
            "%(jobs)s job of %(task)s waits: %(reason)s", "%(jobs)s jobs of %(task)s wait: %(reason)s", jobs.plural
        )
        if task_name
        else ngettext("%(jobs)s job waits: %(reason)s", "%(jobs)s jobs wait: %(reason)s", jobs.plural)
    )
    return text % {"jobs": jobs, "task": in_words(task_name), "reason": f"{reason[0].lower()}{reason[1:]}"}
