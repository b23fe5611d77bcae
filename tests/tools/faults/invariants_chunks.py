"""The invariant of chunks (I23): which jobs one call of a function gets, and that an atomic chunk is all or nothing.

The other invariants hold for each job of a chunk by itself: one open execution, one outcome, its own attempts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.tools.faults.history import Event, History, Record
from tests.tools.faults.limits import CHUNK
from tests.tools.faults.lives import Life, Rules, Violation

ATOMIC = "atomic chunk"


def calls(history: History) -> dict[str, list[Record]]:
    """Return the begun executions of each call of a function with a chunk."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in history.said("start"):
        if "call" in record:
            found[record["call"]].append(record)
    return found


def jobs_of_a_call(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I23: a call gets at most `chunk` jobs of one task and lane, which one statement has claimed.

    A job that has crashed a process is alone.
    """
    born = {event.execution: event for event in history.events if event.place == "execution" and event.op == "INSERT"}
    claims = {
        (event.xid, event.job): event for event in history.events if event.place == "job" and event.op == "UPDATE"
    }
    for records in calls(history).values():
        job, size = records[0]["job"], len(records)
        if size > CHUNK:
            yield Violation("I23", job, f"{size} jobs in a call, {CHUNK} may")
        opened = [born[record["execution"]] for record in records if record["execution"] in born]
        rows = [claim.new for event in opened if (claim := claims.get((event.xid, event.job))) and claim.new]
        if len({_statement(event) for event in opened}) > 1:
            yield Violation("I23", job, f"{size} jobs in a call, which were not claimed together")
        if len({(row["task"], row["queue"], row["priority"]) for row in rows}) > 1:
            yield Violation("I23", job, f"{size} jobs in a call, not all of one task and lane")
        if size > 1 and any(row["crashes"] for row in rows):
            yield Violation("I23", job, f"{size} jobs in a call, and one of them has crashed a process before")


def all_or_nothing(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I23: of an atomic chunk, all jobs that its function has not failed succeed with their effects, or none."""
    outcomes = {
        event.execution: event.new["outcome"]
        for event in history.events
        if event.place == "execution" and event.new and event.new["outcome"]
    }
    effects = Counter(effect.execution for effect in history.effects)
    for records in calls(history).values():
        wanted = [record["execution"] for record in records if record["kind"] == ATOMIC and not record["fails"]]
        succeeded = sum(outcomes.get(execution) == "succeeded" for execution in wanted)
        written = sum(effects[execution] for execution in wanted)
        if not succeeded == written == (len(wanted) if written or succeeded else 0):
            what = f"{succeeded} of {len(wanted)} jobs of an atomic chunk succeeded, with {written} effects"
            yield Violation("I23", records[0]["job"], what)


def claimed_together(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I23: no statement claims more jobs than a chunk has. Several statements can share a transaction."""
    keys = {event.job: event.new["limit_key"] for event in history.events if event.place == "job" and event.new}
    found: dict[tuple[str, float, str], list[Event]] = defaultdict(list)
    for event in history.events:
        if event.place == "execution" and event.op == "INSERT" and (key := keys.get(event.job) or "").startswith("+"):
            found[*_statement(event), key].append(event)
    for events in found.values():
        if len(events) > CHUNK:
            yield Violation("I23", events[0].job, f"{len(events)} jobs claimed for a chunk, {CHUNK} may")


def _statement(event: Event) -> tuple[str, float]:
    """Return what the executions that one statement has opened have in common."""
    return event.xid, (event.new or {})["claimed_at"]
