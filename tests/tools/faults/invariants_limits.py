"""Invariants of limits: how much of a key is open, how much starts in a period, in which order, and what is held.

An execution is open from the event of its claim to the event that closed it. That of a lost worker is open until it is
rescued: before, nobody knows that the worker will not go on, so its slot may not be used; and after the rescue, its
body may go on for a moment, as in I1, for a lease is all that a database can know of a body.

Two claims of a key are in the order of their events, because the second one locks the key after the first has
committed. An event that closes an execution comes before the claim that saw it closed. So if something was open by the
order of events, the claim had to count it. Only where a period is measured, times are compared: those that the database
has written into the executions themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from django_pgqueue.limits import Limit, name_of
from tests.tools.faults.history import Event, History, Stop
from tests.tools.faults.limits import LIMITS, period_of, slots_of
from tests.tools.faults.lives import Life, Rules, Violation, operated

MICROSECOND: Final = 1e-6
"""Instants are rounded to it."""


def limit_of(event: Event) -> Limit | None:
    """Return the limit of an execution's or a job's row."""
    row = event.new or event.old or {}
    key = row.get("limit_key")
    return LIMITS.get(name_of(key)) if key else None


def is_start(event: Event) -> bool:
    """Whether a job was claimed. The record of one that never ran is closed from the beginning."""
    return event.place == "execution" and event.op == "INSERT" and event.new is not None and not event.new["outcome"]


def starts_by_key(history: History) -> dict[str, list[Event]]:
    """Return the claims of jobs with a limit, by key, in the order in which they were admitted."""
    starts: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        if is_start(event) and event.new and limit_of(event):
            starts[event.new["limit_key"]].append(event)
    return starts


def starts_by_name(history: History) -> dict[str, list[Event]]:
    """Return the claims of jobs with a limit, by the name of the limit."""
    starts: dict[str, list[Event]] = defaultdict(list)
    for key, events in starts_by_key(history).items():
        starts[name_of(key)] += events
    return starts


def never_more_open(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I11: at no instant is more weight open for a key than its limit. One that is heavier than that takes it all.

    By the order of events, and by the executions' own times too: what has finished later than the claim was inserted
    was open then. `claimed_at` itself says when the claim began, which may have waited for a table before it counted.
    """
    weights: dict[str, dict[int | None, tuple[int, float]]] = defaultdict(dict)
    for event in history.events:
        limit = limit_of(event) if event.place == "execution" else None
        slots = slots_of(limit) if limit else None
        row = event.new or event.old
        if slots is None or row is None:
            continue
        of_key = weights[row["limit_key"]]
        if is_start(event):
            still = {number: (weight, end) for number, (weight, end) in of_key.items() if end > event.at}
            weights[row["limit_key"]] = still
            still[event.execution] = (min(row["weight"], slots), float("inf"))
            if sum(weight for weight, _ in still.values()) > slots:
                what = f"executions {[*still]} of {row['limit_key']} are open at a time, a weight of {slots} may"
                yield Violation("I11", event.job, what)
        elif event.new is None:
            of_key.pop(event.execution, None)
        elif event.new["outcome"] is not None and event.execution in of_key:
            of_key[event.execution] = (of_key[event.execution][0], event.new["finished_at"])


def never_more_in_a_period(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I11: in no window of a rate's period does more weight start than the rate and its burst, less one, admit."""
    for key, starts in starts_by_key(history).items():
        period = period_of(LIMITS[name_of(key)])
        if period is None:
            continue
        seconds, most = period
        times = sorted((event.new["claimed_at"], event.new["weight"], event.job) for event in starts if event.new)
        first = weight = 0
        for at, own, job in times:
            weight += own
            while times[first][0] <= at - seconds + MICROSECOND:
                weight -= times[first][1]
                first += 1
            if weight > most:
                yield Violation("I11", job, f"weight {weight} of {key} started within {seconds} s, {most} may")


def in_order(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I11: jobs of an ordered key start in the order of their ids, retries included; a dead one may block the others.

    A job that was added, or retried by an operator, just before a claim need not be known to it.
    """
    touched = operated(history, "sql", "delete")
    ahead: dict[str, dict[int, float]] = defaultdict(dict)
    for event in history.events:
        limit = limit_of(event) if event.place == "job" else None
        row = event.new or event.old
        if limit is None or not limit.ordered or row is None or row["order"] is None or event.job in touched:
            continue
        of_key = ahead[row["limit_key"]]
        state = event.new["state"] if event.new else "gone"
        if state == "running" and event.old and event.old["state"] == "ready":
            earlier = [
                job for job, since in of_key.items() if job < event.job and since < event.at - rules.obey_seconds
            ]
            if earlier:
                yield Violation("I11", event.job, f"started before {earlier} of the same ordered key")
        if state in ("ready", "running") or (state == "dead" and row["order"] == 2):
            of_key.setdefault(event.job, event.at)
        else:
            of_key.pop(event.job, None)


def nothing_held(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I11: no claim that began while a key was held takes a job of it, as soon as the hold has to be committed."""
    starts = starts_by_key(history)
    for key, begin, end in held_spans(history.stops):
        for event in starts.get(key, ()):
            if event.new and begin + rules.obey_seconds < event.new["claimed_at"] and event.at < end:
                late = event.new["claimed_at"] - begin
                yield Violation("I11", event.job, f"claimed {late:.2f} s after its key {key} was held")


def held_spans(stops: list[Stop]) -> Iterator[tuple[str, float, float]]:
    """Yield from when to when each hold of a key lasted, if nobody ended it before."""
    ends = {(stop.key, stop.until): stop.at for stop in stops if not stop.begins}
    for stop in stops:
        if stop.begins:
            yield stop.key, stop.at, min(stop.until, ends.get((stop.key, stop.until), stop.until))
