"""Describe limits in words: what a limit admits, and what the next job of a key waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.admin.charts import seconds_text
from django_pgqueue.admin.formatting import full_date, visible
from django_pgqueue.declared.breakers import Breaker
from django_pgqueue.declared.limit_policies import KeyPolicy
from django_pgqueue.declared.limits import Limit
from django_pgqueue.display import number, percent
from django_pgqueue.stats import LimitKeyFigures, LimitWaitReason

WAITS: Final[dict[LimitWaitReason, Promise | str]] = {
    LimitWaitReason.PAUSED: gettext_lazy("The key or its limit is paused."),
    LimitWaitReason.UNDECLARED: gettext_lazy("No task of this code declares the limit."),
    LimitWaitReason.BLOCKED_BY_DEAD: gettext_lazy("A dead job of the key comes first."),
    LimitWaitReason.ORDER: gettext_lazy("Another job of the key comes first."),
    LimitWaitReason.SLOT: gettext_lazy("Its running jobs use all slots."),
    LimitWaitReason.NOT_DUE: gettext_lazy("The next job is due later."),
    LimitWaitReason.HOLD: gettext_lazy("It is held, because a task raised Throttled."),
    LimitWaitReason.TOKEN: gettext_lazy("The rate admits the next job later."),
    LimitWaitReason.WORKER: gettext_lazy("The limit admits the next job. It waits for a worker."),
}


def limit_lines(limit: Limit, policy: KeyPolicy) -> Iterator[str]:
    """Yield what a limit admits, in words. The policy has the values in force."""
    if limit.key is not None:
        key = limit.key if isinstance(limit.key, str) else f"{getattr(limit.key, '__name__', limit.key)}()"
        yield _("for each key %(key)s") % {"key": visible(key)}
    if limit.ordered:
        yield _("one after the other, and a dead job blocks its key") if limit.blocks else _("one after the other")
    elif policy.concurrency is not None:
        yield _("at most %(count)s at a time") % {"count": number(policy.concurrency)}
    if policy.rate is not None:
        words = {"rate": policy.rate, "burst": number(policy.burst)}
        yield (
            _("at most %(rate)s, and %(burst)s at once") % words if policy.burst > 1 else _("at most %(rate)s") % words
        )
    if limit.weight != 1:
        yield _weight_line(limit)
    if limit.breaker is not None:
        yield _breaker_line(limit.breaker)
    if policy.share != 1:
        yield ngettext("%(count)s job in a turn", "%(count)s jobs in a turn", policy.share) % {"count": policy.share}


def _weight_line(limit: Limit) -> str:
    if callable(limit.weight):
        return _("weighted by %(name)s()") % {"name": visible(getattr(limit.weight, "__name__", "?"))}
    return _("each job counts %(weight)s times") % {"weight": number(limit.weight)}


def _breaker_line(breaker: Breaker) -> str:
    words = {
        "pause": seconds_text(breaker.pause),
        "share": percent(breaker.failures, 4),
        "count": number(breaker.attempts),
        "span": seconds_text(breaker.seconds),
    }
    return _("paused for %(pause)s when %(share)s of at least %(count)s attempts in %(span)s fail") % words


def wait_text(key: LimitKeyFigures, policy: KeyPolicy | None) -> str:
    """Return what the next job of a key waits for, as a sentence; "" if jobs run and none waits."""
    reason = key.waits_for
    if reason is None:
        return "" if key.running.value else _("No job with this key waits or runs.")
    if reason is LimitWaitReason.SLOT and policy is not None and policy.concurrency is not None:
        words = {"used": number(key.running_weight), "most": number(policy.concurrency)}
        return _("Its running jobs use %(used)s of %(most)s slots.") % words
    if reason is LimitWaitReason.ORDER and key.blocking_job_id is not None:
        return _("Job #%(job)s of the key comes first.") % {"job": key.blocking_job_id}
    if reason is LimitWaitReason.HOLD and key.held_until is not None:
        return _("It is held until %(at)s, because a task raised Throttled.") % {"at": full_date(key.held_until)}
    if reason is LimitWaitReason.TOKEN and policy is not None and policy.rate is not None:
        return _("Its rate is %(rate)s.") % {"rate": policy.rate}
    return str(WAITS.get(reason, visible(reason.value)))


def next_start_text(key: LimitKeyFigures) -> str:
    """Return in what time the limit admits the next job; "" if the time is not known."""
    seconds = key.next_start_seconds
    if seconds is None:
        return ""
    return _("now") if seconds <= 0 else _("in %(span)s") % {"span": seconds_text(seconds)}
