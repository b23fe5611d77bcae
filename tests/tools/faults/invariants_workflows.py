"""Invariants of workflows (I24) and of batches (I25): what waits, what is cancelled, and which callbacks there are.

The order is that of the events' numbers. A statement that decides from rows may not see a transaction that commits at
the same moment. So a state that another transaction has changed less than `CONCURRENT_SECONDS` before counts as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from tests.tools.faults.history import BatchChange, Edge, Event, History
from tests.tools.faults.lives import FINISHED, Life, Rules, Violation, operated

CONCURRENT_SECONDS: Final = 10.0
"""How long before a decision the transaction of an operator may have begun that the decision did not see: it waits for
locked jobs for 5 s at most, and a fault may freeze the session that decides."""
FAILED: Final = frozenset({"dead", "cancelled"})
NEEDED_BY_RETRY: Final = {"succeeded": FAILED, "cancelled": frozenset({"dead"})}
"""By the state of a node: the states of other nodes whose retry would need its result, or restore it."""
GONE: Final = "gone"
ENDS: Final = ("failure", "complete", "success")


class _Seen(NamedTuple):
    """The last change of a job's state."""

    at: float
    xid: str
    state: str
    before: str


class States:
    """The states of jobs up to an event of the history."""

    def __init__(self, events: Collection[Event]) -> None:
        self._seen: dict[int, _Seen] = {}
        self.removed: dict[int, str] = {}
        """The states in which jobs were removed."""
        self._within: dict[tuple[str, int], set[str]] = defaultdict(set)
        """What each transaction makes of a job. The triggers of one statement fire in any order of its rows."""
        for event in events:
            if event.place == "job":
                self._within[event.xid, event.job].add(_state(event.new))

    def apply(self, event: Event) -> None:
        """Go on by one event of a job."""
        before, after = _state(event.old), _state(event.new)
        if after == GONE:
            self.removed[event.job] = before
        if before != after:
            self._seen[event.job] = _Seen(event.at, event.xid, after, before)

    def possible(self, job: int, at: float, xid: str) -> set[str]:
        """Return which states of a job a statement of that time and transaction may have seen."""
        seen = self._seen.get(job)
        found = {GONE if seen is None else seen.state} | self._within.get((xid, job), set())
        if seen is not None and seen.xid != xid and at - seen.at < CONCURRENT_SECONDS and seen.before != GONE:
            found.add(seen.before)
        return found

    def counted(self, job: int, at: float, xid: str) -> set[str]:
        """As `possible()`, but a job that was removed counts with its last state, as in the progress of a batch."""
        return {self.removed.get(job, GONE) if state == GONE else state for state in self.possible(job, at, xid)}


def _state(row: dict[str, Any] | None) -> str:
    return GONE if row is None else row["state"]


def edges_of(history: History) -> dict[int, list[Edge]]:
    """Return the edges by their dependents."""
    found: dict[int, list[Edge]] = defaultdict(list)
    for edge in history.edges:
        found[edge.job].append(edge)
    return found


def restored(history: History) -> set[tuple[str, int]]:
    """Return the transactions and jobs in which a job waits again, because one that it needs was retried."""
    needs = edges_of(history)
    changes = [event for event in history.events if event.place == "job" and event.old and event.new]
    unended = {
        (event.xid, event.job)
        for event in changes
        if _state(event.old) in FINISHED and _state(event.new) not in FINISHED
    }
    return {
        (event.xid, event.job)
        for event in changes
        if _state(event.old) in {"cancelled", "ready"}
        and _state(event.new) == "waiting"
        and any((event.xid, edge.needs) in unended for edge in needs[event.job])
    }


# ------------------------------------------------------------------------------- workflows


