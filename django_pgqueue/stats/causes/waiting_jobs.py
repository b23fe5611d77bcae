"""Causes that keep due jobs of queues and tasks from starting: pauses, missing workers, unknown tasks, busy slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.stats.answers import NONE, Count, QueueStats
from django_pgqueue.stats.fleet import busy_tasks
from django_pgqueue.stats.ownership import no_worker_text
from django_pgqueue.stats.sentences import busy_text, paused_text, unserved_text
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.registry import in_words

from .cause import Cause, CauseKind, jobs_wait
from .facts import Facts
from .words import Words

BUSY_SECONDS: Final = 60.0
"""How long a job has to be due until busy slots or a full limit count as a cause."""


def paused_queues(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the paused queues with due jobs."""
    for queue in facts.overview.queues:
        if queue.pause is not None and queue.paused.value:
            sentence = paused_text(
                _("the queue %(name)s") % {"name": in_words(queue.name)}, queue.pause, words.time_text
            )
            yield Cause(
                kind=CauseKind.QUEUE_PAUSED,
                sentence=jobs_wait(queue.paused, sentence),
                jobs=queue.paused,
                name=queue.name,
                pause=queue.pause,
            )


def paused_tasks(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the paused tasks with due jobs. Jobs of a paused queue count there."""
    pauses = {pause.name: pause for pause in facts.pauses.of_tasks.values()}
    for name, jobs in facts.paused.items():
        if jobs.value:
            what = _("the task %(name)s") % {"name": in_words(name)}
            sentence = paused_text(what, pauses[name], words.time_text)
            yield Cause(
                kind=CauseKind.TASK_PAUSED,
                sentence=jobs_wait(jobs, sentence),
                jobs=jobs,
                name=name,
                pause=pauses[name],
            )


def unserved_queues(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield each queue that has due jobs and no live worker. If no worker is live at all, yield one cause for all."""
    unserved = [queue for queue in facts.overview.queues if queue.is_unserved]
    if unserved and not facts.live_workers:
        jobs = sum((_waiting(queue) for queue in unserved), start=NONE)
        sentence = jobs_wait(jobs, no_worker_text(facts.other_installation))
        yield Cause(kind=CauseKind.NO_WORKER, sentence=sentence, jobs=jobs, is_urgent=True)
        return
    for queue in unserved:
        jobs = _waiting(queue)
        yield Cause(
            kind=CauseKind.QUEUE_NOT_SERVED,
            sentence=jobs_wait(jobs, unserved_text(len(facts.live_workers), queue.name)),
            jobs=jobs,
            name=queue.name,
            is_urgent=True,
        )


def _waiting(queue: QueueStats) -> Count:
    return queue.due + queue.held


def unknown_tasks(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks whose jobs workers release."""
    for name, jobs in facts.unknown.items():
        reason = (
            ngettext(
                "workers release it, because they do not know the task or the arguments do not fit it: deploy the code "
                "of this process to the workers, or look at a job.",
                "workers release them, because they do not know the task or the arguments do not fit it: deploy the "
                "code of this process to the workers, or look at a job.",
                jobs.plural,
            )
            if registry.get(name) is not None
            else _("no live worker knows this task, and this process does not either: deploy the code that has it.")
        )
        yield Cause(
            kind=CauseKind.UNKNOWN_TASK,
            sentence=jobs_wait(jobs, reason, name),
            jobs=jobs,
            name=name,
            is_urgent=True,
        )


def busy_queues(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the queues whose jobs have waited for a while because all slots of their workers are busy."""
    for queue in facts.overview.queues:
        total, waited_seconds = queue.slots_total, queue.oldest_due_seconds
        is_full = total is not None and queue.slots_busy is not None and 0 < total <= queue.slots_busy
        if is_full and queue.due.value and waited_seconds is not None and waited_seconds >= BUSY_SECONDS:
            workers = [worker for worker in facts.live_workers if worker.serves(queue.name)]
            busy = busy_text(busy_tasks(queue.name, workers, facts.open_groups))
            text = (
                _("the only slot for the queue %(queue)s is busy%(tasks)s.")
                if total == 1
                else _("all %(slots)d slots for the queue %(queue)s are busy%(tasks)s.")
            )
            reason = text % {"slots": total, "queue": in_words(queue.name), "tasks": f" ({busy})" if busy else ""}
            yield Cause(
                kind=CauseKind.SLOTS_BUSY,
                sentence=jobs_wait(queue.due, reason),
                jobs=queue.due,
                name=queue.name,
            )
