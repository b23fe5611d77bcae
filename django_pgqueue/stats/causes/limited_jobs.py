"""Causes that keep due jobs of limits from starting: full limits, holds, pauses, breakers, and dead jobs in the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limits import has_value, name_of
from django_pgqueue.display import number
from django_pgqueue.stats.answers import NONE, Count, PauseStats
from django_pgqueue.stats.limits.answers import LimitWaitReason
from django_pgqueue.stats.limits.ready import WaitingKey
from django_pgqueue.stats.sentences import paused_text
from django_pgqueue.tasks.registry import in_words

from .cause import URGENT, Cause, CauseKind, jobs_wait
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
SENTENCES: Final[Mapping[CauseKind, Any]] = {
    CauseKind.LIMIT_PAUSED: ngettext_lazy("%(what)s is paused.", "%(what)s are paused.", "keys"),
    CauseKind.BREAKER_OPEN: ngettext_lazy(
        "the circuit breaker of %(what)s is open.", "the circuit breakers of %(what)s are open.", "keys"
    ),
    CauseKind.LIMIT_UNDECLARED: ngettext_lazy(
        "no task of this process declares the limit %(what)s, so workers with the same code do not start it: declare "
        "the limit, or deploy the code that does.",
        "no task of this process declares the limit %(what)s, so workers with the same code do not start them: declare "
        "the limit, or deploy the code that does.",
        "jobs",
    ),
    CauseKind.BLOCKED_BY_DEAD: ngettext_lazy(
        "%(what)s is blocked by the dead job %(job)s: retry, acknowledge or delete it.",
        "%(what)s are blocked by dead jobs, one by the job %(job)s: retry, acknowledge or delete them.",
        "keys",
    ),
    CauseKind.KEY_HELD: ngettext_lazy(
        "%(what)s is held, because a task raised Throttled.",
        "%(what)s are held, because a task raised Throttled.",
        "keys",
    ),
    CauseKind.KEY_ORDER: ngettext_lazy(
        "the first job of %(what)s is due later (%(job)s), and the others wait for it.",
        "the first jobs of %(what)s are due later, one of them is %(job)s, and the others wait for them.",
        "keys",
    ),
    CauseKind.LIMIT_RATE: ngettext_lazy(
        "the rate of %(what)s does not admit it yet.", "the rate of %(what)s does not admit them yet.", "jobs"
    ),
    CauseKind.LIMIT_SLOTS: gettext_lazy("the slots of %(what)s are in use."),
}
"""The sentences, by the number of keys or of jobs: whichever their verbs and pronouns follow."""
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
    if is_of_breaker or (key.wait.breaker and reason in (LimitWaitReason.SLOT, LimitWaitReason.TOKEN)):
        return CauseKind.BREAKER_OPEN
    return None if reason is None else KINDS.get(reason)


def _cause(name: str, kind: CauseKind, pause: PauseStats | None, keys: Sequence[WaitingKey], words: Words) -> Cause:
    jobs = _held(keys)
    limit_keys = [name] if pause is not None else [key.limit_key for key in keys]
    limit_key = words.key_of(limit_keys)
    if pause is None and limit_key is not None:  # the pause of a key that the reader may see
        pause = keys[0].wait.pause
    opened = [key.wait.breaker for key in keys if kind is CauseKind.BREAKER_OPEN and key.wait.breaker]
    since = f" {min(opened).text(words.time_text)}" if len(limit_keys) == 1 and opened else ""
    return Cause(
        kind=kind,
        sentence=jobs_wait(jobs, _sentence(kind, pause, keys, limit_keys, words, jobs.plural)) + since,
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
    jobs: int,
) -> str:
    what = words.keys(limit_keys)
    if pause is not None:
        return paused_text(what, pause, words.time_text)
    if kind is CauseKind.LIMIT_UNDECLARED:
        what = in_words(name_of(limit_keys[0]))
    values = {"what": what, "job": keys[0].wait.blocking_job_id, "keys": len(limit_keys), "jobs": jobs}
    return str(SENTENCES[kind] % values)


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
        text = (
            _("%(jobs)s of %(total)s due jobs of the limit %(name)s belong to %(key)s.")
            if limit_key
            else _("%(jobs)s of %(total)s due jobs of the limit %(name)s have one key.")
        )
        value = in_words((limit_key or "").partition(":")[2])
        yield Cause(
            kind=CauseKind.ONE_KEY,
            sentence=text % {"jobs": number(largest.due), "total": number(total), "name": in_words(name), "key": value},
            jobs=Count(largest.due),
            name=name,
            limit_key=limit_key,
        )
