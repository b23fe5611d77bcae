"""Explain why a job of a workflow waits, or which dependency has cancelled it. `explanation` calls this module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.db.statements import execute
from django_pgqueue.display import number
from django_pgqueue.states import FailurePolicy, State
from django_pgqueue.stats.answers import Reason
from django_pgqueue.stats.explained_job import ExplainedJob, FoundReason
from django_pgqueue.tasks.registry import in_words

from .queries import ROOTS_OF_JOB, WAITS_OF_JOB

LIMIT: Final = 10_000
"""Dependencies of one job that are read at most, the latest ones."""
FAILED_LIMIT: Final = 100
"""Failed jobs that are searched for those with which the failure began."""
EDGES_LIMIT: Final = 1000
"""Dependencies of each of these that are read."""
NAMED: Final = 3
"""Dependencies that a sentence names."""
UNFINISHED: Final = {
    State.RUNNING.value: gettext_lazy("%(job)s, which runs"),
    State.READY.value: gettext_lazy("%(job)s, which is ready"),
    State.WAITING.value: gettext_lazy("%(job)s, which waits"),
}
FAILED: Final = {
    State.DEAD.value: gettext_lazy("%(job)s, which is dead"),
    State.CANCELLED.value: gettext_lazy("%(job)s, which is cancelled"),
    "gone": gettext_lazy("%(job)s, which was removed"),
}


class _Dependencies(NamedTuple):
    """The dependencies of a job in one state and with one policy: how many, and the first of them."""

    state: str
    policy: str
    number: int
    has_cancelled: bool
    job_ids: list[int]
    task_names: list[str]


def reason_of_graph(job: ExplainedJob) -> FoundReason | None:
    """Return why a waiting job waits, or why a dependency has cancelled the job. None: that is no reason."""
    row, params = job.row, {"job_id": job.row.job_id, "limit": LIMIT}
    if not row.in_graph or row.state not in (State.WAITING, State.CANCELLED):
        return None
    groups = [_Dependencies(*found) for found in execute(job.connection, WAITS_OF_JOB, params)]
    return _cancelled(job, groups) if row.state == State.CANCELLED else _waiting(job, groups)


def _cancelled(job: ExplainedJob, groups: Iterable[_Dependencies]) -> FoundReason | None:
    causes = _roots(job, [group for group in groups if group.has_cancelled])
    if not causes:
        return None
    finished_at = job.row.finished_at
    text = _("It was cancelled at %(time)s, because it depends on %(jobs)s. A retry of the dead job restores it.")
    sentence = text % {"time": job.time_text(finished_at), "jobs": _named(causes, FAILED)}
    return _reason(Reason.DEPENDENCY_FAILED, sentence, causes, finished_at=finished_at)


def _roots(job: ExplainedJob, failed: list[_Dependencies]) -> list[_Dependencies]:
    """Return the jobs with which a failure began: a retry of a cancelled dependency alone restores nothing."""
    if not any(group.state == State.CANCELLED for group in failed):
        return failed
    params = {"job_id": job.row.job_id, "limit": FAILED_LIMIT, "edges": EDGES_LIMIT}
    return [_Dependencies(*found) for found in execute(job.connection, ROOTS_OF_JOB, params)] or failed


def _waiting(job: ExplainedJob, groups: list[_Dependencies]) -> FoundReason:
    failed = [group for group in groups if group.state in FAILED and group.policy != FailurePolicy.IGNORE]
    blocking = [group for group in failed if group.policy == FailurePolicy.BLOCK and group.state != "gone"]
    ending = [group for group in failed if group not in blocking]
    unfinished = [group for group in groups if group.state in UNFINISHED]
    if ending:
        text = _("It depends on %(jobs)s. A worker will cancel it, within a minute at most.")
        sentence = text % {"jobs": _named(ending, FAILED)}
        return _reason(Reason.DEPENDENCY_FAILED, sentence, ending)
    if blocking:
        blocking = _roots(job, blocking)
        also = _("It also waits for %(jobs)s.") % {"jobs": _named(unfinished, UNFINISHED)}
        text = _("It is blocked until a retry of this succeeds: %(jobs)s.") % {"jobs": _named(blocking, FAILED)}
        sentence = f"{text} {also}" if unfinished else text
        return _reason(Reason.DEPENDENCY_FAILED, sentence, blocking)
    if not unfinished:
        sentence = _("Its dependencies have ended. A worker will make it ready, within a minute at most.")
        return _reason(Reason.WAITING, sentence, [])
    text = _("It waits for %(number)s of its %(total)s dependencies: %(jobs)s.")
    values = {"number": number(_count(unfinished)), "total": number(_count(groups))}
    return _reason(Reason.WAITING, text % {**values, "jobs": _named(unfinished, UNFINISHED)}, unfinished)


def _reason(reason: Reason, sentence: str, groups: Iterable[_Dependencies], **fields: Any) -> FoundReason:
    ids = tuple(sorted(job_id for group in groups for job_id in group.job_ids)[:NAMED])
    return FoundReason(reason, sentence, {"dependency_ids": ids, **fields})


def _count(groups: Iterable[_Dependencies]) -> int:
    return sum(group.number for group in groups)


def _named(groups: Iterable[_Dependencies], words: Mapping[str, Any]) -> str:
    """Return the first dependencies of these groups by their names, with the number of the others."""
    in_order = sorted(groups, key=lambda group: list(words).index(group.state))
    each = [
        words[group.state] % {"job": f"#{job_id} ({in_words(name)})" if name else f"#{job_id}"}
        for group in in_order
        for job_id, name in zip(group.job_ids, group.task_names, strict=True)
    ][:NAMED]
    more = _count(in_order) - len(each)
    return "; ".join([*each, *([_("and %(number)s more") % {"number": number(more)}] if more else [])])
