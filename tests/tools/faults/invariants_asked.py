"""Invariants of what applications and operators ask for: unique keys, schedules, pauses, cancellations, expiry.

What was asked is taken from where it was asked: the key from the insert, not from what the row says later; the ticks
from an append-only record of their own, which nothing cleans up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from django_pgqueue.declared.limits import name_of
from django_pgqueue.schedules.next_ticks import EVERY, UNITS
from tests.tools.faults.history import Event, History, Hold, Pause
from tests.tools.faults.lives import Life, Rules, Violation, operated

FROM_SCHEDULE: Final = "schedule:"
"""With this the tags of jobs begin that a schedule makes."""
FIRST_MICROSECOND: Final = 1e-6


# ------------------------------------------------------------------------------- unique keys


def one_for_each_key(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I10: at most one live job for each key of a task; and who was told that there is one, was told of that one."""
    events = [event for event in history.events if event.place == "job"]
    keys = {
        event.job: (event.new["task"], event.new["key"])
        for event in events
        if event.op == "INSERT" and event.new and event.new.get("key") is not None
    }
    untouched = keys.keys() - operated(history, "sql", "delete")
    yield from _two_with_a_key([event for event in events if event.job in untouched], keys)
    keys |= {hold.job: (hold.task, hold.key) for hold in history.holds}
    for record in history.said("enqueue-returned"):
        if record["answer"] == "duplicate" and keys.get(record["job"]) != (record["task"], record["key"]):
            yield Violation("I10", record["job"], f"told to have the key {record['key']!r} of {record['task']}")


def _two_with_a_key(events: list[Event], keys: dict[int, tuple[str, str]]) -> Iterator[Violation]:
    has_run: set[int] = set()
    living: dict[tuple[str, str], set[int]] = defaultdict(set)
    for event in events:
        others = living[keys[event.job]]
        if event.new and event.new["state"] == "running":
            has_run.add(event.job)
        if not _keeps_away(event.new, event.job in has_run):
            others.discard(event.job)
        elif event.job not in others:
            others.add(event.job)
            if len(others) > 1:
                yield Violation("I10", event.job, f"jobs {sorted(others)} live with the key {keys[event.job]}")


