"""Invariants of blame (I28): what hits everything is charged to no job.

An outage, a commit that hangs or a changed table concerns all jobs. None of them may end or lose an attempt because of
it: a job is dead only after attempts of its own have failed, and an attempt crashes only if its process was lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.tools.faults.history import Event, History, Record
from tests.tools.faults.lives import FINISHED, Life, Rules, Violation, closed, operated

FROZEN: Final = "frozen"
"""The event by which a fault says that it stops processes for a while, which may cost them their leases."""
FROZEN_SECONDS: Final = 30.0
"""How long before a crash a process may have been frozen for that to explain the crash."""
ALIVE_SECONDS: Final = 1.0
"""A process that claims or calls a job so long after its crash was recorded has not crashed."""


def no_death_without_failure(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I28: a job becomes dead only after an attempt of its own has failed or crashed; a retry begins anew."""
    if not rules.blames_rightly:
        return
    touched = operated(history, "sql")
    for life in lives.values():
        has_failed = life.job in touched
        for transaction in life.transactions():
            has_failed |= any(_is_failure(event) for event in transaction)
            for before, after in _states(transaction):
                if before in FINISHED and after not in FINISHED:
                    has_failed = life.job in touched
                elif after == "dead" and not has_failed:
                    what = f"{before} became dead, and no attempt of it had failed"
                    yield Violation("I28", life.job, what + _fault_before(history, transaction[0]))


def _states(transaction: list[Event]) -> list[tuple[str, str]]:
    """Return the changes of the job's state in a transaction."""
    rows = [(event.old, event.new) for event in transaction if event.place == "job"]
    return [(old["state"], new["state"]) for old, new in rows if old and new and old["state"] != new["state"]]


def _is_failure(event: Event) -> bool:
    """Return whether an execution ended badly. One that was inserted with its outcome records a job that never ran."""
    if event.place != "execution" or event.op == "INSERT" or event.new is None:
        return False
    outcome = event.new["outcome"]
    return outcome == "failed" or (outcome == "crashed" and bool(event.new["started"]))


def no_crash_of_the_living(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I28: an attempt crashes only if its process has ended, or was frozen for longer than it could keep its lease."""
    if not rules.blames_rightly:
        return
    called: dict[int, int] = {record["execution"]: record["pid"] for record in history.said("start")}
    of_worker: dict[int, Record] = {record["worker"]: record for record in history.said("claim")}
    seen = _last_seen(history)
    frozen = history.said(FROZEN)
    for life in lives.values():
        for execution, event in closed(life).items():
            claim = of_worker.get(event.new["worker"]) if event.new and event.new["started"] else None
            if claim is None or event.new is None or event.new["outcome"] != "crashed":
                continue
            pids = [called.get(execution) or claim["pid"], claim["pid"], claim["parent"]]
            is_alive = seen[claim["worker"], pids[0]] > event.at + ALIVE_SECONDS
            if is_alive and not any(_explains(record, event, pids) for record in frozen):
                what = f"execution {execution} crashed, and its process {pids[0]} lived on"
                yield Violation("I28", life.job, what + _fault_before(history, event))


def _last_seen(history: History) -> dict[tuple[int, int], float]:
    """Return when each process of each worker last claimed or called a job. Another worker may get its number later."""
    worker_of: dict[int, int] = {each: one["worker"] for one in history.said("claim") for each in one["executions"]}
    seen: dict[tuple[int, int], float] = defaultdict(float)
    for record in history.said("claim", "start"):
        worker = record["worker"] if record["event"] == "claim" else worker_of.get(record["execution"])
        if worker is not None:
            seen[worker, record["pid"]] = max(seen[worker, record["pid"]], record["wall"])
    return seen


def _explains(frozen: Record, crash: Event, pids: list[int]) -> bool:
    """Return whether processes were frozen shortly before a crash that was recorded for one of them."""
    return 0 < crash.at - frozen["wall"] < FROZEN_SECONDS and not set(frozen["pids"]).isdisjoint(pids)


def _fault_before(history: History, event: Event) -> str:
    """Describe the latest fault before an event, because it may be the cause."""
    before = [record["name"] for record in history.said("fault") if record["wall"] <= event.at]
    return f" (after the fault '{before[-1]}')" if before else ""
