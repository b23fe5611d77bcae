"""Invariants of what was seen from outside: what callers were told, what the tasks did, what the logs say.

Bodies are compared by the machine's monotonic clock, which all processes of a run share; with what is in the database
they are compared by the numbers of executions and events alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.tools.faults.history import Event, History, Record
from tests.tools.faults.lives import Life, Rules, Violation, closed

ERRORS_A_SECOND: Final = 20
"""How many errors a thread may meet in a second."""


def acknowledgements(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I3: who was told that its act counted, finds it in the database; who was told it did not, does not."""
    wanted = {"succeed": {"succeeded"}, "fail": {"failed", "crashed"}, "snooze": {"snoozed"}}
    wanted |= {"release": {"released"}, "end_cancelled": {"cancelled"}}
    wanted["rescue"] = {"crashed", "released"}  # released: the job of a worker that had stopped before the claim
    ends = {key: event for life in lives.values() for key, event in closed(life).items()}
    told: Counter[int] = Counter()
    for record in history.said("ack"):
        if record["own"] or record["act"] not in wanted:  # an atomic finish commits later, or not: I5 judges it
            continue
        for key, fate in record["fates"].items():
            execution, end = int(key), ends.get(int(key))
            told[execution] += fate == "done"
            outcome = end.new["outcome"] if end and end.new else None
            if fate in ("done", "done before") and outcome not in wanted[record["act"]]:
                job = end.job if end else 0
                yield Violation("I3", job, f"{record['act']} of execution {key} was told {fate}, and it is {outcome}")
    for execution, times in told.items():
        if times > 1:
            yield Violation("I3", ends[execution].job, f"execution {execution} was accepted {times} times")