def advanced_as_asked(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I24: a job becomes ready when all that it needs has ended, and is cancelled if its policy says so, or by hand."""
    needs, states = edges_of(history), States(history.events)
    by_hand = operated(history, "cancel", "sql")
    for event in history.events:
        if event.place != "job":
            continue
        if event.old and event.new and event.old["state"] == "waiting" and event.new["state"] != "waiting":
            edges = [(edge, states.possible(edge.needs, event.at, event.xid)) for edge in needs[event.job]]
            if event.new["state"] == "ready":
                for edge, possible in edges:
                    if not any(_lets_start(edge.policy, state) for state in possible):
                        what = f"became ready, and job {edge.needs}, which it needs, was {'/'.join(sorted(possible))}"
                        yield Violation("I24", event.job, what)
            elif event.job not in by_hand and not any(_cancels(edge.policy, one) for edge, of in edges for one in of):
                yield Violation("I24", event.job, "was cancelled, though nothing that it needs had failed")
        states.apply(event)


def _lets_start(policy: str, state: str) -> bool:
    return state == "succeeded" or (policy == "ignore" and state in {*FAILED, GONE})


def _cancels(policy: str, state: str) -> bool:
    return (policy == "cancel" and state in FAILED) or (policy != "ignore" and state == GONE)


def results_passed_on(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I24: a job gets the results of the jobs that it needs: their ids, or None for one that has failed."""
    needs = edges_of(history)
    for record in history.said("start"):
        if record.get("given") is None:
            continue
        policies = {edge.needs: edge.policy for edge in needs[record["job"]]}
        given = set(record["given"])
        if given - {None} - set(policies) or (None in given and "ignore" not in policies.values()):
            what = f"got the results {record['given']}, and needs {sorted(policies)}"
            yield Violation("I24", record["job"], what)


def kept_while_needed(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I24: no node is removed while a job of its workflow is unfinished, or while a retry of one needs it."""
    touched = operated(history, "delete", "sql")
    states, members = States(history.events), defaultdict[Any, set[int]](set)
    for event in history.events:
        if event.place != "job":
            continue
        states.apply(event)
        row = event.new or event.old or {}
        if not row.get("in_graph"):
            continue
        if event.new is not None:
            members[row["batch"]].add(event.job)
            continue
        members[row["batch"]].discard(event.job)
        keeping = {"waiting", "ready", "running"} | NEEDED_BY_RETRY.get(row["state"], set())
        for other in members[row["batch"]] if event.job not in touched else ():
            if states.possible(other, event.at, event.xid) <= keeping:
                yield Violation("I24", event.job, f"was removed while job {other} of its workflow needed it")


# ------------------------------------------------------------------------------- batches


def callbacks_once(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I25: each end of a batch is recorded once, and its callback added once, in the same transaction."""
    born: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        if event.place == "job" and event.op == "INSERT" and event.tag:
            born[event.tag].append(event)
    for changes in _by_batch(history).values():
        for name in ENDS:
            set_by = [change for before, change in _pairs(changes) if change.new[name] and not (before or {}).get(name)]
            if len(set_by) > 1:
                yield Violation("I25", 0, f"the {name} of batch {set_by[0].batch} was recorded {len(set_by)} times")
            added = born[f"{name} of {changes[0].new['description']}"]
            wanted = len(set_by) if name in changes[-1].new["calls"] else 0
            if len(added) != wanted:
                what = f"{len(added)} callbacks for the {name} of batch {changes[0].batch}, {wanted} expected"
                yield Violation("I25", added[0].job if added else 0, what)
            elif wanted and added[0].xid != set_by[0].xid:
                yield Violation("I25", added[0].job, f"was not added with the {name} of batch {changes[0].batch}")


def ended_when_over(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I25: a batch completes when it is closed and nothing of it is unfinished, and succeeds if nothing has failed."""
    states, members = States(history.events), defaultdict[int, set[int]](set)
    latest: dict[int, dict[str, Any]] = {}
    nested: dict[int, set[int]] = defaultdict(set)
    for row in history.batches:
        nested[row.new["parent"] or 0].add(row.batch)
    jobs_events = [event for event in history.events if event.place == "job"]
    changes: list[Event | BatchChange] = sorted([*jobs_events, *history.batches], key=lambda each: each.id)
    for change in changes:
        if isinstance(change, Event):
            states.apply(change)
            members[(change.new or {}).get("batch") or 0].add(change.job)
            continue
        before, latest[change.batch] = latest.get(change.batch, {}), change.new
        for name in [name for name in ENDS if change.new[name] and not before.get(name)]:
            jobs = {job: states.counted(job, change.at, change.xid) for job in members[change.batch]}
            parts = [latest[part] for part in nested[change.batch] if part in latest]
            yield from _not_over(name, change, jobs, parts)
    if rules.finished:
        yield from _left_open(latest)


def _not_over(
    name: str, change: BatchChange, jobs: dict[int, set[str]], parts: list[dict[str, Any]]
) -> Iterator[Violation]:
    """Yield what speaks against an end of a batch."""
    if name == "failure":
        has_failed = any(FAILED & states for states in jobs.values())
        if not has_failed and all(part["success"] or not part["complete"] for part in parts):
            yield Violation("I25", 0, f"batch {change.batch} failed, and none of its jobs did")
        return
    if not change.new["closed"] or not all(part["complete"] for part in parts):
        yield Violation("I25", 0, f"the {name} of batch {change.batch} was recorded while it was open")
    wanted = FINISHED if name == "complete" else {"succeeded"}
    for job, states in jobs.items():
        if not states & wanted:
            what = f"was {'/'.join(sorted(states))} at the {name} of its batch {change.batch}"
            yield Violation("I25", job, what)


def _left_open(latest: dict[int, dict[str, Any]]) -> Iterator[Violation]:
    """Yield the batches that should have ended by now."""
    for batch, row in latest.items():
        if row["closed"] and not row["complete"]:
            yield Violation("I25", 0, f"batch {batch} is not complete at the end")
        if row["complete"] and not row["failure"] and not row["success"]:
            yield Violation("I25", 0, f"batch {batch} has neither succeeded nor failed")


def _by_batch(history: History) -> dict[int, list[BatchChange]]:
    found: dict[int, list[BatchChange]] = defaultdict(list)
    for change in history.batches:
        found[change.batch].append(change)
    return found


def _pairs(changes: list[BatchChange]) -> Iterator[tuple[dict[str, Any] | None, BatchChange]]:
    """Yield each change with what the row said before."""
    yield from zip([None, *(change.new for change in changes)], changes, strict=False)


# ------------------------------------------------------------------------------- figures


def figures(history: History) -> dict[str, Any]:
    """Return how many jobs waited, became ready and were cancelled, how long after the last end, and the callbacks."""
    needs, ends = edges_of(history), dict[int, float]()
    advanced: Counter[str] = Counter()
    waits = []
    for event in history.events:
        if event.place != "job" or event.new is None:
            continue
        if event.old and event.old["state"] == "waiting" and event.new["state"] != "waiting":
            advanced[event.new["state"]] += 1
            if event.new["state"] == "ready":
                waits.append(event.at - max((ends.get(edge.needs, 0.0) for edge in needs[event.job]), default=event.at))
        if event.new["state"] in FINISHED and _state(event.old) not in FINISHED:
            ends[event.job] = event.at
    added = Counter(
        name
        for changes in _by_batch(history).values()
        for name in ENDS
        if changes[-1].new[name] and name in changes[-1].new["calls"]
    )
    return {
        "nodes": len(needs),
        "advanced": dict(advanced),
        "restored": len(restored(history)),
        "longest_advance_seconds": round(max(waits, default=0.0), 1),
        "batches": len(_by_batch(history)),
        "callbacks": dict(added),
    }
