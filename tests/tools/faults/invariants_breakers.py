"""The invariant of circuit breakers (I22): when they open and close, and what starts meanwhile.

A breaker is opened and closed under the lock of its key, as claims are made. So there is no moment in which a worker
may not know of it: an execution with a higher id than the breaker has noted was claimed while it was open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.declared.limits import name_of
from tests.tools.faults.history import Breaking, Event, History
from tests.tools.faults.invariants_asked import paused_spans
from tests.tools.faults.invariants_limits import limit_of, starts_beside, starts_by_key
from tests.tools.faults.limits import LIMITS
from tests.tools.faults.lives import Life, Rules, Violation

FAILURES = ("failed", "crashed")


def by_key(breakings: list[Breaking]) -> dict[str, list[Breaking]]:
    """Return what happened to the breakers of each key."""
    found: dict[str, list[Breaking]] = defaultdict(list)
    for breaking in breakings:
        found[breaking.key].append(breaking)
    return found


def open_spans(breakings: list[Breaking]) -> Iterator[tuple[str, float, float]]:
    """Yield from when to when the breaker of a key was open."""
    for key, of_key in by_key(breakings).items():
        for breaking, after in zip(of_key, [*of_key[1:], None], strict=True):
            if breaking.is_open:
                yield key, breaking.at, float("inf") if after is None else after.at


def nothing_while_open(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I22: no claim takes a job of a key that a breaker has paused; without a second in which it need not know."""
    starts = starts_by_key(history)
    opened = {(breaking.xid, breaking.key): breaking for breaking in history.breakings if breaking.is_open}
    for pause, end in paused_spans(history.pauses):
        breaking = opened.get((pause.xid, pause.name))
        if pause.kind != "limit" or pause.by != PAUSED_BY or breaking is None:
            continue
        for event in starts.get(pause.name, ()):
            number, at = event.execution or 0, (event.new or {})["claimed_at"]
            if number > breaking.after and pause.at < event.at and at < end:
                what = f"claimed {event.at - pause.at:.2f} s after the breaker of {pause.name} opened"
                yield Violation("I22", event.job, what)


def one_probe(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I22: while a breaker is open, a job of its key starts only when no other one is open."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key, begin, end in open_spans(history.breakings):
        spans[key].append((begin, end))
    for event, weights in starts_beside(history):
        key = (event.new or {})["limit_key"]
        if len(weights) > 1 and any(begin < event.at < end for begin, end in spans.get(key, ())):
            what = f"executions {[*weights]} of {key} are open at a time, and its breaker is open"
            yield Violation("I22", event.job, what)


def with_reason(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I22: a breaker opens after enough failures, with a pause; a probe of its own closes it or opens it again."""
    ends: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        if event.place == "execution" and event.new and event.new["outcome"] and limit_of(event):
            ends[event.new["limit_key"]].append(event)
    for key, breakings in by_key(history.breakings).items():
        before: Breaking | None = None
        for breaking in breakings:
            earlier = [event for event in ends[key] if event.at <= breaking.at]
            if before is not None and before.is_open:
                yield from _undecided(before, breaking, earlier)
            else:
                yield from _unfounded(breaking, earlier, rules)
            if breaking.is_open and not _is_paused(history, breaking):
                yield Violation("I22", 0, f"the breaker of {key} opened, and did not pause it")
            before = breaking


def _undecided(before: Breaking, breaking: Breaking, earlier: list[Event]) -> Iterator[Violation]:
    wanted = FAILURES if breaking.is_open else ("succeeded",)
    probes = [event for event in earlier if (event.execution or 0) > before.after]
    if not any(event.new and event.new["outcome"] in wanted for event in probes):
        act = "opened again" if breaking.is_open else "closed"
        yield Violation("I22", 0, f"the breaker of {breaking.key} {act}, and no probe has {wanted[0]}")


def _unfounded(breaking: Breaking, earlier: list[Event], rules: Rules) -> Iterator[Violation]:
    """Yield a violation if too few attempts failed.

    Processes write what they count after the attempts have ended: later if they were frozen, or the server was away.
    """
    breaker = LIMITS[name_of(breaking.key)].breaker
    assert breaker is not None, breaking.key
    first = breaking.at - breaker.seconds - 2 * rules.obey_seconds
    failed = sum(event.at > first and event.new is not None and event.new["outcome"] in FAILURES for event in earlier)
    if failed < breaker.failures * breaker.attempts:
        yield Violation("I22", 0, f"the breaker of {breaking.key} opened, and only {failed} attempts had failed")


def _is_paused(history: History, breaking: Breaking) -> bool:
    """Whether its own pause was written with it, or somebody else's was in force."""
    return any(
        pause.name == breaking.key and (pause.xid == breaking.xid or pause.at <= breaking.at < end)
        for pause, end in paused_spans(history.pauses)
        if pause.kind == "limit"
    )
