"""Causes of which jobs fail, or wait for jobs that failed: lost workers, dead dependencies, tasks and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django_pgqueue.stats.answers import NONE, Count
from django_pgqueue.stats.sentences import sentence_of, span_text
from django_pgqueue.tasks.registry import in_words

from .cause import Cause, CauseKind, them
from .facts import DEAD_READ, SCHEDULES_LISTED, Facts, FailingSchedule
from .words import Words

NAMED_WORKERS: Final = 3
NAMED_SCHEDULES: Final = 5


def lost_jobs(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the running jobs whose leases are over."""
    jobs = facts.overview.lost
    if jobs.value:
        named = ", ".join(
            f"{in_words(worker.host)}:{worker.pid}, silent for {span_text(worker.heartbeat_age_seconds)}"
            for worker in facts.silent_workers[:NAMED_WORKERS]
        )
        noun = "worker" if len(facts.silent_workers) == 1 else "workers"
        of_workers = f" ({noun} {named})" if named else ""
        what = "1 running job is lost" if jobs == Count(1) else f"{jobs} running jobs are lost"
        sentence = f"{what}{of_workers}: no heartbeat came for a lease, and no worker has rescued {them(jobs)} yet."
        yield Cause(kind=CauseKind.LOST, sentence=sentence, jobs=jobs, is_urgent=True)


def dead_dependencies(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks whose dead jobs block jobs of workflows."""
    for found in facts.dead_dependencies:
        jobs = Count(found.waiting, not found.is_cut and facts.overview.dead.value < DEAD_READ)
        waits = "1 job of a workflow waits" if jobs == Count(1) else f"{jobs} jobs of workflows wait"
        dead = "a dead job" if found.dead == 1 else f"{found.dead:,} dead jobs"
        yield Cause(
            kind=CauseKind.DEPENDENCY_FAILED,
            sentence=f"{waits} for {dead} of {in_words(found.task_name)}: retry {'it' if found.dead == 1 else 'them'}.",
            jobs=jobs,
            name=found.task_name,
            job_id=found.first_id,
            is_urgent=True,
        )


def failing_tasks(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks of which jobs died, and none succeeded since."""
    for found in facts.dead_in_a_row:
        jobs = Count(found.dead, found.is_exact)
        yield Cause(
            kind=CauseKind.TASK_FAILING,
            sentence=f"{in_words(found.task_name)} died {jobs} times in a row within the last hour.",
            jobs=jobs,
            name=found.task_name,
            pause=facts.pauses.of_tasks.get(found.task_name),
        )


def schedules(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the schedules that could not be fired, and those whose latest jobs died."""
    for found in facts.schedules:
        name = in_words(found.name)
        if found.problem:  # the text of an error, which can contain an argument
            problem = sentence_of(found.problem) if words.with_keys else "its page in the admin says why."
            sentence = f"The schedule {name} could not be fired: {problem}"
            yield _of_schedule(found, CauseKind.SCHEDULE_FAILED, sentence)
        if found.is_failing:
            jobs = Count(found.dead, found.is_exact)
            failing = f"The latest {jobs} jobs of the schedule {name} died, and none succeeded since."
            yield _of_schedule(found, CauseKind.SCHEDULE_FAILING, failing, jobs)


def late_schedules(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the schedules that are late, or one cause for all of them if they are many."""
    late = sorted((each for each in facts.schedules if each.is_late), key=lambda each: -each.late_seconds)
    if len(late) > NAMED_SCHEDULES:
        number = Count.up_to(len(late), SCHEDULES_LISTED)
        first = f"the schedule {in_words(late[0].name)} by {span_text(late[0].late_seconds)}"
        sentence = f"{number} schedules are late, {first}: does a worker fire schedules?"
        yield Cause(kind=CauseKind.SCHEDULE_LATE, sentence=sentence)
        return
    for found in late:
        by = span_text(found.late_seconds)
        sentence = f"The schedule {in_words(found.name)} is {by} late: does a worker fire schedules?"
        yield _of_schedule(found, CauseKind.SCHEDULE_LATE, sentence)


def _of_schedule(found: FailingSchedule, kind: CauseKind, sentence: str, jobs: Count = NONE) -> Cause:
    return Cause(
        kind=kind,
        sentence=sentence,
        jobs=jobs,
        name=found.name,
        job_id=found.job_id if kind is CauseKind.SCHEDULE_FAILING else None,
        schedule_id=found.schedule_id,
        is_urgent=kind is CauseKind.SCHEDULE_FAILED,
    )
