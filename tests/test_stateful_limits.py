"""Claims of limited jobs against a small model of keys, limits and time, with two sessions that claim at once.

A Hypothesis state machine enqueues jobs with keys and weights, claims them, and ends their executions in every way. A
claim is two steps, so the other session and all other rules can act between the lock of the keys and the claim. The
model computes which jobs a claim has to return: none that a limit forbids, and every one that a limit admits and for
which there is room. Operators override concurrencies and pause keys between the steps. Nothing here waits: one tick of
time is 1000 seconds, in which a token of each rate comes back.

CI runs 50 examples. For a long run, use `pytest tests/test_stateful_limits.py --stateful-examples 10000`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import clock
from django_pgqueue.declared.limits import Limit, name_of
from django_pgqueue.lifecycle import completions, limit_overrides, limits, operator, pauses, rescues
from django_pgqueue.lifecycle.limits import KeyToClaim
from django_pgqueue.lifecycle.types import Cursor, ExecutionKey, Released, TransitionStatus
from django_pgqueue.states import Pausable
from tests import helpers
from tests.concurrency.limits import LANE, add, found
from tests.tools.faults.limits import slots_of

pytestmark = pytest.mark.slow

TICK = 1000.0
NEVER = -math.inf
LIMITS = {
    limit.name: limit
    for limit in (
        Limit("slots", key="{key}", concurrency=2),
        Limit("rate", key="{key}", rate="2/2000s", burst=2),
        Limit("both", key="{key}", rate="1/1000s", burst=3, concurrency=2),
        Limit("fair", key="{key}", share=2),
        Limit("order", key="{key}", ordered=True),
        Limit("block", key="{key}", ordered=True, on_dead="block"),
        Limit("paced", key="{key}", ordered=True, rate="1/1000s", burst=3),
    )
}
KEYS = st.lists(st.sampled_from([f"{name}:{value}" for name in LIMITS for value in "ab"]), min_size=1, max_size=3)
"""The keys of one history. With more of them, jobs of one key would rarely meet."""
CHANGED = ("slots", "both", "fair")
"""Limits whose concurrency operators override. `fair` has none of its own."""
WHO = st.sampled_from([0, 1])
TICKS = st.sampled_from([None, 1, 2, 3])
"""After how many ticks an override or a pause ends by itself."""
STATES = "SELECT id, state, attempt FROM pgqueue_job ORDER BY id"
OPEN = "SELECT limit_key, limit_weight FROM pgqueue_execution WHERE finished_at IS NULL ORDER BY id"
PRUNED_TICKS = 4
"""States that have passed for an hour are pruned: after four ticks, and not after three."""


@dataclass
class Job:
    """A job with a limit. Jobs that are due at one tick start in the order of `order`."""

    id: int
    key: str
    weight: int
    due: int
    order: int
    state: str = "ready"
    attempt: int = 0
    max_attempts: int = 10
    is_acknowledged: bool = False


@dataclass
class Open:
    """An open execution."""

    key: ExecutionKey
    job: Job
    lease: int


class Limits(RuleBasedStateMachine):
    """The rules. `self.now` is the tick; `self.locked` has the keys that each session has locked for its claim."""

    engine: EngineConnection
    sessions: tuple[EngineConnection, EngineConnection]

    @initialize(keys=KEYS)
    def begin(self, keys: list[str]) -> None:
        clock.shift_seconds = 0.0
        helpers.clear_tables(self.engine)
        for table in ("limit_state", "limit_override", "pause"):
            self.engine.execute(f"DELETE FROM pgqueue_{table}")
        self.now = self.steps = 0
        self.keys = keys
        self.jobs: dict[int, Job] = {}
        self.open: dict[int, Open] = {}
        self.ended: list[Open] = []
        self.full: dict[str, int] = {}
        """When the bucket of each key is full."""
        self.holds: dict[str, list[int]] = {}
        self.starts: list[tuple[str, int, int]] = []
        """Key, tick and weight of each start, since the clock last went back."""
        self.overrides: dict[str, tuple[int, float]] = {}
        """The concurrency that an operator has set for a limit or a key, and when that ends."""
        self.changed: set[str] = set()
        self.pauses: dict[str, float] = {}
        self.locked: list[list[str] | None] = [None, None]
        for place, _ in enumerate(keys):
            self.enqueue(place, 3, 1, 0, 10)

    def teardown(self) -> None:
        clock.shift_seconds = 0.0
        for session in self.sessions:
            session.rollback()

    # ------------------------------------------------------------------ the model

    def free(self, key: str) -> tuple[float, float]:
        """Return the slots and the tokens that the limit of a key admits now."""
        limit = LIMITS[name_of(key)]
        if max(self.holds.get(key, ()), default=NEVER) > self.now:
            return 0, 0
        slots = self.slots(key)
        used = sum(min(each.job.weight, slots) for each in self.open.values() if each.job.key == key) if slots else 0
        tokens = limit.burst - self.used(key) if limit.rate else math.inf
        return (slots or math.inf) - used, tokens

    def slots(self, key: str) -> int | None:
        """Return how much of a key may run at a time now: by the override of the key, of the limit, or by the code."""
        for name in (key, name_of(key)):
            concurrency, end = self.overrides.get(name, (0, NEVER))
            if self.now < end:
                return concurrency
        return slots_of(LIMITS[name_of(key)])

    def is_paused(self, key: str) -> bool:
        return any(self.now < self.pauses.get(name, NEVER) for name in (key, name_of(key)))

    def used(self, key: str) -> int:
        """Return how many tokens have not come back. A clock that went back never empties a bucket further."""
        return min(max(self.full.get(key, self.now) - self.now, 0), LIMITS[name_of(key)].burst)

    def admitted(self, key: str, most: int) -> list[Job]:
        """Return the jobs of a key that a claim takes if there is room for all."""
        jobs = [job for job in self.jobs.values() if job.key == key]
        if LIMITS[name_of(key)].ordered:
            blocking = {"ready", "running", "dead"} if name_of(key) == "block" else {"ready", "running"}
            jobs = [job for job in jobs if job.state in blocking and not job.is_acknowledged]
            jobs = sorted(jobs, key=lambda job: job.id)[:1]
        slots, tokens = self.free(key)
        due = [job for job in jobs if job.state == "ready" and job.due <= self.now]
        due.sort(key=lambda job: (job.due, job.order, job.id))
        due = due[: int(min(slots, tokens, max(LIMITS[name_of(key)].share, most)))]
        limit = LIMITS[name_of(key)]
        used_slots = accumulate(min(job.weight, self.slots(key) or math.inf) for job in due)
        used_tokens = accumulate(min(job.weight, limit.burst) for job in due) if limit.rate else [0] * len(due)
        sums = zip(due, used_slots, used_tokens, strict=True)
        return [job for job, taken, spent in sums if taken <= slots and spent <= tokens]

    def expected(self, keys: list[str], limit: int, free_slots: int) -> list[Job]:
        """Return the jobs that a claim has to return: keys in turns, and jobs with a rate only into free slots."""
        most = math.ceil(limit / len(keys))
        turns = sorted(
            (place // LIMITS[name_of(key)].share, turn, place, job)
            for turn, key in enumerate(keys)
            for place, job in enumerate(self.admitted(key, most))
        )
        jobs = [job for *_, job in turns][:limit]
        prefetched = (
            place
            for place, job in enumerate(jobs)
            if place >= free_slots and (LIMITS[name_of(job.key)].rate or job.attempt + 1 >= job.max_attempts)
        )
        return jobs[: next(prefetched, limit)]

    # ------------------------------------------------------------------ jobs

    @rule(
        place=st.integers(0, 2),
        count=st.integers(1, 3),
        weight=st.sampled_from([1, 1, 2, 3]),
        delay=st.sampled_from([0, 0, 0, 1]),
        most=st.sampled_from([1, 2, 10]),
    )
    def enqueue(self, place: int, count: int, weight: int, delay: int, most: int) -> None:
        key = self.keys[place % len(self.keys)]
        order = LIMITS[name_of(key)].order
        run_after = (self.now + delay) * TICK  # from the database's clock, which does not know of the ticks
        for job_id in add(self.engine, key, count, weight=weight, order=order, delay=run_after):
            self.jobs[job_id] = Job(job_id, key, weight, self.now + delay, self.steps, max_attempts=most)
        self.engine.execute("UPDATE pgqueue_job SET max_attempts = %s WHERE max_attempts > %s AND state = 'ready'"
                            " AND id > %s", [most, most, max(self.jobs) - count])  # fmt: skip

    def some_job(self, data: st.DataObject, *states: str) -> Job | None:
        jobs = [job for job in self.jobs.values() if job.state in states]
        return data.draw(st.sampled_from(jobs), label="job") if jobs else None

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if job := self.some_job(data, "ready"):
            assert list(operator.cancel(self.engine, [job.id])) == [job.id]
            job.state = "cancelled"

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        if job := self.some_job(data, "dead", "succeeded", "cancelled"):
            assert list(operator.retry(self.engine, [job.id])) == [job.id]
            self.make_ready(job, 0)
            job.attempt = 0

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if job := self.some_job(data, "dead"):
            changed = [] if job.is_acknowledged else [job.id]
            assert list(operator.acknowledge(self.engine, [job.id])) == changed
            job.is_acknowledged = True

    @rule(data=st.data())
    def run_now(self, data: st.DataObject) -> None:
        if (job := self.some_job(data, "ready")) and job.due > self.now:
            assert list(operator.run_now(self.engine, [job.id])) == [job.id]
            self.make_ready(job, 0)

    def make_ready(self, job: Job, delay: int | None) -> None:
        job.state, job.is_acknowledged = "ready", False
        if delay is not None:
            job.due, job.order = self.now + delay, self.steps

    # ------------------------------------------------------------------ operators

    def some_name(self, data: st.DataObject, names: list[str]) -> str | None:
        """Return one of these keys, or the name of its limit."""
        choices = sorted({name for key in names for name in (key, name_of(key))})
        return data.draw(st.sampled_from(choices), label="name") if choices else None

    @rule(data=st.data(), concurrency=st.sampled_from([None, 1, 3]), ticks=TICKS)
    def override(self, data: st.DataObject, concurrency: int | None, ticks: int | None) -> None:
        name = self.some_name(data, [key for key in self.keys if name_of(key) in CHANGED])
        if name is None:
            return
        seconds = None if ticks is None else ticks * TICK
        with self.engine.transaction():
            limit_overrides.override(self.engine, name, {"concurrency": concurrency}, for_seconds=seconds)
        self.changed.add(name)
        self.overrides.pop(name, None)
        if concurrency is not None:
            self.overrides[name] = concurrency, math.inf if ticks is None else self.now + ticks

    @rule(data=st.data(), ticks=TICKS)
    def pause(self, data: st.DataObject, ticks: int | None) -> None:
        if name := self.some_name(data, self.keys):
            seconds = None if ticks is None else ticks * TICK
            pauses.pause(self.engine, Pausable.LIMIT, name, for_seconds=seconds)
            self.pauses[name] = math.inf if ticks is None else self.now + ticks

    @precondition(lambda self: self.pauses)
    @rule()
    def resume(self) -> None:
        for name in self.pauses:
            pauses.resume(self.engine, Pausable.LIMIT, name)
        self.pauses.clear()

    # ------------------------------------------------------------------ claims

    @rule(who=WHO)
    def lock(self, who: int) -> None:
        """Begin a claim: search and lock the keys, and keep the transaction open."""
        if self.locked[who] is not None:
            return
        waiting = sorted({job.key for job in self.jobs.values() if job.state == "ready"})
        due = {job.key for job in self.jobs.values() if job.state == "ready" and job.due <= self.now}
        others = self.locked[1 - who] or []
        self.sessions[who].execute("BEGIN")
        keys = found(self.sessions[who])
        assert [(key.limit_key, key.is_locked) for key in keys] == [
            (key, key not in others if key in due else None) for key in waiting
        ]
        self.locked[who] = [key.limit_key for key in keys if key.is_locked]

    @rule(who=WHO, limit=st.sampled_from([1, 2, 5, 50, 50]), prefetched=st.sampled_from([0, 0, 1, 50]),
          lease=st.integers(0, 3), is_kept=st.sampled_from([True, True, True, False]))  # fmt: skip
    def claim(self, who: int, limit: int, prefetched: int, lease: int, is_kept: bool) -> None:
        """End a claim: count, claim, and commit or roll back."""
        keys = self.locked[who]
        if keys is None:
            self.lock(who)
            keys = self.locked[who]
        session, self.locked[who] = self.sessions[who], None
        controls = limit_overrides.controls_of(session, keys or [])
        assert [controls.pause_of(key) is not None for key in keys or []] == [self.is_paused(key) for key in keys or []]
        keys = [key for key in keys or [] if not self.is_paused(key)]
        if keys:
            free_slots = max(0, limit - prefetched)
            expected = self.expected(keys, limit, free_slots)
            claim = limits.claim_keys(
                session,
                LANE,
                [KeyToClaim(key, controls.policy_of(key, LIMITS[name_of(key)]), Cursor()) for key in keys],
                limit=limit,
                free_slots=free_slots,
                worker_id=who,
                lease_seconds=(lease + 0.5) * TICK,
            )
            assert [job.job_id for job in claim.claimed] == [job.id for job in expected]
            if free_slots and any(self.admitted(key, limit) for key in keys):
                assert claim.claimed, "a limit admits a job, and nothing was claimed"
            if is_kept:
                for claimed in claim.claimed:
                    self.start(self.jobs[claimed.job_id], claimed.key, lease)
                for key in self.full.keys() & keys:  # after the clock went back, the bucket fills from now on
                    self.full[key] = min(self.full[key], self.now + LIMITS[name_of(key)].burst)
        session.execute("COMMIT" if is_kept else "ROLLBACK")

    @rule(who=WHO)
    def claim_all(self, who: int) -> None:
        self.claim(who, 50, 0, 2, True)

    def start(self, job: Job, key: ExecutionKey, lease: int) -> None:
        if LIMITS[name_of(job.key)].rate:
            weight = min(job.weight, LIMITS[name_of(job.key)].burst)
            self.full[job.key] = self.now + self.used(job.key) + weight
            self.starts.append((job.key, self.now, weight))
        job.state, job.attempt = "running", job.attempt + 1
        self.open[key.execution_id] = Open(key, job, self.now + lease)

    # ------------------------------------------------------------------ the ends of executions

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        how=st.sampled_from(["succeed", "fail", "release", "snooze", "throttle", "discard"]),
        delay=st.integers(0, 2),
    )
    def end(self, data: st.DataObject, how: str, delay: int) -> None:
        each = data.draw(st.sampled_from([*self.open.values()]), label="execution")
        is_last = each.job.attempt >= each.job.max_attempts
        assert self.call(each, how, delay, is_last=is_last) is TransitionStatus.DONE
        self.close(each)
        if how == "discard":
            del self.jobs[each.job.id]
        elif how == "succeed":
            each.job.state = "succeeded"
        elif how == "fail" and is_last:
            each.job.state = "dead"
        else:
            each.job.attempt -= how != "fail"
            self.make_ready(each.job, None if how == "release" else delay)
        if how == "throttle" and delay:
            self.holds.setdefault(each.job.key, []).append(self.now + delay)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), how=st.sampled_from(["succeed", "fail", "throttle"]))
    def end_again(self, data: st.DataObject, how: str) -> None:
        """A worker that was thought lost ends its execution: that frees no slot and holds no key."""
        each = data.draw(st.sampled_from(self.ended[-3:]), label="execution")
        assert self.call(each, how, 2, is_last=False) is not TransitionStatus.DONE

    def call(self, each: Open, how: str, delay: int, *, is_last: bool) -> TransitionStatus:
        released = [Released(each.key, delay * TICK, "why", how == "throttle")]
        calls: dict[str, Any] = {
            "succeed": lambda: completions.succeed(self.engine, helpers.succeeded(each.key)),
            "discard": lambda: completions.succeed_and_discard(self.engine, [each.key]),
            "fail": lambda: completions.fail(self.engine, helpers.failed(each.key, None if is_last else delay * TICK)),
            "release": lambda: completions.release(self.engine, [Released(each.key)]),
            "snooze": lambda: completions.snooze(self.engine, released),
            "throttle": lambda: completions.snooze(self.engine, released),
        }
        status: TransitionStatus = calls[how]()[each.key.execution_id].status
        return status

    def close(self, each: Open) -> None:
        del self.open[each.key.execution_id]
        self.ended.append(each)

    @rule(delay=st.integers(0, 1))
    def rescue(self, delay: int) -> None:
        lost = [each for each in self.open.values() if each.lease < self.now]
        done = rescues.rescue(
            self.engine,
            lambda expired: None if expired.attempt >= expired.max_attempts else delay * TICK,
            error="its worker was lost",
        )
        assert {expired.execution_id for expired, _ in done} == {each.key.execution_id for each in lost}
        for each in lost:
            self.close(each)
            if each.job.attempt >= each.job.max_attempts:
                each.job.state = "dead"
            else:
                self.make_ready(each.job, delay)

    # ------------------------------------------------------------------ time

    @rule(ticks=st.integers(1, 3))
    def time_goes_on(self, ticks: int) -> None:
        self.now += ticks
        clock.shift_seconds = self.now * TICK

    @rule(ticks=st.integers(1, 5))
    def clock_goes_back(self, ticks: int) -> None:
        self.now -= ticks
        clock.shift_seconds = self.now * TICK
        self.starts.clear()  # a period that the clock repeats has more starts

    @rule()
    def prune_states(self) -> None:
        full = [key for key, at in self.full.items() if at <= self.now - PRUNED_TICKS]
        holds = [(key, at) for key, untils in self.holds.items() for at in untils if at <= self.now - PRUNED_TICKS]
        assert limits.prune_limit_states(self.engine).removed == len(full) + len(holds)
        for key in full:
            del self.full[key]
        for key, at in holds:
            self.holds[key].remove(at)

    # ------------------------------------------------------------------ invariants

    @invariant()
    def tables_match_the_model(self) -> None:
        if hasattr(self, "locked"):
            self.steps += 1
            rows = self.engine.execute(STATES).fetchall()
            assert rows == [(job.id, job.state, job.attempt) for job in self.jobs.values()]

    @invariant()
    def no_key_has_more_open_than_its_limit(self) -> None:
        """Except those that an operator can lower: what runs then goes on."""
        if hasattr(self, "locked"):
            open_weight: Counter[str] = Counter()
            for key, weight in self.engine.execute(OPEN).fetchall():
                if not {key, name_of(key)}.isdisjoint(self.changed):
                    continue
                open_weight[key] += min(weight, slots_of(LIMITS[name_of(key)]) or weight)
            for key, weight in open_weight.items():
                assert weight <= (slots_of(LIMITS[name_of(key)]) or math.inf), key

    @invariant()
    def no_period_has_more_starts_than_its_rate(self) -> None:
        for key, periods, most in (("rate", 2, 3), ("both", 1, 3)):
            for name, begin, _ in getattr(self, "starts", ()):
                if name_of(name) == key:
                    started = sum(
                        weight for each, at, weight in self.starts if each == name and 0 <= at - begin < periods
                    )
                    assert started <= most, name


@pytest.mark.promise("limit-slots")
@pytest.mark.promise("limit-rate")
@pytest.mark.promise("limit-order")
@pytest.mark.promise("limit-admits")
@pytest.mark.timeout(400)
def test_claims_of_limited_jobs_match_model(engine, new_connection, request):
    Limits.engine, Limits.sessions = engine, (new_connection(), new_connection())
    examples = request.config.getoption("--stateful-examples") or settings().max_examples // 8
    run_machine(Limits, settings=settings(max_examples=examples, stateful_step_count=30))
