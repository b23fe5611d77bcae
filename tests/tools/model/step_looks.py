"""The protocols of durable steps: events, compensations, and new calls for suspended jobs. See `looks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.tools.model.looks import NO_FENCE, Log, Seen, commit, end
from tests.tools.model.sessions import Program, Protocol, Turn

EARLY_SENDER: Final = "the sender looks before its commit"
EARLY_COMPLETER: Final = "the completer looks before its commit"
NO_COMPLETER: Final = "the completer does not look"
OLD_SNAPSHOT: Final = "no comparison with the snapshot"
ONE_REMOVAL: Final = "no second statement removes steps"


# ------------------------------------------------------------------ events


def send(turn: Turn) -> None:
    turn.write("event", True)
    turn.snapshot("find")


def find_event(turn: Turn) -> None:
    turn.snapshot("event")
    if turn.seen("event")["event"]:
        turn.write("job", "received")
        turn.stop()


def look_of_sender(turn: Turn) -> None:
    if turn.broken != EARLY_SENDER:
        turn.snapshot("find")
    if not turn.seen("find")["event"] or turn.seen("find")["job"] != "suspended":
        turn.stop()


def look_of_completer(turn: Turn) -> None:
    if turn.broken != EARLY_COMPLETER:
        turn.snapshot("find")
    if turn.broken == NO_COMPLETER or not turn.seen("find")["event"]:
        turn.stop()


def wake(turn: Turn) -> None:
    if not turn.try_lock("job"):
        turn.stop()
    elif turn.now("job") == "suspended":
        turn.write("job", "due", "woken")


def event_and_suspension(broken: str = "") -> Protocol:
    """An attempt finds no event and is suspended, while the event is sent."""

    def wrong(rows: Seen, log: Log) -> str:
        return "the job is woken twice" if len(log) > 1 else ""

    def lost(rows: Seen, log: Log) -> str:
        return "the job sleeps although its event has come" if rows["event"] and rows["job"] == "suspended" else ""

    sender: Program = [send, commit, look_of_sender, wake, commit]
    completer: Program = [find_event, end("job", "suspended"), commit, look_of_completer, wake, commit]
    rows = {"event": False, "job": "running"}
    return Protocol(rows, [sender, completer], [look_of_sender, wake, commit], wrong, lost, broken)


# ------------------------------------------------------------------ compensations


def begin_compensate(turn: Turn) -> None:
    turn.snapshot()


def lock_dead_job(turn: Turn) -> None:
    """Lock the job. One that is locked, or has changed since the snapshot, is left to the sweep."""
    has_changed = turn.broken != OLD_SNAPSHOT and turn.now("job") != turn.seen()["job"]
    if not turn.try_lock("job") or not turn.now("job").startswith("dead") or has_changed:
        turn.stop()


def compensate(turn: Turn) -> None:
    pending = [step for step in ("step b", "step a") if turn.seen().get(step) == "done"]
    if not pending or turn.seen().get("undo"):
        turn.stop()
    elif turn.broken == NO_FENCE or turn.now(pending[0]) == "done":
        turn.write(pending[0], "undone", f"undo {pending[0]}")
        turn.write("undo", "unfinished")


COMPENSATING: Final[Program] = [begin_compensate, lock_dead_job, compensate, commit]


def retry_dead_job(turn: Turn) -> None:
    turn.lock("job")
    turn.stop() if turn.now("undo") else turn.write("job", "ready")


def die_again(turn: Turn) -> None:
    turn.write("step b", "done")
    turn.write("job", "dead again")


def compensations(broken: str = "") -> Protocol:
    """Two workers compensate a dead job. An operator retries it, and its next attempt adds a step and dies."""

    def wrong(rows: Seen, log: Log) -> str:
        if len(log) > 1:
            return "two steps are undone at once" if len(set(log)) > 1 else "a compensation is added twice"
        return "an earlier step is undone first" if rows.get("step b") == "done" and log else ""

    def lost(rows: Seen, log: Log) -> str:
        return "the job is not undone" if rows["job"].startswith("dead") and not log else ""

    programs: list[Program] = [COMPENSATING, COMPENSATING, [retry_dead_job, commit, die_again, commit]]
    rows = {"job": "dead", "step a": "done"}
    return Protocol(rows, programs, COMPENSATING, wrong, lost, broken, needs_sweep=True)


# ------------------------------------------------------------------ a new call for a suspended job


def begin_replace(turn: Turn) -> None:
    turn.snapshot()


def replace(turn: Turn) -> None:
    turn.lock("job")
    if turn.now("job") == "running":
        turn.stop()
        return
    turn.write("job", "ready")
    turn.write("call", "new")
    if turn.seen().get("step"):
        turn.write("step", None)


def remove_steps(turn: Turn) -> None:
    turn.snapshot("remove")
    if turn.broken != ONE_REMOVAL and turn.seen("remove").get("step"):
        turn.write("step", None)


def claim(turn: Turn) -> None:
    if not turn.try_lock("job"):
        turn.again()
    else:
        turn.snapshot("claim")
        turn.write("job", "running")


def store_step(turn: Turn) -> None:
    turn.write("step", turn.seen("claim")["call"])


def replace_and_attempt(broken: str = "") -> Protocol:
    """An application replaces the call of a job while a worker claims it, stores a step and suspends it."""

    def wrong(rows: Seen, log: Log) -> str:
        return "a step of the old call is kept" if (rows["call"], rows.get("step")) == ("new", "old") else ""

    attempt: Program = [claim, commit, store_step, commit, end("job", "suspended"), commit]
    programs: list[Program] = [[begin_replace, replace, remove_steps, commit], attempt]
    return Protocol({"job": "ready", "call": "old"}, programs, [], wrong, lambda rows, log: "", broken)


BROKEN: Final[dict[Callable[[str], Protocol], dict[str, str]]] = {
    event_and_suspension: dict.fromkeys(
        (EARLY_SENDER, EARLY_COMPLETER, NO_COMPLETER), "the job sleeps although its event has come, without a crash"
    ),
    compensations: {OLD_SNAPSHOT: "an earlier step is undone first", NO_FENCE: "a compensation is added twice"},
    replace_and_attempt: {ONE_REMOVAL: "a step of the old call is kept"},
}
"""The error that each broken protocol has to show."""
