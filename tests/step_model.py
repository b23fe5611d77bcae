"""What durable steps, events and compensations have to do, in plain Python: the model of `test_stateful_steps.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from django_pgqueue.states import FINISHED, State

EVENT = "go"
TICKS = "floor(extract(epoch FROM {} - %(start)s) / 1000)::int"
JOBS = f"""
SELECT id, queue_name, state, {TICKS.format("run_after")}, {TICKS.format("expires_at")},
       {TICKS.format("finished_at")}, cancel_requested_at IS NOT NULL, unique_key
FROM pgqueue_job ORDER BY id
"""
STEPS = """
SELECT job_id, name, finished_at IS NOT NULL, event_key, event_id, tries, compensation IS NOT NULL, compensation_id
FROM pgqueue_step ORDER BY job_id, name
"""


@dataclass
class Step:
    """A row of pgqueue_step. Steps are ordered by their names."""

    is_finished: bool
    key: str | None = None
    """The key of the event that a wait is for."""
    event_id: int | None = None
    tries: int = 0
    compensates: bool = False
    """Whether it has a compensation that is neither added nor forgotten."""
    compensation_id: int | None = None
    wake: int | None = None
    """When the first suspension by it ends. None: never."""

    def row(self) -> tuple[Any, ...]:
        return self.is_finished, self.key, self.event_id, self.tries, self.compensates, self.compensation_id


@dataclass
class Job:
    """A row of pgqueue_job. All times are ticks."""

    id: int
    due: int
    key: str | None = None
    """The unique key."""
    expires: int | None = None
    undoes: int | None = None
    """The job that a compensation is for."""
    state: State = State.READY
    finished: int | None = None
    asked: bool = False
    suspended_by: str | None = None
    """The step that suspends the job. None: the job is ready for another reason."""
    steps: dict[str, Step] = field(default_factory=dict)

    def row(self) -> tuple[Any, ...]:
        times = self.due, self.expires, self.finished
        return self.id, "default" if self.undoes is None else "undo", self.state.value, *times, self.asked, self.key

    def has_compensations(self) -> bool:
        return any(step.compensates for step in self.steps.values())

    def received(self) -> set[int | None]:
        return {step.event_id for step in self.steps.values()}


class Model:
    """All rows, and what each transition does to them."""

    def __init__(self) -> None:
        self.now = 0
        self.jobs: dict[int, Job] = {}
        self.events: dict[int, str] = {}
        """The key of each event."""

    def move(self, job: Job, state: State, **changes: Any) -> State:
        job.state, job.finished, job.suspended_by = state, self.now if state in FINISHED else None, None
        for name, value in changes.items():
            setattr(job, name, value)
        return state

    def holder(self, key: str | None) -> Job | None:
        jobs = (job for job in self.jobs.values() if job.state in (State.READY, State.RUNNING))
        return next((job for job in jobs if key is not None and job.key == key), None)

    def suspend(self, job: Job, name: str, step: Step, due: int) -> State:
        """Suspend a job by a step. The waits that its code has not called again have lost their events."""
        for other in job.steps.values():
            other.key = other.key if other.is_finished else None
        job.steps[name] = step
        state = State.CANCELLED if job.asked else State.READY
        return self.move(job, state, due=due, expires=None, suspended_by=name)

    # ------------------------------------------------------------------ events

    def next_event(self, job: Job, key: str) -> int | None:
        """Return the event that a wait of this job receives."""
        return min(
            (event_id for event_id, of in self.events.items() if of == key and event_id not in job.received()),
            default=None,
        )

    def sleepers(self, key: str) -> list[Job]:
        """Return the jobs that an event wakes: it is what suspends them."""
        return [
            job
            for job in self.jobs.values()
            if job.state is State.READY and job.due > self.now
            if job.suspended_by is not None and job.steps[job.suspended_by].key == key
        ]

    def missed(self) -> list[Job]:
        """Return the jobs that wait although their event has come."""
        missed = {
            job.id
            for key in self.events.values()
            for job in self.sleepers(key)
            if self.next_event(job, key) is not None
        }
        return [self.jobs[job_id] for job_id in sorted(missed)]

    def wake(self, jobs: Iterable[Job]) -> list[int]:
        woken = [job.id for job in jobs]
        for job_id in woken:
            self.jobs[job_id].due = self.now
        return sorted(woken)

    # ------------------------------------------------------------------ compensations

    def is_unfinished(self, job_id: int | None) -> bool:
        job = self.jobs.get(job_id or 0)
        return job is not None and job.state is not State.SUCCEEDED

    def next_compensations(self, job_ids: Collection[int]) -> dict[int, str]:
        """Forget the compensations of jobs that have succeeded. Return the steps of the others that are undone now."""
        undone = {}
        for job in (self.jobs[job_id] for job_id in sorted(job_ids) if job_id in self.jobs):
            if job.state is State.SUCCEEDED:
                for step in job.steps.values():
                    step.compensates = False
            pending = sorted(name for name, step in job.steps.items() if step.compensates)
            waits = any(self.is_unfinished(step.compensation_id) for step in job.steps.values())
            if job.state in FINISHED and pending and not waits:
                undone[job.id] = pending[-1]
        return undone

    def add_compensation(self, job: Job, name: str, undo_id: int) -> None:
        job.steps[name].compensates, job.steps[name].compensation_id = False, undo_id
        self.jobs[undo_id] = Job(undo_id, self.now, undoes=job.id)

    # ------------------------------------------------------------------ operators

    def can_be_retried(self, job: Job) -> bool:
        undone = [step for step in job.steps.values() if step.compensation_id is not None]
        is_undoing = job.has_compensations() or any(self.is_unfinished(step.compensation_id) for step in undone)
        return job.state in FINISHED and self.holder(job.key) is None and not (undone and is_undoing)

    def retry(self, job: Job) -> None:
        kept = {} if job.state is State.SUCCEEDED else job.steps
        steps = {name: step for name, step in kept.items() if step.compensation_id is None}
        self.move(job, State.READY, due=self.now, asked=False, expires=None, steps=steps)

    def can_be_deleted(self, job: Job) -> bool:
        """Return whether an operator can delete the job, who thereby ends the wait of other compensations for it."""
        return job.state in FINISHED and not job.has_compensations()

    def can_be_removed(self, job: Job) -> bool:
        """Return whether the job is removed at its retention."""
        return self.can_be_deleted(job) and not self.delays_compensations(job)

    def delays_compensations(self, job: Job) -> bool:
        """Return whether other compensations wait for this one, which has to be retried or deleted."""
        undone = [
            each for each in self.jobs.values() if job.id in (step.compensation_id for step in each.steps.values())
        ]
        return job.state is not State.SUCCEEDED and any(each.has_compensations() for each in undone)

    def remove(self, job_ids: Iterable[int]) -> None:
        for job_id in job_ids:
            del self.jobs[job_id]
