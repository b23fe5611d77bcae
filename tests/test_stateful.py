"""The real statements against a small model: after each random transition, the whole tables must match the model.

A Hypothesis state machine makes the transitions of `lifecycle` in random order, by any worker, on any execution that
was ever claimed. So a worker that was thought lost makes transitions too, and a transition can come twice. A dict of
jobs and a dict of executions have the expected state. After every step, all rows of both tables are compared with them,
and the invariants are checked on the tables alone. Nothing here waits: one tick of time is 1000 seconds, and
`time_shift` moves the clock of the database.

CI runs 300 examples. For a long run, use `pytest tests/test_stateful.py --stateful-examples 10000`.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import clock
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import (
    claims,
    completions,
    expiry,
    leases,
    operator,
    pauses,
    pruning,
    rescues,
    unique,
    workers,
)
from django_pgqueue.lifecycle.completions import SUCCEEDED
from django_pgqueue.lifecycle.types import (
    Cancelled,
    Cursor,
    ExecutionKey,
    Heartbeat,
    Lane,
    Noted,
    Released,
    TransitionResult,
    TransitionStatus,
)
from django_pgqueue.states import FINISHED, Outcome, Pausable, State
from tests import helpers

pytestmark = pytest.mark.slow

TICK = 1000.0
LANES = [Lane("mail", 5), Lane("mail", 0), Lane("default", 0)]
WORKER_IDS = range(1, 4)
WORKERS = st.sampled_from(WORKER_IDS)
TASKS = st.sampled_from(["tests.app.tasks.noop", "tests.app.tasks.add"])
PAUSABLE = [(Pausable.QUEUE, "mail"), (Pausable.QUEUE, "default"), (Pausable.TASK, "tests.app.tasks.add")]
COUNTED = {*Outcome, None} - {Outcome.RELEASED, Outcome.SNOOZED}

# Every row in the form of the model. All times are ticks.
JOBS = """
SELECT id, task_name, queue_name, priority, state,
       floor(extract(epoch FROM run_after - %(start)s) / 1000)::int, attempt, max_attempts, crashes,
       floor(extract(epoch FROM finished_at - %(start)s) / 1000)::int,
       cancel_requested_at IS NOT NULL, floor(extract(epoch FROM unknown_since - %(start)s) / 1000)::int, result::text,
       progress_done::int, floor(extract(epoch FROM progress_at - %(start)s) / 1000)::int,
       unique_key, unique_ready_only, floor(extract(epoch FROM expires_at - %(start)s) / 1000)::int
FROM pgqueue_job ORDER BY id
"""
EXECUTIONS = """
SELECT id, job_id, attempt, worker_id, outcome, started_at IS NOT NULL, finished_at IS NOT NULL,
       floor(extract(epoch FROM lease_expires_at - %(start)s) / 1000)::int, error
