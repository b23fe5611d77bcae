"""Invariants of durable steps (I26) and of compensations (I27): what runs again, when a job wakes, what is undone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from tests.tools.faults.history import Event, History, StepChange
from tests.tools.faults.lives import FINISHED, Life, Rules, Violation

ATOMIC: Final = "atomic"
"""With this word the names of atomic steps begin, in the suite's tasks."""
GONE: Final[dict[str, Any]] = {"compensation": False, "undone_by": None, "position": 0.0}
"""What counts for a step that was removed."""
LATE_SECONDS: Final = 5.0
"""How long before its timeout an event must have been sent for sure, so that a wait that times out has lost it: the
transaction of the sender may take a while."""


def stored_steps_stay(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I26: a function whose step is stored does not run in a later attempt, unless the step was undone or removed.

    That an attempt runs beside a later one is judged by the executions: an earlier one may still be running.
    """
    runs: dict[tuple[int, str], set[int]] = defaultdict(set)
    for record in history.said("step"):
        runs[record["job"], record["name"]].add(record["execution"])
    for (job, name), changes in _by_step(history).items():
        stored: StepChange | None = None
        for change in [*changes, None]:
            if stored is not None and (change is None or not _is_stored(change.new)):
                end = float("inf") if change is None else change.id
                later = {e.execution for e in _opened(lives, job) if stored.id < e.id < end}
                for execution in sorted(runs[job, name] & later):
                    what = f"step {name!r} ran again in execution {execution}, and was stored before"
                    yield Violation("I26", job, what)
                stored = None
            if change is not None and _is_stored(change.new):
                stored = stored or change


def effects_of_steps(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I26: an atomic step has its effect as often as it was stored, which is once; another step at least so often."""
    found = Counter((effect.job, effect.kind) for effect in history.effects)
    known = {record["name"] for record in history.said("step")}
    for (job, name), changes in _by_step(history).items():
        stored = sum(_is_stored(change.new) and not _is_stored(change.old) for change in changes)
        effects = found[job, name]
        if name in known and (effects != stored if name.startswith(ATOMIC) else effects < stored):
            yield Violation("I26", job, f"step {name!r} was stored {stored} times, and has {effects} effects")
    stored_names = set(_by_step(history))
    for job, kind in found:
        if kind.startswith(f"{ATOMIC} ") and kind in known and (job, kind) not in stored_names:
            yield Violation("I26", job, f"step {kind!r} has an effect, and was never stored")


def nothing_wakes_early(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I26: a sleep is over when its time has passed, and a wait when its event has come or its time has passed."""
    changes = _by_step(history)
    for record in history.said("woken"):
        job, name = record["job"], record["name"]
        begun = [event.id for event in _opened(lives, job) if event.execution == record["execution"]]
        before = [change.new for change in changes.get((job, name), ()) if begun and change.id < begun[0]]
        wake_at = before[-1]["wake_at"] if before and before[-1] else None  # a retry may sleep again later
        if wake_at is not None and record["wall"] < wake_at - 0.001:
            early = wake_at - record["wall"]
            yield Violation("I26", job, f"{name!r} was over {early:.3f} s before its time")
    for record in history.said("received"):
        if record["payload"] != record["key"]:
            what = f"waited for {record['key']!r} and received {record['payload']!r}"
            yield Violation("I26", record["job"], what)


def no_event_is_lost(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I26: a wait times out only if no event of its key had come. At the end, nothing waits for an event that came."""
    sent: dict[tuple[str, str], float] = {}
    for each in history.sent:
        sent.setdefault((each.name, each.key), each.at)
    for change in history.steps:
        row = change.new
        if row is None or row["kind"] != "event" or not row["finished"] or row["event"] is not None:
            continue
        at = sent.get((row["event_name"], row["event_key"]), float("inf"))
        if at + LATE_SECONDS < (row["wake_at"] or change.at):
            yield Violation("I26", change.job, f"{change.name!r} timed out {change.at - at:.1f} s after its event")


# ------------------------------------------------------------------------------- compensations


def undone_in_order(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I27: each compensation is added once, with its step, after those of the later steps have succeeded."""
    born = {event.job: event for event in history.events if event.place == "job" and event.op == "INSERT"}
    states: dict[int, str] = {}
    steps: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    changes: list[Event | StepChange] = sorted([*history.events, *history.steps], key=lambda each: each.id)
    for change in changes:
        if isinstance(change, StepChange):
            yield from _changed(change, steps[change.job], states, born)
            steps[change.job][change.name] = change.new or GONE
        elif change.place == "job":
            states[change.job] = change.new["state"] if change.new else "gone"
    if rules.finished:
        yield from _not_undone(history, steps)


def undone_once(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I27: each job that undoes a step belongs to one step, and each step has one."""
    noted = Counter(change.new["undone_by"] for change in history.steps if change.new and _is_undone_now(change))
    for event in history.events:
        if (
            event.place == "job"
            and event.op == "INSERT"
            and event.new
            and event.new.get("undoes")
            and noted[event.job] != 1
        ):
            what = f"job {event.job} undoes it, and {noted[event.job]} steps say so"
            yield Violation("I27", int(event.new["undoes"]), what)


def _is_undone_now(change: StepChange) -> bool:
    undo = (change.new or {}).get("undone_by")
    return undo is not None and (change.old or {}).get("undone_by") != undo


def _changed(
    change: StepChange, steps: dict[str, dict[str, Any]], states: dict[int, str], born: dict[int, Event]
) -> Iterator[Violation]:
    """Yield what is wrong with a change of a step."""
    if _is_undone_now(change):
        yield from _wrong_turn(change, steps, states, born)
    was_pending = change.old is not None and change.old["compensation"]
    if change.new is None and was_pending and states.get(change.job) in ("dead", "cancelled", "gone"):
        yield Violation("I27", change.job, f"step {change.name!r} was removed before it was undone")


def _wrong_turn(
    change: StepChange, steps: dict[str, dict[str, Any]], states: dict[int, str], born: dict[int, Event]
) -> Iterator[Violation]:
    """Yield what is wrong with a compensation that is added now."""
    row = change.new or GONE
    undo = row["undone_by"]
    if states.get(change.job) not in ("dead", "cancelled"):
        yield Violation("I27", change.job, f"{change.name!r} is undone, and the job is {states.get(change.job)}")
    if undo not in born or born[undo].xid != change.xid or str(change.job) != (born[undo].new or {})["undoes"]:
        yield Violation("I27", change.job, f"job {undo}, which undoes {change.name!r}, was not added with that")
    for name, other in steps.items():
        if name != change.name and other["compensation"] and other["position"] > row["position"]:
            yield Violation("I27", change.job, f"{change.name!r} is undone before {name!r}")
        later = other["undone_by"]
        if name != change.name and later is not None and states.get(later) not in ("succeeded", "gone"):
            yield Violation("I27", change.job, f"{change.name!r} is undone while job {later} is {states.get(later)}")


def _not_undone(history: History, steps: dict[int, dict[str, dict[str, Any]]]) -> Iterator[Violation]:
    for job, rows in steps.items():
        for name, row in rows.items():
            if row["compensation"] and history.jobs.get(job, {}).get("state") in FINISHED:
                yield Violation("I27", job, f"{name!r} is neither undone nor forgotten at the end")


def _by_step(history: History) -> dict[tuple[int, str], list[StepChange]]:
    found: dict[tuple[int, str], list[StepChange]] = defaultdict(list)
    for change in history.steps:
        found[change.job, change.name].append(change)
    return found


def _is_stored(row: dict[str, Any] | None) -> bool:
    """Whether a later attempt has to use a step as it is stored."""
    return row is not None and row["kind"] == "step" and row["finished"] and row["undone_by"] is None


def _opened(lives: dict[int, Life], job: int) -> list[Event]:
    return [event for event in lives[job].of("execution") if event.op == "INSERT"] if job in lives else []


def figures(history: History) -> dict[str, Any]:
    """Return how many steps were stored, jobs suspended, events received and steps undone."""
    kinds: Counter[str] = Counter()
    for change in history.steps:
        if change.new is None:
            continue
        kinds["stored"] += _is_stored(change.new) and not _is_stored(change.old)
        kinds["sleeps"] += change.old is None and change.new["kind"] == "sleep"
        is_over = change.new["kind"] == "event" and change.new["finished"]
        kinds["received"] += is_over and change.new["event"] is not None
        kinds["timed_out"] += is_over and change.new["event"] is None
        kinds["undone"] += change.new["undone_by"] is not None and not (change.old or {}).get("undone_by")
    return {"steps": dict(kinds), "functions": len(history.said("step"))}
