"""The protocols in which sessions look for each other's commits: dependents, batches, events, compensations, replacing.

Each function returns the sessions of one protocol for `sessions.explore()`. `broken` names an error to put into it, and
`BROKEN` lists them all with what then goes wrong. Without an error, the protocols are those of `django_pgqueue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.tools.model.sessions import Program, Protocol, Turn

Seen = Mapping[str, Any]
ENDED: Final = {"succeeded", "dead"}


def commit(turn: Turn) -> None:
    turn.commit()


def hold_for_a_while(row: str) -> Program:
    """Return a session that locks a row without changing it, as an operator who moves a job does."""

    def hold(turn: Turn) -> None:
        if not turn.try_lock(row):
            turn.stop()

    return [hold, commit]


# ------------------------------------------------------------------ the dependents of ended jobs


def decided(seen: Seen) -> str:
    """Return the state of the dependent X, which needs A and B and is cancelled if one is dead."""
    states = {state for row, state in seen.items() if row in "AB"}
    if "dead" in states:
        return "cancelled"
    return "ready" if states <= ENDED else "waiting"


def advancing(broken: str) -> Program:
    """FIND_DEPENDENTS, LOCK_WAITING, ADVANCE: what follows the end of a dependency, and what the sweep does."""

    def find(turn: Turn) -> None:
        if broken != "look before the commit":
            turn.snapshot("find")
        if turn.seen("find")["X"] != "waiting" or decided(turn.seen("find")) == "waiting":
            turn.stop()

    def lock(turn: Turn) -> None:
        if broken == "no lock":
            return
        if not turn.try_lock("X"):
            turn.stop() if broken == "a locked dependent is forgotten" else turn.again()
        elif turn.now("X") != "waiting":
            turn.stop()

    def begin_statement(turn: Turn) -> None:
        turn.snapshot("decide")

    def write(turn: Turn) -> None:
        if (state := decided(turn.seen("decide"))) != "waiting":
            turn.write("X", state, f"X is {state}")

    if broken == "lock and decision in one statement":
        return [find, begin_statement, lock, write, commit]
    return [find, lock, begin_statement, write, commit]


def ending(job: str, state: str, broken: str) -> Program:
    """A worker that writes the end of a dependency, and then advances the dependents."""

    def end(turn: Turn) -> None:
        turn.write(job, state)
        turn.snapshot("find")

    return [end, commit, *advancing(broken)]


def two_ends(broken: str = "") -> Protocol:
    """Two workers end the two dependencies of X at the same moment. An operator locks X for a while."""

    def lost(rows: Seen, log: tuple[str, ...]) -> str:
        return "X waits for ever" if rows["X"] == "waiting" and decided(rows) != "waiting" else ""

    def wrong(rows: Seen, log: tuple[str, ...]) -> str:
        if len(log) > 1:
            return "X is advanced twice"
        return "X is advanced too early" if log and decided(rows) == "waiting" else ""

    programs = [ending("A", "succeeded", broken), ending("B", "succeeded", broken), hold_for_a_while("X")]
    return Protocol({"A": "running", "B": "running", "X": "waiting"}, programs, advancing(""), wrong, lost)


def retry_and_advance(broken: str = "") -> Protocol:
    """A worker and a sweep cancel X because of the dead A, while an operator retries A."""

    def retry(turn: Turn) -> None:
        turn.write("A", "ready")

    def find(turn: Turn) -> None:
        turn.snapshot()

    def lock(turn: Turn) -> None:
        if broken != "the retry locks no dependent" and not turn.try_lock("X"):
            turn.again(1)

    def restore(turn: Turn) -> None:
        turn.snapshot()
        if turn.seen()["X"] == "cancelled":
            turn.write("X", "waiting")

    def wrong(rows: Seen, log: tuple[str, ...]) -> str:
        return "X is cancelled because of a job that is ready" if (rows["A"], rows["X"]) == ("ready", "cancelled") else ""

    def lost(rows: Seen, log: tuple[str, ...]) -> str:
        return "X waits for a dead job" if (rows["A"], rows["X"]) == ("dead", "waiting") else ""

    programs = [advancing(broken), advancing(broken), [retry, find, lock, restore, commit]]
    rows = {"A": "dead", "B": "succeeded", "X": "waiting"}
    return Protocol(rows, programs, advancing(""), wrong, lost)


# ------------------------------------------------------------------ batches


def settling(broken: str) -> Program:
    """BATCHES_TO_END, LOCK_BATCHES, END_BATCHES: what follows the end of a job, and what the sweep does."""

    def is_over(seen: Seen) -> bool:
        return all(state in ENDED for row, state in seen.items() if row.startswith("job"))

    def find(turn: Turn) -> None:
        if broken != "look before the commit":
            turn.snapshot("find")
        if not is_over(turn.seen("find")) or turn.seen("find")["batch"] == "complete":
            turn.stop()

    def begin_statement(turn: Turn) -> None:
        turn.snapshot("end")

    def lock(turn: Turn) -> None:
        if not turn.try_lock("batch"):
            turn.again(1)

    def end(turn: Turn) -> None:
        if broken != "lock and decision in one statement":
            turn.snapshot("end")
        fence = turn.now("batch") if broken != "no fence" else "open"
        if is_over(turn.seen("end")) and fence != "complete":
            turn.write("batch", "complete", "callback")

    return [find, begin_statement, lock, end, commit]


def batch_ends_beside_addition(broken: str = "") -> Protocol:
    """Two workers end the last two jobs of a batch, while an application adds a third job to it."""
    return batch_ends(broken, with_addition=True)


def batch_ends(broken: str = "", *, with_addition: bool = False) -> Protocol:
    """Two workers end the last two jobs of a batch."""

    def completing(job: str) -> Program:
        def complete(turn: Turn) -> None:
            turn.write(job, "succeeded")
            turn.snapshot("find")

        return [complete, commit, *settling(broken)]

    def join(turn: Turn) -> None:
        if broken != "a job is added without the lock":
            turn.lock("batch")
        if turn.now("batch") == "complete":
            turn.stop()

    def add(turn: Turn) -> None:
        turn.write("job 3", "ready")

    def wrong(rows: Seen, log: tuple[str, ...]) -> str:
        if len(log) > 1:
            return "the callback is added twice"
        return "the batch is complete with an unfinished job" if log and "job 3" in rows else ""

    def lost(rows: Seen, log: tuple[str, ...]) -> str:
        jobs = {state for row, state in rows.items() if row.startswith("job")}
        return "the callback is never added" if jobs <= ENDED and not log else ""

    programs = [completing("job 1"), completing("job 2"), *([[join, add, commit]] if with_addition else [])]
    rows = {"job 1": "running", "job 2": "running", "batch": "open"}
    return Protocol(rows, programs, settling(""), wrong, lost)


# ------------------------------------------------------------------ events


def waking(broken: str, *, is_sender: bool) -> Program:
    """WAKE and WAKE_SUSPENDED: a sender and a completer look for each other. The sweep does the same."""

    def look(turn: Turn) -> None:
        if broken != ("the sender looks before its commit" if is_sender else "the completer looks before its commit"):
            turn.snapshot("look")
        if not turn.seen("look")["event"] or turn.seen("look")["job"] != "suspended":
            turn.stop()

    def wake(turn: Turn) -> None:
        if not turn.try_lock("job"):
            turn.stop()
        elif turn.now("job") == "suspended":
            turn.write("job", "due", "woken")

    return [look, wake, commit]


def event_and_suspension(broken: str = "") -> Protocol:
    """An attempt finds no event and is suspended, while the event is sent."""

    def send(turn: Turn) -> None:
        turn.write("event", True)
        turn.snapshot("look")

    def find(turn: Turn) -> None:
        turn.snapshot()
        if turn.seen()["event"]:
            turn.write("job", "received")
            turn.stop()

    def suspend(turn: Turn) -> None:
        turn.write("job", "suspended")
        turn.snapshot("look")

    def wrong(rows: Seen, log: tuple[str, ...]) -> str:
        return "the job is woken twice" if len(log) > 1 else ""

    def lost(rows: Seen, log: tuple[str, ...]) -> str:
        return "the job sleeps although its event has come" if rows["event"] and rows["job"] == "suspended" else ""

    completer = [find, suspend, commit]
    if broken != "the completer does not look":
        completer += waking(broken, is_sender=False)
    sender = [send, commit, *waking(broken, is_sender=True)]
    return Protocol({"event": False, "job": "running"}, [sender, completer], waking("", is_sender=True), wrong, lost)


# ------------------------------------------------------------------ compensations


def compensating(broken: str) -> Program:
    """COMPENSATE: one statement. Its snapshot of the steps is older than its lock of the job."""

    def begin_statement(turn: Turn) -> None:
        turn.snapshot()

    def lock(turn: Turn) -> None:
        if not turn.try_lock("job") or not str(turn.now("job")).startswith("dead"):
            turn.stop()
        elif broken != "no comparison with the snapshot" and turn.now("job") != turn.seen()["job"]:
            turn.stop()  # left to the sweep

    def add(turn: Turn) -> None:
        pending = [step for step in ("step b", "step a") if turn.seen().get(step) == "done"]
        if not pending or turn.seen().get("undo") == "unfinished":
            turn.stop()
        elif broken == "no fence" or turn.now(pending[0]) == "done":
            turn.write(pending[0], "undone", f"undo {pending[0]}")
            turn.write("undo", "unfinished")

    return [begin_statement, lock, add, commit]


def compensations(broken: str = "") -> Protocol:
    """Two workers compensate a dead job. An operator retries it, and its next attempt adds a step and dies."""

    def retry(turn: Turn) -> None:
        turn.lock("job")
        turn.snapshot()
        turn.stop() if turn.seen().get("undo") else turn.write("job", "ready")

    def attempt(turn: Turn) -> None:
        turn.write("step b", "done")
        turn.write("job", "dead again")

    def wrong(rows: Seen, log: tuple[str, ...]) -> str:
        if len(log) > len(set(log)):
            return "a compensation is added twice"
        if len(log) > 1:
            return "a compensation does not wait for the one before"
        return "an earlier step is undone first" if rows.get("step b") == "done" and "undo step a" in log else ""

    def lost(rows: Seen, log: tuple[str, ...]) -> str:
        return "the job is not undone" if str(rows["job"]).startswith("dead") and not log else ""

    again = [retry, commit, attempt, commit]
    rows = {"job": "dead", "step a": "done"}
    programs = [compensating(broken), compensating(broken), again]
    return Protocol(rows, programs, compensating(""), wrong, lost, needs_sweep=True)


# ------------------------------------------------------------------ a new call for a suspended job


def replace_and_attempt(broken: str = "") -> Protocol:
    """An application replaces the call of a job while a worker claims it, stores a step and suspends it."""

    def begin_statement(turn: Turn) -> None:
        turn.snapshot()

    def lock(turn: Turn) -> None:
        turn.lock("job")
        if turn.now("job") == "running":
            turn.stop()
        elif broken != "no comparison with the snapshot" and turn.now("job") != turn.seen()["job"]:
            turn.commit()
            turn.again(1)

    def replace(turn: Turn) -> None:
        turn.write("job", "ready")
        turn.write("call", "new")
        if "step" in turn.seen():
            turn.write("step", None)

    def claim(turn: Turn) -> None:
        if not turn.try_lock("job"):
            turn.again()
        else:
            turn.snapshot()
            turn.write("job", "running")

    def store_step(turn: Turn) -> None:
        turn.write("step", turn.seen()["call"])

    def suspend(turn: Turn) -> None:
        turn.write("job", "suspended")

    def wrong(rows: Seen, log: tuple[str, ...]) -> str:
        return "a step of the old call is kept" if (rows["call"], rows.get("step")) == ("new", "old") else ""

    programs = [[begin_statement, lock, replace, commit], [claim, commit, store_step, commit, suspend, commit]]
    return Protocol({"job": "ready", "call": "old"}, programs, [], wrong, lambda rows, log: "")


PROTOCOLS: Final[tuple[Callable[[str], Protocol], ...]] = (
    *(two_ends, retry_and_advance, batch_ends, batch_ends_beside_addition),
    *(event_and_suspension, compensations, replace_and_attempt),
)
BROKEN: Final[dict[Callable[[str], Protocol], dict[str, str]]] = {
    two_ends: {
        "look before the commit": "X waits for ever, without a crash",
        "no lock": "X is advanced twice",
        "a locked dependent is forgotten": "X waits for ever, without a crash",
    },
    retry_and_advance: {
        "lock and decision in one statement": "X is cancelled because of a job that is ready",
        "no lock": "X is cancelled because of a job that is ready",
        "the retry locks no dependent": "X is cancelled because of a job that is ready",
    },
    batch_ends: {
        "look before the commit": "the callback is never added, without a crash",
        "no fence": "the callback is added twice",
    },
    batch_ends_beside_addition: {
        "lock and decision in one statement": "the batch is complete with an unfinished job",
        "a job is added without the lock": "the batch is complete with an unfinished job",
    },
    event_and_suspension: {
        "the sender looks before its commit": "the job sleeps although its event has come, without a crash",
        "the completer looks before its commit": "the job sleeps although its event has come, without a crash",
        "the completer does not look": "the job sleeps although its event has come, without a crash",
    },
    compensations: {
        "no comparison with the snapshot": "an earlier step is undone first",
        "no fence": "a compensation is added twice",
    },
    replace_and_attempt: {"no comparison with the snapshot": "a step of the old call is kept"},
}
"""The error that each broken protocol has to show."""