FROM pgqueue_execution ORDER BY id
"""
# The invariants I1, I2, I6 and I7: each query must find no row. An operator's retry restarts the counting.
VIOLATIONS = {
    "I1 one open execution a job": "SELECT job_id FROM pgqueue_execution WHERE outcome IS NULL "
    "GROUP BY job_id HAVING count(*) > 1",
    "I2 running is to have an open execution": "SELECT job.id FROM pgqueue_job AS job LEFT JOIN "
    "(SELECT id, job_id FROM pgqueue_execution WHERE outcome IS NULL) AS open ON open.job_id = job.id "
    "WHERE (job.state = 'running') IS DISTINCT FROM (open.job_id IS NOT NULL) "
    "OR (job.state = 'running' AND job.execution_id IS DISTINCT FROM open.id)",
    "closed means finished": "SELECT id FROM pgqueue_execution WHERE (outcome IS NULL) <> (finished_at IS NULL)",
    "a finished job has its time": "SELECT id FROM pgqueue_job "
    "WHERE (state IN ('succeeded', 'dead', 'cancelled')) <> (finished_at IS NOT NULL)",
    "an execution ends after its claim": "SELECT id FROM pgqueue_execution WHERE finished_at < claimed_at",
    "one job a key": "SELECT min(id) FROM pgqueue_job WHERE unique_key IS NOT NULL "
    "AND (state = 'ready' OR state = 'running' AND unique_ready_only IS NULL) "
    "GROUP BY task_name, unique_key HAVING count(*) > 1",
    "I7 no attempt beyond the last": "SELECT id FROM pgqueue_job "
    "WHERE attempt > max_attempts OR crashes > attempt OR attempt < 0",
}
WRONG = " UNION ALL ".join(f"SELECT '{name}', id FROM ({query}) AS x (id)" for name, query in VIOLATIONS.items())
"""Finds the rows that break an invariant, with its name. It is one statement, because it runs after every step."""


@dataclass
class Job:
    """A row of pgqueue_job. Lanes and claims sort the jobs of one tick by `order`."""

    id: int
    task_name: str
    lane: Lane
    state: State
    due: int
    max_attempts: int
    attempt: int = 0
    crashes: int = 0
    finished: int | None = None
    asked: bool = False
    unknown_since: int | None = None
    result: str | None = None
    progress: tuple[int, int] | None = None
    """The last reported progress, and its tick."""
    key: str | None = None
    ready_only: bool | None = None
    expires: int | None = None
    order: int = 0
    counted: list[int] = field(default_factory=list)
    """Executions since the last retry by an operator."""

    def row(self) -> tuple[Any, ...]:
        return (
            *(
                self.id,
                self.task_name,
                self.lane.queue_name,
                self.lane.priority,
                self.state.value,
                self.due,
                self.attempt,
            ),
            *(self.max_attempts, self.crashes, self.finished, self.asked, self.unknown_since, self.result),
            *(self.progress or (None, None)),
            *(self.key, self.ready_only, self.expires),
        )


@dataclass
class Execution:
    """A row of pgqueue_execution."""

    id: int
    job_id: int
    attempt: int
    worker_id: int
    lease: int
    started: bool
    outcome: Outcome | None = None
    error: str = ""

    def row(self) -> tuple[Any, ...]:
        outcome = self.outcome and self.outcome.value
        closed = outcome is not None
        return (
            self.id,
            self.job_id,
            self.attempt,
            self.worker_id,
            outcome,
            self.started,
            closed,
            self.lease,
            self.error,
        )


class Queue(RuleBasedStateMachine):
    """The transitions as rules. `self.now` is the tick. `self.handed_out` has every execution id that was claimed."""

    engine: EngineConnection

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, Job] = {}
        self.executions: dict[int, Execution] = {}
        self.handed_out: list[int] = []
        self.keys: dict[int, ExecutionKey] = {}
        self.pauses: dict[tuple[Pausable, str], float] = {}
        """The tick at which each pause ends. Infinity means that only `resume` ends it."""
        self.windows: dict[tuple[str, str], tuple[int, int]] = {}
        """The tick at which the uniqueness window of each key ends, and the job that opened the window."""
        self.leases: dict[int, int] = {}
        """The tick at which the lease of each worker ends. No worker has one until its first heartbeat."""
        self.now = 0
        self.steps = 0

    @initialize()
    def begin(self) -> None:
        clock.shift_seconds = 0.0
        helpers.clear_tables(self.engine)
        self.start = helpers.scalar(self.engine, "SELECT statement_timestamp()")
        self.engine.execute("DELETE FROM pgqueue_pause")
        self.engine.execute("DELETE FROM pgqueue_uniqueness_window")
        self.engine.execute("DELETE FROM pgqueue_worker")
        for worker_id in WORKER_IDS:
            workers.register_worker(
                self.engine, hostname="", pid=1, version="", queue_names="", concurrency=1, worker_id=worker_id
            )
        self.enqueue(LANES[0], 2, 0, 10, helpers.NOOP)  # a history without a job would test nothing

    def teardown(self) -> None:
        clock.shift_seconds = 0.0

    # ------------------------------------------------------------------ helpers of the rules

    def any_job(self, data: st.DataObject) -> int:
        """Return one of the last jobs, or a missing one. With more choice, transitions would rarely meet on one job."""
        return data.draw(st.sampled_from([*sorted(self.jobs)[-4:], max(self.jobs, default=0) + 1]), label="job")

    def any_execution(self, data: st.DataObject) -> int:
        """Return one of the executions that were claimed last: open, ended or rescued."""
        return data.draw(st.sampled_from(self.handed_out[-6:]), label="execution")

    def key(self, execution_id: int) -> ExecutionKey:
        return self.keys.setdefault(execution_id, helpers.key_of(self.engine, execution_id))

    def open_execution(self, execution_id: int) -> tuple[Execution, Job] | None:
        execution = self.executions.get(execution_id)
        if execution is None or execution.outcome is not None or execution.job_id not in self.jobs:
            return None
        return execution, self.jobs[execution.job_id]

    def is_orphan(self, execution: Execution) -> bool:
        return execution.outcome is None and execution.job_id not in self.jobs

    def close(self, execution_id: int, outcome: Outcome, error: str = "", started: bool | None = None) -> None:
        execution = self.executions[execution_id]
        self.executions[execution_id] = replace(
            execution, outcome=outcome, error=error, started=execution.started if started is None else started
        )

    def move(self, job: Job, state: State, delay: int | None = None, **changes: Any) -> State:
        job.state = state
        job.finished = self.now if state in FINISHED else None
        if state is State.READY and delay is not None:
            job.due, job.order = self.now + delay, self.steps
        for name, value in changes.items():
            setattr(job, name, value)
        return state

    def lost(
        self, execution_id: int, wanted: Outcome, missing: TransitionStatus = TransitionStatus.LOST
    ) -> TransitionResult:
        execution = self.executions.get(execution_id)
        if execution is None:
            return TransitionResult(missing)
        if self.is_orphan(execution):
            del self.executions[execution_id]  # every transition that meets an orphan removes it
            return TransitionResult(TransitionStatus.LOST)
        is_own = execution.outcome is wanted
        return TransitionResult(TransitionStatus.ALREADY_DONE if is_own else TransitionStatus.LOST)

    # ------------------------------------------------------------------ the application

    @rule(lane=st.sampled_from(LANES), count=st.integers(1, 4), delay=st.sampled_from([0, 0, 1, 3]),
          most=st.sampled_from([1, 2, 10]), task_name=TASKS)  # fmt: skip
    def enqueue(self, lane: Lane, count: int, delay: int, most: int, task_name: str) -> None:
        options = {**lane._asdict(), "max_attempts": most, "task_name": task_name}
        ids = helpers.make_jobs(self.engine, count, delay_seconds=delay * TICK, **options)
        assert len(set(ids)) == count
        assert not set(ids) & set(self.jobs)
        assert ids == sorted(ids)
        for job_id in ids:
            self.jobs[job_id] = Job(job_id, task_name, lane, State.READY, self.now + delay, most, order=self.steps)

    def holder(self, task_name: str, key: str | None) -> Job | None:
        """Return the job that prevents other jobs with its key."""
        return next(
            (
                job
                for job in self.jobs.values()
                if key is not None and (job.task_name, job.key) == (task_name, key)
                if job.state is State.READY or (job.state is State.RUNNING and not job.ready_only)
            ),
            None,
        )

    @rule(key=st.sampled_from("ab"), ready_only=st.booleans(), replaces=st.booleans(), task_name=TASKS,
          expires=st.sampled_from([None, 1, 3]))  # fmt: skip
    def enqueue_unique(self, key: str, ready_only: bool, replaces: bool, task_name: str, expires: int | None) -> None:
        holder, lane = self.holder(task_name, key), LANES[1]
        options = {**lane._asdict(), "task_name": task_name, "expires_seconds": expires and expires * TICK}
        added = helpers.enqueue_unique(self.engine, key, ready_only=ready_only, replace=replaces, **options)
        if holder is not None and not (replaces and holder.state is State.READY):
            assert added is None
            return
        fresh: dict[str, Any] = {"due": self.now, "order": self.steps, "expires": expires and self.now + expires}
        if holder is None:
            kept: dict[str, Any] = {"key": key, "ready_only": ready_only or None, **fresh}
            self.jobs[added.job_id] = Job(added.job_id, task_name, lane, State.READY, max_attempts=10, **kept)
            return
        assert added.job_id == holder.id
        self.replaced(holder, lane, **fresh)

    def replaced(self, job: Job, lane: Lane, **changes: Any) -> None:
        """Let another call replace the call of a job in the model."""
        changes |= {"attempt": 0, "crashes": 0, "unknown_since": None, "counted": [], "max_attempts": 10}
        changes["lane"] = Lane(job.lane.queue_name, lane.priority)
        for name, value in changes.items():
            setattr(job, name, value)

    @rule(key=st.sampled_from("ab"), period=st.integers(1, 3), replaces=st.booleans(), task_name=TASKS)
    def enqueue_for_period(self, key: str, period: int, replaces: bool, task_name: str) -> None:
        until, holder_id = self.windows.get((task_name, key), (self.now, 0))
        holder, lane = self.jobs.get(holder_id), LANES[1]
        fresh: dict[str, Any] = {"due": self.now, "order": self.steps}
        options = {**lane._asdict(), "task_name": task_name}
        added = helpers.enqueue_for_period(self.engine, key, period_seconds=period * TICK, **options)
        assert len(added) == (until <= self.now)
        for job_id in added:
            self.jobs[job_id] = Job(job_id, task_name, lane, State.READY, max_attempts=10, **fresh)
            self.windows[task_name, key] = (self.now + period, job_id)
        if replaces and not added:
            waits = holder is not None and holder.state is State.READY
            assert helpers.replace_for_period(self.engine, key, **options) == ([holder_id] if waits else [])
            if holder is not None and waits:
                self.replaced(holder, lane, expires=None, **fresh)
        owners = {key: job_id for (name, key), (until, job_id) in self.windows.items() if name == task_name}
        assert unique.open_windows(self.engine, task_name, [key])[key] == owners[key]

    @rule()
    def prune_windows(self) -> None:
        over = [of for of, (until, _) in self.windows.items() if until <= self.now]
        assert unique.prune_windows(self.engine) == len(over)
        for of in over:
            del self.windows[of]

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ids = [self.any_job(data) for _ in range(data.draw(st.integers(1, 3)))]
        wanted = {}
        for job in (self.jobs[job_id] for job_id in {*ids} & {*self.jobs}):
            if job.state is State.READY:
                wanted[job.id] = self.move(job, State.CANCELLED, asked=True)
            elif job.state is State.RUNNING and not job.asked:
                wanted[job.id] = self.move(job, State.RUNNING, asked=True)
        assert operator.cancel(self.engine, ids) == wanted

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job_id = self.any_job(data)
        job, wanted = self.jobs.get(job_id), {}
        if job and job.state in FINISHED and self.holder(job.task_name, job.key) is None:
            fresh: dict[str, Any] = {
                "attempt": 0,
                "crashes": 0,
                "asked": False,
                "unknown_since": None,
                "result": None,
                "expires": None,
                "progress": job.progress if job.state is not State.SUCCEEDED else None,
                "counted": [],
            }
            wanted[job_id] = self.move(job, State.READY, 0, **fresh)
        assert operator.retry(self.engine, [job_id]) == wanted

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def run_now(self, data: st.DataObject) -> None:
        job_id = self.any_job(data)
        job, wanted = self.jobs.get(job_id), {}
        if job and job.state is State.READY and job.due > self.now:
            wanted[job_id] = self.move(job, State.READY, 0)
        assert operator.run_now(self.engine, [job_id]) == wanted

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), past_django=st.booleans())
    def delete(self, data: st.DataObject, past_django: bool) -> None:
        """Delete a job as Django's cascade does, or without Django, which leaves the executions behind."""
        job_id = self.any_job(data)
        self.engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [job_id])
        if past_django:
            self.jobs.pop(job_id, None)
        else:
            self.engine.execute("DELETE FROM pgqueue_execution WHERE job_id = %s", [job_id])
            self.forget(job_id)

    def forget(self, job_id: int) -> None:
        self.jobs.pop(job_id, None)
        self.executions = {
            execution.id: execution for execution in self.executions.values() if execution.job_id != job_id
        }

    # ------------------------------------------------------------------ pauses

    def is_paused(self, kind: Pausable, name: str) -> bool:
        return self.pauses.get((kind, name), self.now) > self.now

    @rule(what=st.sampled_from(PAUSABLE), ticks=st.sampled_from([1, 2, None]))
    def pause(self, what: tuple[Pausable, str], ticks: int | None) -> None:
        pauses.pause(self.engine, *what, for_seconds=None if ticks is None else ticks * TICK)
        self.pauses[what] = self.now + (float("inf") if ticks is None else ticks)

    @rule(what=st.sampled_from(PAUSABLE))
    def resume(self, what: tuple[Pausable, str]) -> None:
        assert pauses.resume(self.engine, *what) == self.is_paused(*what)
        self.pauses.pop(what, None)

    # ------------------------------------------------------------------ the worker

    @rule(worker_id=WORKERS, lanes=st.permutations(LANES), count=st.integers(1, 3), limit=st.integers(1, 5),
          free=st.integers(0, 5), lease=st.integers(0, 2))  # fmt: skip
    def claim(self, worker_id: int, lanes: list[Lane], count: int, limit: int, free: int, lease: int) -> None:
        scan = claims.scan_lanes(self.engine)
        lanes = [lane for lane in lanes[:count] if scan.due_in.get(lane, 0.0) < TICK / 2]
        due = sorted(
            (
                job
                for job in self.jobs.values()
                if job.state is State.READY
                and job.due <= self.now
                and job.lane in lanes
                and not self.is_paused(Pausable.QUEUE, job.lane.queue_name)
                and not self.is_paused(Pausable.TASK, job.task_name)
            ),
            key=lambda job: (lanes.index(job.lane), job.due, job.order, job.id),
        )[:limit]
        last = [place for place, job in enumerate(due) if place >= free and job.attempt + 1 >= job.max_attempts]
        due = due[: last[0]] if last else due
        claimed = claims.claim(
            self.engine,
            dict.fromkeys(lanes, Cursor()),
            limit=limit,
            free_slots=free,
            worker_id=worker_id,
            lease_seconds=(lease + 0.5) * TICK,
            paused_tasks=scan.paused_tasks,
        )
        assert [execution.job_id for execution in claimed] == [job.id for job in due]
        assert len(claimed) <= limit
        assert not {execution.execution_id for execution in claimed} & set(self.handed_out)
        for place, (execution, job) in enumerate(zip(claimed, due, strict=True)):
            assert Lane(execution.queue_name, execution.priority) == job.lane
            assert (execution.max_attempts, execution.crashes) == (job.max_attempts, job.crashes)
            job.state, job.attempt = State.RUNNING, job.attempt + 1
            assert execution.attempt == job.attempt
            job.counted.append(execution.execution_id)
            self.handed_out.append(execution.execution_id)
            self.keys[execution.execution_id] = execution.key
            self.executions[execution.execution_id] = Execution(
                execution.execution_id, job.id, job.attempt, worker_id, self.now + lease, started=place < free
            )

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data(), done=st.integers(0, 3))
    def note_progress(self, data: st.DataObject, done: int) -> None:
        ids = list({self.any_execution(data) for _ in range(data.draw(st.integers(1, 3)))})
        wanted = {}
        for execution_id in ids:
            wanted[execution_id] = TransitionResult(TransitionStatus.LOST)
            if current := self.open_execution(execution_id):
                current[1].progress = (done, self.now)
                wanted[execution_id] = TransitionResult(TransitionStatus.DONE, State.RUNNING)
            else:
                self.lost(execution_id, Outcome.SUCCEEDED)
        reports = [Noted(self.key(execution_id), Progress(done), 0.0) for execution_id in ids]
        assert completions.note_progress(self.engine, reports) == wanted

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data(), result=st.sampled_from([None, "7"]))
    def succeed(self, data: st.DataObject, result: str | None) -> None:
        ids = list({self.any_execution(data) for _ in range(data.draw(st.integers(1, 3)))})
        wanted = {}
        for execution_id in ids:
            if current := self.open_execution(execution_id):
                self.close(execution_id, Outcome.SUCCEEDED, started=True)
                self.move(current[1], State.SUCCEEDED, result=result)
                wanted[execution_id] = SUCCEEDED
            else:
                wanted[execution_id] = self.lost(execution_id, Outcome.SUCCEEDED)
        assert completions.succeed(self.engine, helpers.succeeded(*map(self.key, ids), result=result)) == wanted

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def succeed_and_discard(self, data: st.DataObject) -> None:
        execution_id = self.any_execution(data)
        if current := self.open_execution(execution_id):
            wanted = SUCCEEDED
            self.forget(current[1].id)
        else:
            wanted = self.lost(execution_id, Outcome.SUCCEEDED, TransitionStatus.ALREADY_DONE)
        assert completions.succeed_and_discard(self.engine, [self.key(execution_id)]) == {execution_id: wanted}

    @precondition(lambda self: self.handed_out)
    @rule(
        data=st.data(), outcome=st.sampled_from([Outcome.FAILED, Outcome.CRASHED]), delay=st.sampled_from([0, 1, None])
    )
    def fail(self, data: st.DataObject, outcome: Outcome, delay: int | None) -> None:
        execution_id = self.any_execution(data)
        if current := self.open_execution(execution_id):
            execution, job = current
            if execution.attempt >= job.max_attempts:
                delay = None  # as the retry policy decides: no attempt is left
            self.close(execution_id, outcome, "as asked", started=True)
            crashes = job.crashes + (outcome is Outcome.CRASHED)
            wanted = TransitionResult(TransitionStatus.DONE, self.end(job, delay, crashes=crashes, unknown_since=None))
        else:
            wanted = self.lost(execution_id, outcome)
        seconds = None if delay is None else delay * TICK
        done = completions.fail(self.engine, helpers.failed(self.key(execution_id), seconds, outcome.value))
        assert done == {execution_id: wanted}

    def end(self, job: Job, delay: int | None, **changes: Any) -> State:
        job.key = None if job.ready_only else job.key
        if job.asked:
            return self.move(job, State.CANCELLED, **changes)
        return self.move(job, State.DEAD if delay is None else State.READY, delay, **changes)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data(), delay=st.sampled_from([None, 0, 2]), unknown=st.booleans(), snoozed=st.booleans())
    def release(self, data: st.DataObject, delay: int | None, unknown: bool, snoozed: bool) -> None:
        execution_id = self.any_execution(data)
        outcome = Outcome.SNOOZED if snoozed else Outcome.RELEASED
        unknown = unknown and not snoozed
        if current := self.open_execution(execution_id):
            self.close(execution_id, outcome, "why")
            job = current[1]
            job.key = None if job.ready_only else job.key
            since = job.unknown_since if job.unknown_since is not None or not unknown else self.now
            ran = not unknown and current[0].started
            since = None if snoozed or ran else since  # its task has run, so a worker knows it
            target = State.CANCELLED if job.asked else State.READY
            job.counted.remove(execution_id)
            wanted = TransitionResult(
                TransitionStatus.DONE,
                self.move(job, target, delay, attempt=max(job.attempt - 1, 0), unknown_since=since),
            )
        else:
            wanted = self.lost(execution_id, outcome)
        releases = [Released(self.key(execution_id), None if delay is None else delay * TICK, "why")]
        if snoozed:
            done = completions.snooze(self.engine, releases)
        else:
            done = completions.release(self.engine, releases, unknown=unknown)
        assert done == {execution_id: wanted}

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def end_cancelled(self, data: st.DataObject) -> None:
        execution_id = self.any_execution(data)
        wanted = self.lost(execution_id, Outcome.CANCELLED)
        if current := self.open_execution(execution_id):
            self.close(execution_id, Outcome.CANCELLED, "obeyed")
            self.move(current[1], State.CANCELLED)
            wanted = TransitionResult(TransitionStatus.DONE, State.CANCELLED)
        done = completions.end_cancelled(self.engine, [Cancelled(self.key(execution_id), None, 0.0, "obeyed")])
        assert done == {execution_id: wanted}

    @rule(data=st.data(), worker_ids=st.lists(WORKERS, unique=True), lease=st.integers(0, 2))
    def extend(self, data: st.DataObject, worker_ids: list[int], lease: int) -> None:
        mine = {
            each.id: each for each in self.executions.values() if each.worker_id in worker_ids and each.outcome is None
        }
        first_id = data.draw(st.sampled_from([0, *mine]))
        started = data.draw(st.lists(st.sampled_from(sorted(self.executions)), unique=True)) if self.executions else []
        answers = leases.extend(self.engine, worker_ids, lease_seconds=(lease + 0.5) * TICK)
        assert answers == dict.fromkeys(worker_ids, Heartbeat(has_requests=False, is_extended=True))
        self.leases.update(dict.fromkeys(worker_ids, self.now + lease))
        leases.note_started(self.engine, worker_ids, started)
        for each in mine.values():
            each.started |= each.id in started
        mine = {each.id: each for each in mine.values() if each.id >= first_id}
        asked = [
            (each.worker_id, each.id)
            for each in mine.values()
            if (current := self.open_execution(each.id)) and current[1].asked
        ]
        assert sorted(leases.cancel_requests(self.engine, worker_ids, first_id=first_id)) == sorted(asked)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), worker_id=WORKERS)
    def set_aside(self, data: st.DataObject, worker_id: int) -> None:
        job = self.jobs.get(self.any_job(data))
        job_id = job.id if job else 0
        done = claims.set_aside(self.engine, job_id, worker_id=worker_id, exception_class="X", error="cannot be read")
        assert (done is not None) == (job is not None and job.state is State.READY)
        if done and job:
            [execution_id] = {*helpers.rows_of(self.engine, "pgqueue_execution")} - {*self.executions}
            self.executions[execution_id] = Execution(
                execution_id, job_id, job.attempt, worker_id, self.now, False, Outcome.RELEASED, "cannot be read"
            )
            self.handed_out.append(execution_id)  # no worker has it, but the rules can use its id
            self.move(job, State.DEAD)

    @rule(worker_id=WORKERS, lanes=st.permutations(LANES), count=st.integers(1, 3))
    def read(self, worker_id: int, lanes: list[Lane], count: int) -> None:
        """Read what a worker reads before it claims, and what a supervisor reads when a process has died."""
        ready = [job for job in self.jobs.values() if job.state is State.READY]
        waiting = claims.scan_lanes(self.engine).due_in
        assert {*waiting} == {job.lane for job in ready}
        for lane, seconds in waiting.items():
            first: float = min(job.due - self.now for job in ready if job.lane == lane)
            if self.is_paused(Pausable.QUEUE, lane.queue_name):
                first = max(first, self.pauses[Pausable.QUEUE, lane.queue_name] - self.now)
            assert seconds == first or abs(seconds / TICK - first) < 0.5  # infinity minus infinity is not a number
        lanes = lanes[:count]
        due = [job.id for job in ready if job.lane in lanes and job.due <= self.now]
        next_in_line = claims.next_in_line(self.engine, dict.fromkeys(lanes, Cursor()), skipped_ids=due[1:])
        assert next_in_line == (due[0] if due else None)
        wanted = [
            (each.id, each.job_id, job.task_name, job.attempt, job.crashes, each.started)
            for each in sorted(self.executions.values(), key=lambda each: each.id)
            for job in [self.jobs.get(each.job_id)]
            if each.worker_id == worker_id and each.outcome is None and job is not None
        ]
        found = leases.open_executions(self.engine, worker_id)
        assert [
            (each.execution_id, each.job_id, each.task_name, each.attempt, each.crashes, each.started) for each in found
        ] == wanted

    # ------------------------------------------------------------------ time, and work for other workers

    @rule(ticks=st.integers(1, 3))
    def time_goes_on(self, ticks: int) -> None:
        self.now += ticks
        clock.shift_seconds = self.now * TICK

    @rule(worker_id=WORKERS)
    def expire(self, worker_id: int) -> None:
        late = [
            job
            for job in self.jobs.values()
            if job.state is State.READY and job.expires is not None and job.expires <= self.now
        ]
        done = expiry.expire(self.engine, worker_id=worker_id, error="too late")
        assert sorted(done) == sorted((job.id, job.task_name) for job in late)
        rows = helpers.rows_of(self.engine, "pgqueue_execution")
        for execution_id in {*rows} - {*self.executions}:
            job = self.jobs[rows[execution_id]["job_id"]]
            self.executions[execution_id] = Execution(
                execution_id, job.id, job.attempt, worker_id, self.now, False, Outcome.CANCELLED, "too late"
            )
            self.move(job, State.CANCELLED)
        assert all(job.state is State.CANCELLED for job in late)

    @rule(delay=st.sampled_from([0, 1, None]))
    def rescue(self, delay: int | None) -> None:
        wanted = {}
        for execution in [
            execution
            for execution in self.executions.values()
            if execution.outcome is None and not self.is_orphan(execution)
            if max(execution.lease, self.leases.get(execution.worker_id, 0)) < self.now
        ]:
            job = self.jobs[execution.job_id]
            own = None if execution.attempt >= job.max_attempts else delay
            self.close(execution.id, Outcome.CRASHED, "its worker was lost")
            since = None if execution.started else job.unknown_since
            result = self.end(job, own, crashes=job.crashes + execution.started, unknown_since=since)
            wanted[execution.id] = TransitionResult(TransitionStatus.DONE, result)
        done = rescues.rescue(
            self.engine,
            lambda lost: None if delay is None or lost.attempt >= lost.max_attempts else delay * TICK,
            error="its worker was lost",
        )
        assert {lost.execution_id: result for lost, result in done} == wanted

    @rule(state=st.sampled_from(sorted(FINISHED)), retention=st.integers(0, 3), task_name=TASKS,
          alone=st.booleans(), limit=st.integers(1, 5))  # fmt: skip
    def prune(self, state: State, retention: int, task_name: str, alone: bool, limit: int) -> None:
        """Prune the jobs of one task, or of all other tasks."""
        old = {
            job.id: job.finished
            for job in self.jobs.values()
            if job.state is state and job.finished is not None and job.finished <= self.now - retention
            if (job.task_name == task_name) == alone
        }
        which: dict[str, Any] = {"task_name": task_name} if alone else {"other_task_names": [task_name]}
        assert pruning.prunable(self.engine, state, retention * TICK, **which) == (len(old), 0)
        pruned = pruning.prune(self.engine, state, retention * TICK, **which, limit=limit)
        assert pruned.removed == len(old) or (pruned.is_full and pruned.removed <= limit)
        assert pruned.locked == 0
        gone = {*old} - {*helpers.rows_of(self.engine, "pgqueue_job")}
        assert len(gone) == pruned.removed
        assert all(old[removed] <= old[kept] for removed in gone for kept in {*old} - gone), (
            "the oldest jobs must go first"
        )
        for job_id in gone:
            self.forget(job_id)

    # ------------------------------------------------------------------ invariants

    @invariant()
    def tables_match_the_model(self) -> None:
        self.steps += 1
        if hasattr(self, "start"):
            jobs = self.engine.execute(JOBS, {"start": self.start}).fetchall()
            assert jobs == [self.jobs[job_id].row() for job_id in sorted(self.jobs)]
            executions = self.engine.execute(EXECUTIONS, {"start": self.start}).fetchall()
            assert executions == [self.executions[execution_id].row() for execution_id in sorted(self.executions)]

    @invariant()
    def invariants_are_met(self) -> None:
        for job in self.jobs.values():
            counted = [self.executions[execution_id] for execution_id in job.counted]
            assert job.attempt == len(counted)
            assert all(execution.outcome in COUNTED for execution in counted)
        assert self.engine.execute(WRONG).fetchall() == []


@pytest.fixture
def examples(request) -> int:
    """Return the number of histories: that of the option, or three quarters of the examples of the profile."""
    asked: int = request.config.getoption("--stateful-examples")
    return asked or settings().max_examples * 3 // 4


@pytest.mark.quick
@pytest.mark.promise("tables-match-model")
@pytest.mark.timeout(400)  # hundreds of histories, on a machine that may be busy
def test_lifecycle_any_order_of_transitions_matches_model(engine, examples):
    Queue.engine = engine
    run_state_machine_as_test(Queue, settings=settings(max_examples=examples, stateful_step_count=25))
