"""Hand-made histories, for the tests of the checker."""

from __future__ import annotations

from typing import Any

from django_pgqueue.declared.breakers import PAUSED_BY
from tests.tools.faults import checker
from tests.tools.faults.history import BatchChange, Breaking, Edge, Effect, Event, History, Override, Pause, StepChange
from tests.tools.faults.lives import Rules

PLAIN = "tests.tools.faults.app.tasks.plain"


class Story:
    """Writes a history as the triggers and the journals would."""

    def __init__(self) -> None:
        self.history = History()
        self.now = 1000.0
        self.xid = 0
        self.rows: dict[int, dict[str, Any]] = {}
        self.executions: dict[int, dict[str, Any]] = {}
        self.batches: dict[int, dict[str, Any]] = {}
        self.steps: dict[tuple[int, str], dict[str, Any]] = {}

    def transaction(self) -> None:
        self.xid += 1
        self.now += 0.1

    def next_number(self) -> int:
        return len(self.history.events) + len(self.history.batches) + len(self.history.steps) + 1

    def event(self, place: str, op: str, job: int, execution: int | None, old: Any, new: Any, tag: Any = None) -> None:
        number = self.next_number()
        copies = [dict(row) if row else None for row in (old, new)]
        self.history.events.append(Event(number, self.now, str(self.xid), place, op, job, execution, tag, *copies))

    def say(self, event: str, **fields: Any) -> None:
        self.now += 0.1
        self.history.records.append({"event": event, "at": self.now, "wall": self.now, "pid": 1, **fields})

    def job(self, job: int, **changes: Any) -> None:
        old = self.rows.get(job)
        blank = {"state": "ready", "attempt": 0, "crashes": 0, "max_attempts": 10, "task": PLAIN, "run_after": 0.0}
        blank |= {"finished_at": None, "cancel": False, "queue": "default", "expires_at": None}
        blank |= {"priority": 0, "limit_key": None, "weight": 1, "order": None}
        blank |= {"batch": None, "in_graph": None, "undoes": None}
        new = {**(old or {**blank, "key": None, "ready_only": False}), **changes}
        self.rows[job] = new
        self.event("job", "UPDATE" if old else "INSERT", job, None, old, new, None if old else f"tag{job}")
        self.history.jobs[job] = new

    def execution(self, job: int, execution: int, **changes: Any) -> None:
        old = self.executions.get(execution)
        blank = {"outcome": None, "worker": 7, "attempt": 1, "started": True, "lease": 0.0}
        blank |= {"limit_key": None, "weight": 1, "claimed_at": self.now, "finished_at": None}
        new = {**(old or blank), **changes}
        self.executions[execution] = new
        self.event("execution", "UPDATE" if old else "INSERT", job, execution, old, new)
        if new["outcome"] is None:
            self.history.open[execution] = job
        else:
            self.history.open.pop(execution, None)

    def enqueue(self, job: int, answer: str = "committed", **changes: Any) -> None:
        self.say("enqueue-sent", tag=f"tag{job}")
        self.transaction()
        self.job(job, **changes)
        self.say("enqueue-returned", tag=f"tag{job}", answer=answer)

    def claim(self, job: int, execution: int) -> None:
        self.transaction()
        self.job(job, state="running", attempt=self.rows[job]["attempt"] + 1)
        self.execution(job, execution, **{name: self.rows[job][name] for name in ("limit_key", "weight")})
        self.say("claim", worker=7, parent=5, limit=4, executions=[execution])

    def run(self, job: int, execution: int, kind: str = "plain", **end: Any) -> None:
        self.begin(job, execution, kind)
        self.end(job, execution, kind, **end)

    def begin(self, job: int, execution: int, kind: str = "plain") -> None:
        self.say("start", job=job, execution=execution, kind=kind)

    def end(self, job: int, execution: int, kind: str = "plain", ok: bool = True) -> None:
        self.history.effects.append(Effect(job, execution, kind))
        self.say("end", job=job, execution=execution, kind=kind, ok=ok)

    def close(self, job: int, execution: int, outcome: str, state: str, act: str = "", **changes: Any) -> None:
        self.transaction()
        self.execution(job, execution, outcome=outcome, finished_at=self.now)
        over = {"finished_at": self.now} if state in ("succeeded", "dead", "cancelled") else {}
        self.job(job, state=state, **over, **changes)
        if act:
            self.say("ack", act=act, own=False, fates={str(execution): "done"})

    def override(self, key: str, for_seconds: float | None = None, **given: Any) -> None:
        """Change a limit or a key. Without values, remove the override."""
        self.now += 0.1
        until = None if for_seconds is None else self.now + for_seconds
        self.history.overrides.append(Override(self.now, key, until, given or None))

    def pause(self, key: str, for_seconds: float | None = None, by: str = "ada", paused: bool = True) -> None:
        """Pause or resume a limit key."""
        until = None if for_seconds is None else self.now + for_seconds
        self.history.pauses.append(Pause(self.now, "limit", key, paused, until, by, str(self.xid)))

    def break_key(self, key: str, for_seconds: float = 1.0) -> None:
        """Open the breaker of a key, and pause it."""
        self.transaction()
        after = max(self.executions, default=0)
        self.history.breakings.append(Breaking(self.now, str(self.xid), key, True, after))
        self.pause(key, for_seconds, PAUSED_BY)

    def close_breaker(self, key: str) -> None:
        """Close the breaker of a key, and end its pause."""
        self.transaction()
        self.history.breakings.append(Breaking(self.now, str(self.xid), key, False, 0))
        self.pause(key, by=PAUSED_BY, paused=False)

    def claim_chunk(self, *jobs: int) -> None:
        """Claim jobs in one statement. Each execution has the number of its job."""
        self.transaction()
        for job in jobs:
            self.job(job, state="running", attempt=self.rows[job]["attempt"] + 1)
            self.execution(job, job)
        self.say("claim", worker=7, parent=5, limit=len(jobs), executions=list(jobs))

    def call(self, *executions: int, kind: str = "chunk", failing: tuple[int, ...] = (), number: int = 1) -> None:
        """Run a chunk up to its end. Each execution has the number of its job."""
        for number_of_job in executions:
            fails = number_of_job in failing
            about = {"call": f"call {number}", "job": number_of_job, "execution": number_of_job, "kind": kind}
            self.say("start", **about, fails=fails)
        for number_of_job in executions:
            if number_of_job not in failing:
                effect = "atomic" if kind == "atomic chunk" else "plain"
                self.history.effects.append(Effect(number_of_job, number_of_job, effect))
            self.say("end", job=number_of_job, execution=number_of_job, kind=kind, ok=number_of_job not in failing)

    def node(self, job: int, *needs: int, policy: str = "cancel", **changes: Any) -> None:
        """Enqueue a job of the workflow 1. It waits if it needs other jobs."""
        self.enqueue(job, **{"batch": 1, "in_graph": True, "state": "waiting" if needs else "ready"} | changes)
        self.history.edges += [Edge(job, each, policy) for each in needs]

    def finish(self, job: int, state: str = "succeeded", execution: int | None = None) -> None:
        """Run a job to its end."""
        number = execution or job
        self.claim(job, number)
        self.run(job, number)
        outcome = "succeeded" if state == "succeeded" else "failed"
        self.close(job, number, outcome, state, "succeed" if state == "succeeded" else "fail")

    def move(self, job: int, state: str, *, own_transaction: bool = True) -> None:
        """Change the state of a job without an execution."""
        if own_transaction:
            self.transaction()
        over = state in ("succeeded", "dead", "cancelled")
        self.job(job, state=state, finished_at=self.now if over else None)

    def batch(self, batch: int, *, own_transaction: bool = True, **changes: Any) -> None:
        """Create or change a batch."""
        if own_transaction:
            self.transaction()
        blank: dict[str, Any] = dict.fromkeys(("closed", "failure", "complete", "success"), False)
        blank |= {"description": f"batch {batch}", "parent": None, "calls": []}
        self.batches[batch] = {**self.batches.get(batch, blank), **changes}
        self.history.batches.append(
            BatchChange(self.next_number(), self.now, str(self.xid), batch, dict(self.batches[batch]))
        )

    def callback(self, job: int, name: str, batch: int = 1) -> None:
        """Add the job of a callback, in the transaction of the last change."""
        new = {**self.rows[min(self.rows)], "state": "succeeded", "batch": None, "in_graph": None, "attempt": 0}
        self.event("job", "INSERT", job, None, None, new, f"{name} of batch {batch}")

    def step(self, job: int, name: str, *, own_transaction: bool = True, **changes: Any) -> None:
        """Store or change a step. By default, it is a function that has returned."""
        if own_transaction:
            self.transaction()
        old = self.steps.get((job, name))
        blank = {"kind": "step", "position": float(len(self.steps)), "finished": True, "wake_at": None}
        blank |= {"event_name": None, "event_key": None, "event": None, "compensation": False, "undone_by": None}
        self.steps[job, name] = {**(old or blank), **changes}
        self._note_step(job, name, old, dict(self.steps[job, name]))

    def remove_step(self, job: int, name: str) -> None:
        self.transaction()
        self._note_step(job, name, self.steps.pop((job, name)), None)

    def _note_step(self, job: int, name: str, old: Any, new: Any) -> None:
        self.history.steps.append(StepChange(self.next_number(), self.now, str(self.xid), job, name, old, new))

    def undo(self, job: int, name: str, by: int) -> None:
        """Add the job that undoes a step."""
        self.step(job, name, compensation=False, undone_by=by)
        new = {**self.rows[job], "state": "ready", "undoes": str(job), "attempt": 0}
        self.rows[by] = new
        self.event("job", "INSERT", by, None, None, new)
        self.history.jobs[by] = new

    def whole(self, job: int = 1, execution: int = 1) -> None:
        self.enqueue(job)
        self.claim(job, execution)
        self.run(job, execution)
        self.close(job, execution, "succeeded", "succeeded", "succeed")


def broken(story: Story, **rules: Any) -> set[str]:
    return {violation.invariant for violation in checker.check(story.history, Rules(**rules))}
