"""The protocols of workflows and batches, in which sessions look for each other's commits.

Each function returns the sessions of one protocol for `sessions.explore()`. `broken` is an error to put into it, and
`BROKEN` lists them all with what then goes wrong. Without an error, the protocols are those of `django_pgqueue`.
`step_looks` has the protocols of durable steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.tools.model.sessions import Program, Protocol, Step, Turn

Seen = Mapping[str, Any]
Log = tuple[str, ...]
ENDED: Final = {"succeeded", "dead"}
EARLY_LOOK: Final = "look before the commit"
ONE_STATEMENT: Final = "lock and decision in one statement"
NO_LOCK: Final = "no lock"
NO_FENCE: Final = "no fence"
FORGOTTEN: Final = "a locked dependent is forgotten"
NO_RETRY_LOCK: Final = "the retry locks no dependent"
NO_JOIN: Final = "a job is added without the lock"


def commit(turn: Turn) -> None:
    turn.commit()


def end(row: str, state: str) -> Step:
    """Return the step of a worker that writes the end of a job. A broken one looks in the same statement."""

    def write_end(turn: Turn) -> None:
        turn.write(row, state)
        turn.snapshot("find")

    return write_end


# ------------------------------------------------------------------ the dependents of ended jobs


def decided(seen: Seen) -> str:
    """Return the state of the dependent X, which needs A and B and is cancelled if one is dead."""
    states = {state for row, state in seen.items() if row in "AB"}
    if "dead" in states:
        return "cancelled"
    return "ready" if states <= ENDED else "waiting"


def find_dependents(turn: Turn) -> None:
    if turn.broken != EARLY_LOOK:
        turn.snapshot("find")
    if turn.seen("find")["X"] != "waiting" or decided(turn.seen("find")) == "waiting":
        turn.stop()


def lock_waiting(turn: Turn) -> None:
    if turn.broken == NO_LOCK:
        return
    if not turn.try_lock("X"):
        turn.stop() if turn.broken == FORGOTTEN else turn.again()
    elif turn.now("X") != "waiting":
        turn.stop()


def begin_advance(turn: Turn) -> None:
    turn.snapshot("advance")


def advance(turn: Turn) -> None:
    if (state := decided(turn.seen("advance"))) != "waiting":
        turn.write("X", state, f"X is {state}")


def advancing(broken: str) -> Program:
    """Return the steps that follow the end of a dependency, and those of the sweep."""
    order = [begin_advance, lock_waiting] if broken == ONE_STATEMENT else [lock_waiting, begin_advance]
    return [find_dependents, *order, advance, commit]


def hold_dependent(turn: Turn) -> None:
    """Lock X without changing it, as an operator who moves it does."""
    if not turn.try_lock("X"):
        turn.stop()


def two_ends(broken: str = "") -> Protocol:
    """Two workers end the two dependencies of X at the same moment. An operator locks X for a while."""

    def lost(rows: Seen, log: Log) -> str:
        return "X waits for ever" if rows["X"] == "waiting" and decided(rows) != "waiting" else ""

    def wrong(rows: Seen, log: Log) -> str:
        if len(log) > 1:
            return "X is advanced twice"
        return "X is advanced too early" if log and decided(rows) == "waiting" else ""

    programs: list[Program] = [[end(job, "succeeded"), commit, *advancing(broken)] for job in "AB"]
    programs.append([hold_dependent, commit])
    rows = {"A": "running", "B": "running", "X": "waiting"}
    return Protocol(rows, programs, advancing(""), wrong, lost, broken)


def retry(turn: Turn) -> None:
    turn.write("A", "ready")


def find_restorable(turn: Turn) -> None:
    turn.snapshot("restorable")


def lock_restorable(turn: Turn) -> None:
    if turn.broken != NO_RETRY_LOCK and not turn.try_lock("X"):
        turn.again(1)


def restore(turn: Turn) -> None:
    turn.snapshot("restore")
    if turn.seen("restore")["X"] == "cancelled":
        turn.write("X", "waiting")


def retry_and_advance(broken: str = "") -> Protocol:
    """A worker and a sweep cancel X because of the dead A, while an operator retries A."""

    def wrong(rows: Seen, log: Log) -> str:
        is_wrong = (rows["A"], rows["X"]) == ("ready", "cancelled")
        return "X is cancelled because of a job that is ready" if is_wrong else ""

    def lost(rows: Seen, log: Log) -> str:
        return "X waits for a dead job" if (rows["A"], rows["X"]) == ("dead", "waiting") else ""

    programs: list[Program] = [
        advancing(broken),
        advancing(broken),
        [retry, find_restorable, lock_restorable, restore, commit],
    ]
    rows = {"A": "dead", "B": "succeeded", "X": "waiting"}
    return Protocol(rows, programs, advancing(""), wrong, lost, broken)


# ------------------------------------------------------------------ batches


def is_over(seen: Seen) -> bool:
    return all(state in ENDED for row, state in seen.items() if row.startswith("job"))


def find_batch(turn: Turn) -> None:
    if turn.broken != EARLY_LOOK:
        turn.snapshot("find")
    if not is_over(turn.seen("find")) or turn.seen("find")["batch"] == "complete":
        turn.stop()


def begin_end(turn: Turn) -> None:
    turn.snapshot("end")


def lock_batch(turn: Turn) -> None:
    if not turn.try_lock("batch"):
        turn.again(1)


def end_batch(turn: Turn) -> None:
    if turn.broken != ONE_STATEMENT:
        turn.snapshot("end")
    is_complete = turn.broken != NO_FENCE and turn.now("batch") == "complete"
    if is_over(turn.seen("end")) and not is_complete:
        turn.write("batch", "complete", "callback")


SETTLING: Final[Program] = [find_batch, begin_end, lock_batch, end_batch, commit]
"""What follows the end of a job of a batch, and what the sweep does."""


def join_batch(turn: Turn) -> None:
    if turn.broken != NO_JOIN:
        turn.lock("batch")
    if turn.now("batch") == "complete":
        turn.stop()


def add_job(turn: Turn) -> None:
    turn.write("job 3", "ready")


def batch_ends(broken: str = "", others: tuple[Program, ...] = ()) -> Protocol:
    """Two workers end the last two jobs of a batch."""

    def wrong(rows: Seen, log: Log) -> str:
        if len(log) > 1:
            return "the callback is added twice"
        return "the batch is complete with an unfinished job" if log and not is_over(rows) else ""

    def lost(rows: Seen, log: Log) -> str:
        return "the callback is never added" if is_over(rows) and not log else ""

    workers: list[Program] = [[end(job, "succeeded"), commit, *SETTLING] for job in ("job 1", "job 2")]
    rows = {"job 1": "running", "job 2": "running", "batch": "open"}
    return Protocol(rows, [*workers, *others], SETTLING, wrong, lost, broken)


def batch_ends_beside_addition(broken: str = "") -> Protocol:
    """Two workers end the last two jobs of a batch, while an application adds a third job to it."""
    return batch_ends(broken, ([join_batch, add_job, commit],))


BROKEN: Final[dict[Callable[[str], Protocol], dict[str, str]]] = {
    two_ends: {
        EARLY_LOOK: "X waits for ever, without a crash",
        NO_LOCK: "X is advanced twice",
        FORGOTTEN: "X waits for ever, without a crash",
    },
    retry_and_advance: dict.fromkeys(
        (ONE_STATEMENT, NO_LOCK, NO_RETRY_LOCK), "X is cancelled because of a job that is ready"
    ),
    batch_ends: {EARLY_LOOK: "the callback is never added, without a crash", NO_FENCE: "the callback is added twice"},
    batch_ends_beside_addition: dict.fromkeys((ONE_STATEMENT, NO_JOIN), "the batch is complete with an unfinished job"),
}
"""The error that each broken protocol has to show."""
