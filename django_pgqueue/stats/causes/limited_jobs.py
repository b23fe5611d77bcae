"""Causes that keep due jobs of limits from starting: full limits, holds, pauses, breakers, and dead jobs in the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limits import has_value, name_of
from django_pgqueue.stats.answers import NONE, Count, PauseStats
from django_pgqueue.stats.limits.answers import LimitWaitReason
from django_pgqueue.stats.limits.ready import WaitingKey
from django_pgqueue.stats.sentences import paused_text
from django_pgqueue.tasks.registry import in_words

from .cause import URGENT, Cause, CauseKind, jobs_wait, them
from .facts import Facts
from .waiting_jobs import BUSY_SECONDS
from .words import Words

KINDS: Final = {
    LimitWaitReason.PAUSED: CauseKind.LIMIT_PAUSED,
    LimitWaitReason.UNDECLARED: CauseKind.LIMIT_UNDECLARED,
    LimitWaitReason.BLOCKED_BY_DEAD: CauseKind.BLOCKED_BY_DEAD,
    LimitWaitReason.SLOT: CauseKind.LIMIT_SLOTS,
    LimitWaitReason.HOLD: CauseKind.KEY_HELD,
    LimitWaitReason.TOKEN: CauseKind.LIMIT_RATE,
    LimitWaitReason.NOT_DUE: CauseKind.KEY_ORDER,
}
"""The kinds of causes. An ordered key that waits for its running job is as it should be."""
UNDECLARED: Final = (
    "no task of this process declares the limit {what}, so workers with the same code do not start {them}: declare the "
    "limit, or deploy the code that does."
)
SENTENCES: Final = {
    CauseKind.LIMIT_PAUSED: ("{what} is paused.", "{what} are paused."),
    CauseKind.BREAKER_OPEN: ("the circuit breaker of {what} is open.", "the circuit breakers of {what} are open."),
    CauseKind.LIMIT_UNDECLARED: (UNDECLARED, UNDECLARED),
    CauseKind.BLOCKED_BY_DEAD: (
        "{what} is blocked by the dead job {job}: retry, acknowledge or delete it.",
        "{what} are blocked by dead jobs, one by the job {job}: retry, acknowledge or delete them.",
    ),
    CauseKind.KEY_HELD: (
        "{what} is held, because a task raised Throttled.",
        "{what} are held, because a task raised Throttled.",
    ),
    CauseKind.KEY_ORDER: (
        "the first job of {what} is due later ({job}), and the others wait for it.",
        "the first jobs of {what} are due later, one of them is {job}, and the others wait for them.",
    ),
    CauseKind.LIMIT_RATE: ("the rate of {what} does not admit {them} yet.",) * 2,
    CauseKind.LIMIT_SLOTS: ("the slots of {what} are in use.",) * 2,
}
"""The sentences about one key or limit, and about several keys."""
SLOW: Final = frozenset({CauseKind.LIMIT_SLOTS, CauseKind.LIMIT_RATE, CauseKind.KEY_HELD, CauseKind.KEY_ORDER})
"""Kinds that are a cause only if jobs have waited for a while: limits exist to let jobs wait."""
OF_JOB: Final = frozenset({CauseKind.BLOCKED_BY_DEAD, CauseKind.KEY_ORDER})
"""Kinds of which one job is the reason."""
SHARE_OF_ONE_KEY: Final = 0.8
LEAST_OF_ONE_KEY: Final = 100


def held_jobs(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield what holds the jobs of each limit: one cause for each kind, and for each pause."""
    groups: defaultdict[tuple[str, CauseKind, PauseStats | None], list[WaitingKey]] = defaultdict(list)
    for key in facts.waiting_keys:
        kind = _kind(key)
        if kind is not None and key.held:
            is_one_pause = key.wait.pause is not None and not has_value(key.wait.pause.name)
            groups[name_of(key.limit_key), kind, key.wait.pause if is_one_pause else None].append(key)
    for (name, kind, pause), keys in groups.items():
        if kind not in SLOW or max(key.oldest_due_seconds for key in keys) >= BUSY_SECONDS:
            yield _cause(name, kind, pause, keys, words)


def _kind(key: WaitingKey) -> CauseKind | None:
    """Return what holds the jobs of a key. An open breaker pauses its key, or lets one job at a time run."""
    reason, pause = key.wait.reason, key.wait.pause
    is_of_breaker = pause is not None and pause.by == PAUSED_BY
    if is_of_breaker or (key.wait.has_open_breaker and reason in (LimitWaitReason.SLOT, LimitWaitReason.TOKEN)):
        return CauseKind.BREAKER_OPEN
    return None if reason is None else KINDS.get(reason)


def _cause(name: str, kind: CauseKind, pause: PauseStats | None, keys: Sequence[WaitingKey], words: Words) -> Cause:
    jobs = _held(keys)
    limit_keys = [name] if pause is not None else [key.limit_key for key in keys]
    limit_key = words.key_of(limit_keys)
    if pause is None and limit_key is not None:  # the pause of a key that the reader may see
        pause = keys[0].wait.pause
    return Cause(
        kind=kind,
        sentence=jobs_wait(jobs, _sentence(kind, pause, keys, limit_keys, words, them(jobs))),
        jobs=jobs,
        name=name,
        limit_key=limit_key,
        pause=pause,
        job_id=keys[0].wait.blocking_job_id if kind in OF_JOB else None,
        is_urgent=kind in URGENT,
    )


def _held(keys: Iterable[WaitingKey]) -> Count:
    return sum((Count(key.held, key.is_exact) for key in keys), start=NONE)


def _sentence(
    kind: CauseKind,
    pause: PauseStats | None,
    keys: Sequence[WaitingKey],
    limit_keys: Sequence[str],
    words: Words,
    jobs: str,
) -> str:
    what = words.keys(limit_keys)
    if pause is not None:
        return paused_text(what, pause, words.time_text)
    if kind is CauseKind.LIMIT_UNDECLARED:
        what = in_words(name_of(limit_keys[0]))
    one, many = SENTENCES[kind]
    return (one if len(limit_keys) == 1 else many).format(what=what, job=keys[0].wait.blocking_job_id, them=jobs)


def single_keys(facts: Facts, words: Words) -> Iterator[Cause]:
    """Yield the limits of whose due jobs nearly all have one key. They explain why this key takes so long.

    Jobs are counted in the order of their keys. So nothing is known if counting stopped before the last key.
    """
    of_limit: defaultdict[str, list[WaitingKey]] = defaultdict(list)
    for key in facts.waiting_keys:
        if has_value(key.limit_key) and not is_chunk_key(key.limit_key):
            of_limit[name_of(key.limit_key)].append(key)
    for name, keys in of_limit.items():
        total = sum(key.due for key in keys)
        largest = max(keys, key=lambda key: key.due)
        is_known = facts.has_all_keys and all(key.has_all_jobs for key in keys)
        is_most = largest.due >= max(LEAST_OF_ONE_KEY, SHARE_OF_ONE_KEY * total)
        is_slow = largest.oldest_due_seconds >= BUSY_SECONDS
        if len(keys) == 1 or not (is_known and is_most and is_slow) or largest.wait.pause is not None:
            continue
        limit_key = words.key_of([largest.limit_key])
        whose = f"belong to {in_words(limit_key.partition(':')[2])}" if limit_key else "have one key"
        yield Cause(
            kind=CauseKind.ONE_KEY,
            sentence=f"{largest.due:,} of {total:,} due jobs of the limit {in_words(name)} {whose}.",
            jobs=Count(largest.due),
            name=name,
            limit_key=limit_key,
        )
