"""Causes in the workers: jobs that hang, processes that ended without a stop, and different releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.display import duration, number
from django_pgqueue.stats.answers import Count, WorkerStats
from django_pgqueue.stats.sentences import span_text
from django_pgqueue.tasks.registry import in_words

from .cause import Cause, CauseKind
from .facts import Facts
from .words import Words

NAMED_WORKERS: Final = 3
NAMED_RELEASES: Final = 3
MIXED_SECONDS: Final = 900.0
"""How long workers may run different releases: a deploy takes a while."""


def hanging_jobs(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the tasks whose jobs hang."""
    for found in facts.hanging:
        text = ngettext(
            "%(jobs)s job of %(task)s has been running for %(span)s: 95 %% of its attempts of the last 24 hours took "
            "at most %(usual)s, and none took as long.",
            "%(jobs)s jobs of %(task)s have been running for up to %(span)s: 95 %% of its attempts of the last 24 "
            "hours took at most %(usual)s, and none took as long.",
            found.jobs,
        )
        jobs = Count(found.jobs)
        values = {"task": in_words(found.task_name), "span": span_text(found.longest_seconds)}
        sentence = text % {**values, "jobs": jobs, "usual": duration(timedelta(seconds=found.p95_seconds), brief=True)}
        yield Cause(kind=CauseKind.JOB_HANGING, sentence=sentence, jobs=jobs, name=found.task_name, job_id=found.job_id)


def named_workers(workers: Sequence[WorkerStats]) -> str:
    """Return the first of some workers, with how long each is silent, as a part of a sentence."""
    text = _("%(host)s:%(pid)d, silent for %(span)s")
    named = ", ".join(
        text % {"host": in_words(worker.host), "pid": worker.pid, "span": span_text(worker.heartbeat_age_seconds)}
        for worker in workers[:NAMED_WORKERS]
    )
    return ngettext(" (worker %(workers)s)", " (workers %(workers)s)", len(workers)) % {"workers": named}


def lost_workers(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield one cause for the workers that ended without a stop, if no other one has started on their hosts since.

    Those whose jobs nobody has rescued yet are in the cause of their jobs.
    """
    found = [each for each in facts.ended_workers if each not in facts.silent_workers and not _is_replaced(each, facts)]
    if found:
        text = ngettext(
            "%(number)s worker process ended without a stop within the last hour%(workers)s, and no other one has "
            "started on its host since. It was killed, or its host was lost. Workers that serve the queues of its "
            "jobs run these again.",
            "%(number)s worker processes ended without a stop within the last hour%(workers)s, and no other one has "
            "started on their hosts since. They were killed, or their hosts were lost. Workers that serve the "
            "queues of their jobs run these again.",
            len(found),
        )
        sentence = text % {"number": number(len(found)), "workers": named_workers(found)}
        yield Cause(kind=CauseKind.WORKER_LOST, sentence=sentence)


def _is_replaced(ended: WorkerStats, facts: Facts) -> bool:
    """Return whether a live worker has started on the host after the last heartbeat of one that ended."""
    return any(each.host == ended.host and each.started_at > ended.last_heartbeat_at for each in facts.live_workers)


def mixed_releases(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield one cause if live workers have run different releases for a while. Workers without a name do not count."""
    seconds, releases = mix_of(facts.live_workers)
    if seconds >= MIXED_SECONDS:
        named = ", ".join(
            ngettext("%(release)s (%(number)s process)", "%(release)s (%(number)s processes)", count)
            % {"release": in_words(release), "number": number(count)}
            for release, count in releases.most_common(NAMED_RELEASES)
        )
        text = _(
            "Workers have run %(number)s releases for %(span)s: %(releases)s. Finish the deploy, or restart the "
            "workers of the old release."
        )
        sentence = text % {"number": number(len(releases)), "span": span_text(seconds), "releases": named}
        yield Cause(kind=CauseKind.MIXED_RELEASES, sentence=sentence)


def mix_of(workers: Sequence[WorkerStats]) -> tuple[float, Counter[str]]:
    """Return for how long workers have run different releases, 0 if they do not, and the processes of each release.

    A release counts from the start of its oldest live worker.
    """
    ages: dict[str, float] = {}
    for worker in workers:
        if worker.release:
            up = (worker.last_heartbeat_at - worker.started_at).total_seconds() + worker.heartbeat_age_seconds
            ages[worker.release] = max(up, ages.get(worker.release, 0.0))
    second = sorted(ages.values())[-2:-1]
    return (second[0] if second else 0.0), Counter(worker.release for worker in workers if worker.release)
