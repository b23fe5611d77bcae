"""Explain why a job of a workflow waits, or which dependency has cancelled it. `explanation` calls this module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from django_pgqueue.db.statements import execute
from django_pgqueue.states import FailurePolicy, State
from django_pgqueue.stats.answers import FoundReason, Reason
from django_pgqueue.stats.explained_job import ExplainedJob
from django_pgqueue.tasks.registry import in_words

from .queries import WAITS_OF_JOB

LIMIT: Final = 10_000
"""Dependencies of one job that are read at most, the latest ones."""
NAMED: Final = 3
"""Dependencies that a sentence names."""
UNFINISHED: Final = {State.RUNNING.value: "runs", State.READY.value: "is ready", State.WAITING.value: "waits"}
FAILED: Final = {State.DEAD.value: "is dead", State.CANCELLED.value: "is cancelled", "gone": "was removed"}


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
    return _cancelled(job, groups) if row.state == State.CANCELLED else _waiting(groups)


def _cancelled(job: ExplainedJob, groups: Iterable[_Dependencies]) -> FoundReason | None:
    causes = [group for group in groups if group.has_cancelled]
    if not causes:
        return None
    finished_at = job.row.finished_at
    sentence = (
        f"It was cancelled at {job.time_text(finished_at)}, because it depends on {_named(causes, FAILED)}. "
        "A retry of the dead job restores it."
    )
    return _reason(Reason.DEPENDENCY_FAILED, sentence, causes, finished_at=finished_at)


def _waiting(groups: list[_Dependencies]) -> FoundReason:
    failed = [group for group in groups if group.state in FAILED and group.policy != FailurePolicy.IGNORE]
    blocking = [group for group in failed if group.policy == FailurePolicy.BLOCK and group.state != "gone"]
    ending = [group for group in failed if group not in blocking]
    unfinished = [group for group in groups if group.state in UNFINISHED]
    if ending:
        sentence = f"It depends on {_named(ending, FAILED)}. A worker will cancel it, within a minute at most."
        return _reason(Reason.DEPENDENCY_FAILED, sentence, ending)
    if blocking:
        more = f" It also waits for {_named(unfinished, UNFINISHED)}." if unfinished else ""
        sentence = f"It is blocked until a retry of this succeeds: {_named(blocking, FAILED)}.{more}"
        return _reason(Reason.DEPENDENCY_FAILED, sentence, blocking)
    if not unfinished:
        sentence = "Its dependencies have ended. A worker will make it ready, within a minute at most."
        return _reason(Reason.WAITING, sentence, [])
    of_all = f"{_count(unfinished):,} of its {_count(groups):,} dependencies"
    return _reason(Reason.WAITING, f"It waits for {of_all}: {_named(unfinished, UNFINISHED)}.", unfinished)


def _reason(reason: Reason, sentence: str, groups: Iterable[_Dependencies], **fields: Any) -> FoundReason:
    ids = tuple(sorted(job_id for group in groups for job_id in group.job_ids)[:NAMED])
    return FoundReason(reason, sentence, {"dependency_ids": ids, **fields})


def _count(groups: Iterable[_Dependencies]) -> int:
    return sum(group.number for group in groups)


def _named(groups: Iterable[_Dependencies], words: dict[str, str]) -> str:
    """Return the first dependencies of these groups by their names, with the number of the others."""
    in_order = sorted(groups, key=lambda group: list(words).index(group.state))
    each = [
        f"#{job_id} ({in_words(name)}), which {words[group.state]}"
        if name
        else f"#{job_id}, which {words[group.state]}"
        for group in in_order
        for job_id, name in zip(group.job_ids, group.task_names, strict=True)
    ][:NAMED]
    more = _count(in_order) - len(each)
    return "; ".join(each) + (f"; and {more:,} more" if more else "")