def claims(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I12: a claim gives what was asked for at the most, and nothing twice."""
    seen: Counter[int] = Counter()
    for record in history.said("claim"):
        seen.update(record["executions"])
        if len(record["executions"]) > record["limit"]:
            yield Violation("I12", 0, f"{len(record['executions'])} claimed, {record['limit']} asked for")
    for execution, times in seen.items():
        if times > 1:
            yield Violation("I12", 0, f"execution {execution} was given to {times} claims")


def enqueues(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I8: what was committed is there, what was rolled back is not; where nobody knows, once or not at all.

    A call that has taken the place of one that waited is there by the change of its arguments. One that was told that
    there is a job with its key already, is not.
    """
    by_tag: dict[str, list[int]] = defaultdict(list)
    for event in history.events:
        if event.place == "job" and event.tag:
            by_tag[event.tag].append(event.job)
    answers = {record["tag"]: record["answer"] for record in history.said("enqueue-returned")}
    for tag in {record["tag"] for record in history.said("enqueue-sent")}:
        found, answer = len(by_tag[tag]), answers.get(tag, "unknown")
        right = found <= 1 if answer == "unknown" else found == (answer == "committed")
        if not right:
            yield Violation("I8", by_tag[tag][0] if found else 0, f"enqueue {tag} {answer}, and there are {found}")
    for tag in history.orders - set(by_tag):
        yield Violation("I8", 0, f"order {tag} was committed without its job")
    for tag in (record["tag"] for record in history.said("enqueue-sent") if record.get("ordered")):
        if by_tag[tag] and tag not in history.orders:
            yield Violation("I8", by_tag[tag][0], f"job of order {tag} was committed without it")


def exits(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I14: a worker that exits with 0 leaves nothing open."""
    workers: dict[int, set[int]] = defaultdict(set)
    for record in history.said("claim"):
        workers[record["parent"]].add(record["worker"])
    for record in history.said("exit"):
        if record["code"] == 0:
            for job in _open_at(lives, workers[record["worker"]], record["last"]):
                yield Violation("I14", job, f"open when worker {record['worker']} had exited with 0")


def _open_at(lives: dict[int, Life], workers: set[int], last: int) -> Iterator[int]:
    """The jobs with an execution of these workers open, after the event with that number."""
    for life in lives.values():
        now_open: set[int | None] = set()
        for event in life.of("execution"):
            row = event.new or event.old or {}
            if event.id > last or row["worker"] not in workers:
                continue
            if event.new is None or event.new["outcome"] is not None:
                now_open.discard(event.execution)
            else:
                now_open.add(event.execution)
        if now_open:
            yield life.job


# ------------------------------------------------------------------------------- what the tasks did


def effects(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I5: an atomic task's effect is there once for each execution that succeeded, and for no other."""
    found = Counter((effect.job, effect.execution, effect.kind) for effect in history.effects)
    for (job, execution, kind), times in found.items():
        if times > 1:
            yield Violation("I5", job, f"{times} {kind} effects of execution {execution}")
        end = closed(lives[job]).get(execution) if job in lives else None
        outcome = end.new["outcome"] if end and end.new else None
        if kind == "atomic" and outcome != "succeeded":
            yield Violation("I5", job, f"an atomic effect of execution {execution}, which is {outcome or 'open'}")
    for execution, (job, wanted) in _done(history).items():
        last = closed(lives[job]).get(execution) if job in lives else None
        counted = last is not None and last.new is not None and last.new["outcome"] == "succeeded"
        if counted and wanted is not None and not found[job, execution, wanted]:
            yield Violation("I5", job, f"execution {execution} succeeded without its {wanted} effect")


EFFECT_OF: Final = {
    **dict.fromkeys(("plain", "coroutine", "once", "keyed", "debounced", "periodic", "limited", "node"), "plain"),
    "chunk": "plain",
    "atomic": "atomic",
    "atomic chunk": "atomic",
}


def _done(history: History) -> dict[int, tuple[int, str | None]]:
    """Executions whose bodies came to their end, with the kind of effect that they must have had."""
    return {
        record["execution"]: (record["job"], EFFECT_OF.get(record["kind"]))
        for record in history.said("end")
        if record["ok"] and record["execution"] is not None
    }


def bodies(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """A body runs for an execution that was claimed, and once; another of its job began only after that was closed."""
    begun: dict[int, list[Record]] = defaultdict(list)
    for record in history.said("start"):
        begun[record["execution"]].append(record)
    for execution, records in begun.items():
        if len(records) > 1:
            yield Violation("I3", records[0]["job"], f"execution {execution} ran {len(records)} times")
        opened = execution in _opened(lives.get(records[0]["job"]))
        if not opened:
            yield Violation("I3", records[0]["job"], f"execution {execution} ran, and nobody claimed it")
    for pair in overlaps(history):
        # By their claims: a frozen process can start a lost execution after its successor has started.
        earlier, later = sorted(pair, key=lambda record: record["execution"])
        life = lives[earlier["job"]]
        end, begin = closed(life).get(earlier["execution"]), _opened(life).get(later["execution"])
        if end is None or begin is None or end.id > begin.id:
            what = f"execution {later['execution']} ran beside {earlier['execution']}, which was not closed before"
            yield Violation("I1", life.job, what)


def _opened(life: Life | None) -> dict[int | None, Event]:
    return {event.execution: event for event in life.of("execution") if event.op == "INSERT"} if life else {}


def overlaps(history: History) -> list[tuple[Record, Record]]:
    """Pairs of bodies of one job that ran at a time, by the monotonic clock. Legal if the earlier had been closed.

    A body without an end ran until its process died, which no journal tells: it is taken to have ended at once.
    """
    ends = {record["execution"]: record["at"] for record in history.said("end")}
    by_job: dict[int, list[Record]] = defaultdict(list)
    for record in history.said("start"):
        by_job[record["job"]].append(record)
    return [
        (earlier, later)
        for starts in by_job.values()
        for earlier, later in pairwise(starts)
        if ends.get(earlier["execution"], earlier["at"]) > later["at"]
    ]


def no_spinning(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I20: a loop that meets errors pauses: at most 20 errors a second, in each thread of each process.

    After a lost connection it tries again at once, and then 7 times in the first second.
    """
    by_source: dict[str, list[float]] = defaultdict(list)
    for complaint in history.complaints:
        by_source[complaint.source].append(complaint.at)
    for source, instants in by_source.items():
        for first, last in zip(instants, instants[ERRORS_A_SECOND:], strict=False):
            if last - first < 1.0:
                yield Violation("I20", 0, f"{ERRORS_A_SECOND + 1} errors of {source} within {last - first:.2f} s")
                break