def one_for_each_period(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I10: a key that is held for a period is taken again only after it, and with a job of the same transaction."""
    born = {event.job: event.xid for event in history.events if event.place == "job" and event.op == "INSERT"}
    held: dict[tuple[str, str], Hold] = {}
    for hold in history.holds:
        before = held.get((hold.task, hold.key))
        if before is not None and hold.at < before.until:
            early = before.until - hold.at
            yield Violation(
                "I10", hold.job, f"took {hold.key!r} of {hold.task} {early:.3f} s before {before.job} gave it up"
            )
        if born.get(hold.job) != hold.xid:
            yield Violation("I10", hold.job, f"holds the key {hold.key!r} of {hold.task}, and was not made with that")
        held[hold.task, hold.key] = hold


def _keeps_away(row: dict[str, Any] | None, has_run: bool) -> bool:
    """Whether others with its key are kept away: until its end, or only until it first runs.

    One that has run and waits again has its key no more in the latter case, unless its row says so: an operator's retry
    of one that had kept it.
    """
    if row is None:
        return False
    if row["ready_only"]:
        return row["state"] == "ready" and (row["key"] is not None or not has_run)
    return row["state"] in ("ready", "running")


# ------------------------------------------------------------------------------- schedules


def each_tick_once(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I16: exactly one job for each (schedule, tick), in one transaction; none is left out where all are to run."""
    ticks = history.ticks
    for (schedule, tick_at), times in Counter((tick.schedule, tick.tick_at) for tick in ticks).items():
        if times > 1:
            yield Violation("I16", 0, f"tick {tick_at} of schedule {schedule} was dealt with {times} times")
    for job, times in Counter(tick.job for tick in ticks if tick.job is not None).items():
        if times > 1:
            yield Violation("I16", job, f"made by {times} ticks")
    born = {event.job: event for event in history.events if event.place == "job" and event.op == "INSERT"}
    for tick in ticks:
        if tick.job is not None and (tick.job not in born or born[tick.job].xid != tick.xid):
            yield Violation("I16", tick.job, f"tick {tick.tick_at} of schedule {tick.schedule} was noted without it")
    fired = {tick.job for tick in ticks}
    for job in {event.job for event in born.values() if (event.tag or "").startswith(FROM_SCHEDULE)} - fired:
        yield Violation("I16", job, "made by a schedule, and by no tick")
    yield from _left_out(history)


def _left_out(history: History) -> Iterator[Violation]:
    """What lies between two ticks that were dealt with, of intervals whose missed ticks are made up for."""
    for schedule, row in history.schedules.items():
        found = EVERY.fullmatch(row["expression"])
        if not found or row["missed"] != "all":
            continue
        interval = int(found[1]) * UNITS[found[2]]
        ticks = sorted({tick.tick_at for tick in history.ticks if tick.schedule == schedule})
        ticks = [tick for tick in ticks if tick % interval < FIRST_MICROSECOND]  # an operator's "run now" is at no tick
        if not ticks:
            continue
        for before, after in pairwise([*ticks, row["next_run_at"]]):
            if after - before > interval + FIRST_MICROSECOND:
                yield Violation("I16", 0, f"no tick of schedule {schedule} between {before} and {after}")


# ------------------------------------------------------------------------------- what may not begin


def nothing_paused(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I9: nothing of a paused queue, task, limit or key is claimed, once every worker has to know of the pause."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for pause, end in paused_spans(history.pauses):
        spans[pause.kind, pause.name].append((pause.at, end))
    for life in lives.values():
        for event in _claims(life):
            for kind, name in _pausable(event.new or {}):
                for begin, end in spans.get((kind, name), ()):
                    if begin + rules.obey_seconds < event.at < end:
                        what = f"claimed {event.at - begin:.2f} s after a pause of {kind} {name}"
                        yield Violation("I9", life.job, what)


def _pausable(row: dict[str, Any]) -> set[tuple[str, str]]:
    """Return all that can be paused to hold a job back."""
    key = row["limit_key"]
    of_limit = {("limit", key), ("limit", name_of(key))} if key else set()
    return {("queue", row["queue"]), ("task", row["task"]), *of_limit}


def paused_spans(pauses: list[Pause]) -> Iterator[tuple[Pause, float]]:
    """Yield each pause, and when it ended: by itself, or because it was changed or removed."""
    for pause, end in _until_the_next(pauses):
        if pause.paused:
            yield pause, end if pause.until is None else min(end, pause.until)


def _until_the_next(pauses: list[Pause]) -> Iterator[tuple[Pause, float]]:
    by_name: dict[tuple[str, str], list[Pause]] = defaultdict(list)
    for pause in pauses:
        by_name[pause.kind, pause.name].append(pause)
    for told in by_name.values():
        yield from zip(told, [*(pause.at for pause in told[1:]), float("inf")], strict=True)


def nothing_cancelled(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I9: what was to be cancelled is not claimed, and comes back neither ready nor dead."""
    touched = operated(history, "sql")
    for life in lives.values():
        for event in life.of("job"):
            if event.old is None or event.new is None or not event.old["cancel"] or life.job in touched:
                continue
            old, new = event.old["state"], event.new["state"]
            if old == "ready" and new == "running":
                yield Violation("I9", life.job, "claimed, though it was to be cancelled")
            elif old == "running" and new in ("ready", "dead"):
                yield Violation("I9", life.job, f"running became {new}, though it was to be cancelled")


def nothing_expired(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I9: no body begins of a job that was claimed after its expiry; and none is cancelled for it before its time."""
    begun = {record["execution"] for record in history.said("start")}
    touched = operated(history, "sql")
    for life in lives.values():
        opened = {event.xid: event.execution for event in life.of("execution") if event.op == "INSERT"}
        for event in life.of("job"):
            if event.old is None or event.new is None or event.new["expires_at"] is None or life.job in touched:
                continue
            late = event.at - event.new["expires_at"]
            if _is_claim(event) and late > 0 and opened.get(event.xid) in begun:
                yield Violation("I9", life.job, f"begun, and had expired {late:.3f} s before its claim")
            elif is_expiry(event) and late < -0.001:
                yield Violation("I9", life.job, f"cancelled {-late:.3f} s before it was to expire")


def _claims(life: Life) -> Iterator[Event]:
    return (event for event in life.of("job") if _is_claim(event))


def _is_claim(event: Event) -> bool:
    return bool(event.old and event.new and event.old["state"] == "ready" and event.new["state"] == "running")


def is_expiry(event: Event) -> bool:
    """Whether a waiting job was cancelled, and nobody had asked for it."""
    was, now = event.old or {}, event.new or {}
    return was.get("state") == "ready" and now.get("state") == "cancelled" and not now["cancel"]
