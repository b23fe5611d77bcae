"""The invariant that no limit key starves (I21): a replay of what each key could have started, at each claim of others.

A history does not say which workers lived, and where a fault held all of them up. It says when a worker claimed a job
of a queue: then this worker could have claimed a due job of a key in the same lane, if the limit of the key admitted
it. So the time for which a key is passed over counts by the claims of others, with at most a second between two. A key
that is held or paused, or whose circuit breaker is open, may wait. If an operator has just changed the limit, both the
earlier and the new one have to admit the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

from django_pgqueue.declared.limits import Limit, name_of
from tests.tools.faults.history import Event, History
from tests.tools.faults.invariants_asked import paused_spans
from tests.tools.faults.invariants_breakers import open_spans
from tests.tools.faults.invariants_limits import held_spans, is_start, limit_of
from tests.tools.faults.limits import LIMITS
from tests.tools.faults.lives import Life, Rules, Violation, operated
from tests.tools.faults.policies import NEVER, Policies, Policy

GAP_SECONDS: Final = 1.0
"""How much the time between two claims counts at the most: in a longer one, perhaps no worker could claim anything."""


class Waiting(NamedTuple):
    """A job of a key that has not ended."""

    id: int
    state: str
    due: float
    weight: int
    lane: tuple[str, int]
    order: int | None


class Key:
    """What is open and what waits of one limit key, and for how long it was passed over."""

    def __init__(self, name: str) -> None:
        self.limit: Limit = LIMITS[name_of(name)]
        self.jobs: dict[int, Waiting] = {}
        self.weights: dict[int | None, int] = {}
        self.full_at = 0.0
        """When the bucket of the rate is full."""
        self.passed_over = 0.0
        self.last_claim: float | None = None
        """The last claim of another job in the lane, since the key could start its own."""

    def start(self, event: Event, weight: int, policies: Iterable[Policy]) -> None:
        """Take slots and tokens for an execution."""
        self.weights[event.execution] = weight
        self.passed_over, self.last_claim = 0.0, None
        if event.new:
            owed = max(policy.tokens_of(weight) * policy.interval for policy in policies)
            self.full_at = max(self.full_at, event.new["claimed_at"]) + owed

    def next(self) -> Waiting | None:
        """Return the job that comes first: by its id if it has an order, else by the time at which it is due."""
        ordered = [job for job in self.jobs.values() if job.order is not None]
        if self.limit.ordered and ordered:
            return min(ordered)
        return min((job for job in self.jobs.values() if job.state == "ready"), key=_turn, default=None)

    def could_start(self, lane: tuple[str, int] | None, at: float, policies: Iterable[Policy]) -> bool:
        """Whether the limit admits the next job of the key at this instant, as far as slots, tokens and order go."""
        job = self.next()
        if job is None or job.state != "ready" or job.due > at or job.lane != lane:
            return False
        return all(self._admits(job.weight, at, policy) for policy in policies)

    def _admits(self, weight: int, at: float, policy: Policy) -> bool:
        slots = policy.slots or NEVER
        if sum(min(each, slots) for each in self.weights.values()) + min(weight, slots) > slots:
            return False
        owed = min(max(self.full_at - at, 0.0), policy.burst * policy.interval)
        return not policy.interval or owed + (policy.tokens_of(weight) - policy.burst) * policy.interval <= 0

    def pass_over(self, at: float) -> None:
        """Note that a worker has claimed another job."""
        if self.last_claim is not None:
            self.passed_over += min(at - self.last_claim, GAP_SECONDS)
        self.last_claim = at


def _lane(row: dict[str, Any]) -> tuple[str, int]:
    return row.get("queue", ""), row.get("priority", 0)


def _turn(job: Waiting) -> tuple[float, int]:
    return job.due, job.id


class Waits:
    """When a key may wait, whatever its limit says: its holds, its pauses and those of its limit, its open breakers."""

    def __init__(self, history: History) -> None:
        self._spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for name, begin, end in [*held_spans(history.stops), *open_spans(history.breakings)]:
            self._spans[name].append((begin, end))
        for pause, end in paused_spans(history.pauses):
            if pause.kind == "limit":
                self._spans[pause.name].append((pause.at, end))

    def may_wait(self, key: str, at: float) -> bool:
        """Whether the key may wait at this instant."""
        return any(begin <= at < end for name in {key, name_of(key)} for begin, end in self._spans.get(name, ()))


def no_key_starves(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I21: while workers claim jobs of a lane, a key whose limit admits a due job of it gets its turn."""
    touched = operated(history, "sql", "delete")
    waits, policies = Waits(history), Policies(history)
    keys: dict[str, Key] = {}
    lanes: dict[int, tuple[str, int]] = {}
    for _, transaction in groupby(history.events, key=lambda event: event.xid):
        events = list(transaction)
        for event in events:
            row = event.new or event.old or {}
            if event.place == "job":
                lanes[event.job] = _lane(row)
            if limit_of(event) and event.job not in touched:
                key = row["limit_key"]
                now = policies.during(key, event.at - rules.obey_seconds, event.at)
                _follow(keys.setdefault(key, Key(key)), event, now)
        claims = [event for event in events if is_start(event)]
        claimed = {event.new["limit_key"] for event in claims if event.new}
        for event in claims[-1:]:
            others = {
                name: (key, policies.during(name, event.at - rules.obey_seconds, event.at))
                for name, key in keys.items()
                if not (name in claimed or waits.may_wait(name, event.at))
            }
            for name, key in keys.items():
                if name not in others:
                    key.passed_over, key.last_claim = 0.0, None
            yield from _pass_over(others, lanes.get(event.job), event.at, rules)


def _follow(key: Key, event: Event, policies: Iterable[Policy]) -> None:
    row = event.new or event.old or {}
    if event.place == "execution":
        if is_start(event):
            key.start(event, row["weight"], policies)
        elif event.new is None or event.new["outcome"] is not None:
            key.weights.pop(event.execution, None)
        return
    state = event.new["state"] if event.new else "gone"
    if state in ("ready", "running") or (state == "dead" and row["order"] == 2):
        due = max(row["run_after"], event.at)
        key.jobs[event.job] = Waiting(event.job, state, due, row["weight"], _lane(row), row["order"])
    else:
        key.jobs.pop(event.job, None)


def _pass_over(
    keys: dict[str, tuple[Key, list[Policy]]], lane: tuple[str, int] | None, at: float, rules: Rules
) -> Iterator[Violation]:
    """Add the time since the last claim to all keys that could have started a job in this one."""
    for name, (key, policies) in keys.items():
        if not key.could_start(lane, at, policies):
            key.passed_over, key.last_claim = 0.0, None
            continue
        key.pass_over(at)
        if key.passed_over > rules.passed_over_seconds:
            job = key.next()
            what = f"{name} was passed over for {key.passed_over:.1f} s, and its limit admitted a due job"
            yield Violation("I21", job.id if job else 0, what)
            key.passed_over = 0.0
