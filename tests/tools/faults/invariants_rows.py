"""Invariants of the rows: what the database's own events must say.

Order is by the numbers of the events, never by a clock: writers of one job lock its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.tools.faults.history import History
from tests.tools.faults.invariants_workflows import restored
from tests.tools.faults.lives import FINISHED, Life, Rules, Violation, operated

COUNTED: Final = frozenset({"succeeded", "failed", "crashed", "cancelled"})
"""Outcomes that count as an attempt; an open execution does too."""
EDGES: Final = {
    "waiting": {"waiting", "ready", "cancelled"},
    "ready": {"ready", "running", "cancelled", "dead"},
    "running": {"running", "ready", "succeeded", "dead", "cancelled"},
}
"""From unfinished states, wherever the row may go; "ready" to "dead" is a row that no claim can take."""


def one_open_execution(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I1: at most one open execution. I2: running if and only if there is one, after each transaction."""
    touched = operated(history, "delete", "sql")
    for life in lives.values():
        state, now_open = "", set()
        for transaction in life.transactions():
            for event in transaction:
                if event.place == "job":
                    state = event.new["state"] if event.new else "gone"
                elif event.new is None or event.new["outcome"] is not None:
                    now_open.discard(event.execution)
                else:
                    now_open.add(event.execution)
                if len(now_open) > 1:
                    yield Violation("I1", life.job, f"executions {now_open} are open at a time")
            if (state == "running") != bool(now_open) and life.job not in touched:
                yield Violation("I2", life.job, f"{state} with open executions {now_open or 'none'}")


def only_known_edges(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I4: a finished job changes only by an operator's act; others only along the edges.

    A retried node of a workflow waits again if another one of its workflow was retried, and so do those that its end
    had cancelled.
    """
    retried, touched, again = operated(history, "retry"), operated(history, "sql"), restored(history)
    for life in lives.values():
        for event in life.of("job"):
            if event.op != "UPDATE" or event.old is None or event.new is None or life.job in touched:
                continue
            old, new = event.old["state"], event.new["state"]
            if (event.xid, life.job) in again or (new == "waiting" and old == "ready" and life.job in retried):
                continue
            if old in FINISHED and new != old and not (new == "ready" and life.job in retried):
                yield Violation("I4", life.job, f"{old} became {new}, and no operator asked for it")
            elif old not in FINISHED and new not in EDGES.get(old, ()):
                yield Violation("I4", life.job, f"{old} became {new}")


def an_outcome_is_final(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I3: the outcome of an execution is written once, and a claim opens a new one."""
    touched = operated(history, "sql")
    for life in lives.values():
        for event in life.of("execution"):
            if event.op == "UPDATE" and event.old and event.old["outcome"] is not None and life.job not in touched:
                yield Violation("I3", life.job, f"execution {event.execution} was {event.old['outcome']} already")


def counters(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I6: the job's counters are what its executions say. I7: within the budgets."""
    touched = operated(history, "sql")
    for job, row in history.jobs.items():
        life = lives.get(job)
        if life is None or job in touched:
            continue
        outcomes = _since_retry(life)
        attempt = sum(outcome in COUNTED or outcome is None for outcome, _ in outcomes.values())
        crashes = sum(outcome == "crashed" and started for outcome, started in outcomes.values())
        if row["attempt"] != attempt:
            yield Violation("I6", job, f"attempt is {row['attempt']}, executions say {attempt}")
        if row["crashes"] != crashes:
            yield Violation("I6", job, f"crashes is {row['crashes']}, executions say {crashes}")
        if attempt > row["max_attempts"] or crashes > rules.crash_budget:
            yield Violation("I7", job, f"{attempt} attempts of {row['max_attempts']}, {crashes} crashes")


def _since_retry(life: Life) -> dict[int | None, tuple[str | None, bool]]:
    """The outcome of each execution, and whether it had started, since an operator's last retry."""
    seen: dict[int | None, tuple[str | None, bool]] = {}
    for event in life.events:
        if event.place == "execution":
            if event.new is None:
                seen.pop(event.execution, None)
            elif event.op != "INSERT" or event.new["outcome"] is None:  # else the record of one that never ran
                seen[event.execution] = (event.new["outcome"], event.new["started"])
        elif event.old and event.new and event.old["state"] in FINISHED and event.new["state"] == "ready":
            seen.clear()
    return seen


def nothing_early(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I9: no claim before its time, by the database's clock."""
    for life in lives.values():
        for event in life.of("job"):
            if event.old and event.new and event.new["state"] == "running" and event.old["state"] == "ready":
                early = event.old["run_after"] - event.at
                if early > 0.001:
                    yield Violation("I9", life.job, f"claimed {early:.3f} s before its time")


def removed_in_time(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I17: only finished jobs are removed, past their retention; one whose task keeps nothing goes with its finish."""
    touched = operated(history, "delete")
    for life in lives.values():
        for event in life.of("job"):
            if event.op != "DELETE" or event.old is None or life.job in touched:
                continue
            if event.old["task"].endswith(".forgotten"):
                continue
            if event.old["state"] not in FINISHED:
                yield Violation("I17", life.job, f"removed while {event.old['state']}")
            elif rules.retention_seconds is None:
                yield Violation("I17", life.job, "removed before its time")
            elif event.at - event.old["finished_at"] < rules.retention_seconds - 0.001:
                yield Violation("I17", life.job, f"removed {event.at - event.old['finished_at']:.1f} s after its end")


def nothing_stuck(history: History, lives: dict[int, Life], rules: Rules) -> Iterator[Violation]:
    """I19: where all was to end, nothing due is left."""
    if not rules.finished:
        return
    last = history.events[-1].at if history.events else 0.0
    for job, row in history.jobs.items():
        if row["state"] in ("running", "waiting") or (row["state"] == "ready" and row["run_after"] <= last):
            yield Violation("I19", job, f"still {row['state']} at the end")
