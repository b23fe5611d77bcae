"""Causes of which jobs fail, or wait for jobs that failed: lost workers, dead dependencies, tasks and schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.display import number
from django_pgqueue.stats.answers import NONE, Count
from django_pgqueue.stats.sentences import sentence_of, span_text
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.registry import in_words

from .cause import Cause, CauseKind
from .facts import SCHEDULES_LISTED, DeadInARow, Facts, FailingSchedule
from .words import Words
from .worker_states import named_workers

LEAST_DIED: Final = 10
"""Jobs that have to die within a day, beside those of other causes, until they are a cause."""
NAMED_SCHEDULES: Final = 5


def lost_jobs(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the running jobs whose leases are over."""
    jobs = facts.overview.lost
    if jobs.value:
        text = ngettext(
            "%(jobs)s running job is lost%(workers)s: no heartbeat came for a lease, and no worker has rescued it yet.",
            "%(jobs)s running jobs are lost%(workers)s: no heartbeat came for a lease, and no worker has rescued them "
            "yet.",
            jobs.plural,
        )
        sentence = text % {"jobs": jobs, "workers": named_workers(facts.silent_workers) if facts.silent_workers else ""}
        yield Cause(kind=CauseKind.LOST, sentence=sentence, jobs=jobs, is_urgent=True)


