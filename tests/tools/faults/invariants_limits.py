"""Invariants of limits: how much of a key is open, how much starts in a period, in which order, and what is held.

An execution is open from the event of its claim to the event that closed it. That of a lost worker is open until it is
rescued: before, nobody knows that the worker will not go on, so its slot may not be used; and after the rescue, its
body may go on for a moment, as in I1, for a lease is all that a database can know of a body.

Two claims of a key are in the order of their events, because the second one locks the key after the first has
committed. An event that closes an execution comes before the claim that saw it closed. So if something was open by the
order of events, the claim had to count it. Only where a period is measured, times are compared: those that the database
has written into the executions themselves.

Operators can change limits while jobs run (see `policies`). Jobs that already run continue. So the checker judges only
claims, each by the values that were in force at that time or shortly before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from math import ceil
from typing import Final

from django_pgqueue.declared.limits import Limit, name_of
from tests.tools.faults.history import Event, History, Stop
from tests.tools.faults.limits import LIMITS
from tests.tools.faults.lives import Life, Rules, Violation, operated
from tests.tools.faults.policies import Policies, Policy

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


def starts_beside(history: History) -> Iterator[tuple[Event, dict[int | None, int]]]:
    """Yield each claim of a job with a limit, and what is open of its key then: the weights by execution, its own too.

    By the order of events, and by the executions' own times too: what has finished after `claimed_at` was open then.
    """
    weights: dict[str, dict[int | None, tuple[int, float]]] = defaultdict(dict)
    for event in history.events:
        row = event.new or event.old
        if event.place != "execution" or row is None or limit_of(event) is None:
            continue
        of_key = weights[row["limit_key"]]
        if is_start(event):
            still = {number: (weight, end) for number, (weight, end) in of_key.items() if end > row["claimed_at"]}
            weights[row["limit_key"]] = still
            still[event.execution] = (row["weight"], float("inf"))
            yield event, {number: weight for number, (weight, _) in still.items()}
        elif event.new is None:
            of_key.pop(event.execution, None)
        elif event.new["outcome"] is not None and event.execution in of_key:
            of_key[event.execution] = (of_key[event.execution][0], event.new["finished_at"])


def never_more_open(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I11: at no claim is more weight open for a key than its limit. One that is heavier than that takes it all."""
    policies = Policies(history)
    for event, weights in starts_beside(history):
        key = (event.new or {})["limit_key"]
        slots = [policy.slots for policy in policies.during(key, event.at - rules.obey_seconds, event.at)]
        if None not in slots and all(_weight(weights, each) > each for each in slots if each is not None):
            what = f"executions {[*weights]} of {key} are open at a time, a weight of {slots} may"
            yield Violation("I11", event.job, what)


def _weight(weights: dict[int | None, int], slots: int) -> int:
    return sum(min(weight, slots) for weight in weights.values())


def never_more_in_a_period(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I11: in no window of a rate's period does more weight start than the rate and its burst, less one, admit.

    If operators have changed the rate, each of the rates in force admits as much of its own, with a burst.
    """
    policies = Policies(history)
    for key, starts in starts_by_key(history).items():
        times = sorted((event.new["claimed_at"], event.new["weight"], event.job) for event in starts if event.new)
        for seconds in {policy.seconds for _, policy in policies.of(key) if policy.seconds}:
            first = weight = 0
            tokens: list[int] = []
            for at, own, job in times:
                before = policies.during(key, at - rules.obey_seconds, at)
                tokens.append(min(policy.tokens_of(own) for policy in before))
                weight += tokens[-1]
                while times[first][0] <= at - seconds + MICROSECOND:
                    weight -= tokens[first]
                    first += 1
                most = _most(policies.during(key, times[first][0] - rules.obey_seconds, at), seconds)
                if weight > most:
                    yield Violation("I11", job, f"weight {weight} of {key} started within {seconds} s, {most:g} may")


def _most(policies: list[Policy], seconds: float) -> float:
    """Return how much weight may start in a window while these policies are in force one after the other."""
    rates = [each for each, _ in groupby((policy.interval, policy.burst) for policy in policies)]
    if any(not interval for interval, _ in rates):
        return float("inf")
    return sum(ceil(seconds / interval - MICROSECOND) + burst - 1 for interval, burst in rates)


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