def dead_dependencies(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks whose dead jobs block jobs of workflows."""
    for found in facts.dead_dependencies:
        jobs = Count(found.waiting, not found.is_cut)
        waiting = ngettext("%(jobs)s job of a workflow waits", "%(jobs)s jobs of workflows wait", jobs.plural)
        text = ngettext(
            "%(jobs_wait)s for a dead job of %(task)s: retry it.",
            "%(jobs_wait)s for %(dead)s dead jobs of %(task)s: retry them.",
            found.dead,
        )
        dead, task = number(found.dead), in_words(found.task_name)
        yield Cause(
            kind=CauseKind.DEPENDENCY_FAILED,
            sentence=text % {"jobs_wait": waiting % {"jobs": jobs}, "dead": dead, "task": task},
            jobs=jobs,
            name=found.task_name,
            job_id=found.first_id,
            is_urgent=True,
        )


def failed_workflows(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks because of whose dead jobs other jobs of workflows were cancelled."""
    for found in facts.failed_workflows:
        text = ngettext(
            "%(workflows)s failed in the last 24 hours, because a job of %(task)s died: jobs that depend on it were "
            "cancelled. A retry of the dead job restores them.",
            "%(workflows)s failed in the last 24 hours, because %(dead)s jobs of %(task)s died: jobs that depend on "
            "them were cancelled. A retry of the dead jobs restores them.",
            found.dead,
        )
        text_of_count = ngettext("%(number)s workflow", "%(number)s workflows", found.workflows.plural)
        failed = text_of_count % {"number": found.workflows}
        values = {"workflows": failed, "dead": number(found.dead), "task": in_words(found.task_name)}
        yield Cause(
            kind=CauseKind.WORKFLOW_FAILED,
            sentence=text % values,
            jobs=found.cancelled,
            name=found.task_name,
            job_id=found.first_id,
            batch_id=found.batch_id,
        )


def acknowledged_dependencies(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks whose acknowledged jobs still block jobs of workflows."""
    for found in facts.acknowledged_dependencies:
        jobs = Count(found.waiting, not found.is_cut)
        waiting = ngettext("%(jobs)s job of a workflow waits", "%(jobs)s jobs of workflows wait", jobs.plural)
        text = ngettext(
            "%(jobs_wait)s for the dead job %(job)s of %(task)s, which somebody has acknowledged: that does not end "
            "the wait. Retry the dead job, or cancel what waits for it.",
            "%(jobs_wait)s for %(dead)s dead jobs of %(task)s, one of them %(job)s, which somebody has acknowledged: "
            "that does not end the wait. Retry the dead jobs, or cancel what waits for them.",
            found.dead,
        )
        names = {"job": found.first_id, "dead": number(found.dead), "task": in_words(found.task_name)}
        yield Cause(
            kind=CauseKind.DEPENDENCY_ACKNOWLEDGED,
            sentence=text % {"jobs_wait": waiting % {"jobs": jobs}, **names},
            jobs=jobs,
            name=found.task_name,
            job_id=found.first_id,
            is_urgent=True,
        )


def failing_tasks(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks of which jobs died, and none succeeded since.

    A task whose dead jobs are all those of its schedules is left to `schedules()`. Otherwise the sentence names one of
    these schedules, which are no causes then.
    """
    for found in facts.dead_in_a_row:
        of_task = _failing_schedules(facts, found.task_name)
        if of_task and not _exceeds(found, of_task):
            continue
        jobs = Count(found.dead, found.is_exact)
        text = (
            _(
                "%(task)s died %(jobs)s times in a row within the last hour. The latest jobs of the schedule "
                "%(schedule)s are among these."
            )
            if of_task
            else _("%(task)s died %(jobs)s times in a row within the last hour.")
        )
        schedule = in_words(of_task[0].name) if of_task else ""
        yield Cause(
            kind=CauseKind.TASK_FAILING,
            sentence=text % {"task": in_words(found.task_name), "jobs": jobs, "schedule": schedule},
            jobs=jobs,
            name=found.task_name,
            pause=facts.pauses.of_tasks.get(found.task_name),
            schedule_id=of_task[0].schedule_id if of_task else None,
        )


def _failing_schedules(facts: Facts, task_name: str) -> list[FailingSchedule]:
    """Return the schedules of a task whose latest jobs died. A row can have a former name of the task."""
    names = registry.names_of(task_name)
    return [each for each in facts.schedules if each.is_failing and each.task_name in names]


def _exceeds(found: DeadInARow, of_task: Iterable[FailingSchedule]) -> bool:
    """Return whether more jobs of a task died than those of its schedules."""
    return found.dead > sum(each.dead for each in of_task)


def _is_in_cause_of_task(facts: Facts, schedule: FailingSchedule) -> bool:
    """Return whether the cause of its task names a failing schedule."""
    names = registry.names_of(schedule.task_name)
    of_tasks = (each for each in facts.dead_in_a_row if each.task_name in names)
    return any(_exceeds(each, _failing_schedules(facts, each.task_name)) for each in of_tasks)


def died_jobs(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the jobs that died within a day, if many of them are not those of tasks and schedules that fail."""
    jobs = facts.overview.dead_24h
    failing = {each.task_name for each in facts.dead_in_a_row}
    failing |= {each.task_name for each in facts.schedules if each.is_failing}
    names = {name for task_name in failing for name in registry.names_of(task_name)}
    explained = sum(facts.dead_by_task.get(name, 0) for name in names)
    if jobs.value - explained >= LEAST_DIED:
        text = _("%(jobs)s jobs died in the last 24 hours, and nobody has retried or acknowledged them.")
        yield Cause(kind=CauseKind.JOBS_DIED, sentence=text % {"jobs": jobs}, jobs=jobs)


def schedules(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the schedules that could not be fired, and those whose latest jobs died.

    A failing schedule is no cause beside the cause of its task: see `failing_tasks()`.
    """
    for found in facts.schedules:
        name = in_words(found.name)
        if found.problem:  # the text of an error, which can contain an argument
            problem = sentence_of(found.problem) if words.with_keys else _("its page in the admin says why.")
            sentence = _("The schedule %(name)s could not be fired: %(problem)s") % {"name": name, "problem": problem}
            yield _of_schedule(found, CauseKind.SCHEDULE_FAILED, sentence)
        if found.is_failing and not _is_in_cause_of_task(facts, found):
            jobs = Count(found.dead, found.is_exact)
            text = _("The latest %(jobs)s jobs of the schedule %(name)s died, and none succeeded since.")
            failing = text % {"jobs": jobs, "name": name}
            yield _of_schedule(found, CauseKind.SCHEDULE_FAILING, failing, jobs)


def late_schedules(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the schedules that are late, or one cause for all of them if they are many."""
    late = sorted((each for each in facts.schedules if each.is_late), key=lambda each: -each.late_seconds)
    if len(late) > NAMED_SCHEDULES:
        text = _("%(schedules)s schedules are late, the schedule %(name)s by %(span)s: does a worker fire schedules?")
        schedules = Count.up_to(len(late), SCHEDULES_LISTED)
        yield Cause(kind=CauseKind.SCHEDULE_LATE, sentence=text % {"schedules": schedules, **_lateness(late[0])})
        return
    for found in late:
        text = (
            _("The schedule %(name)s is %(span)s late: does a worker fire schedules?")
            if found.running_id is None
            else _("The schedule %(name)s is %(span)s late: its next run waits for the job %(job)s of the run before.")
        )
        sentence = text % {**_lateness(found), "job": found.running_id}
        yield _of_schedule(found, CauseKind.SCHEDULE_LATE, sentence)


def _lateness(found: FailingSchedule) -> dict[str, str]:
    return {"name": in_words(found.name), "span": span_text(found.late_seconds)}


def _of_schedule(found: FailingSchedule, kind: CauseKind, sentence: str, jobs: Count = NONE) -> Cause:
    return Cause(
        kind=kind,
        sentence=sentence,
        jobs=jobs,
        name=found.name,
        job_id={CauseKind.SCHEDULE_FAILING: found.job_id, CauseKind.SCHEDULE_LATE: found.running_id}.get(kind),
        schedule_id=found.schedule_id,
        is_urgent=kind is CauseKind.SCHEDULE_FAILED,
    )
