"""What workflows and batches have to do, in plain Python: the model of `test_stateful_workflows.py`.

The model looks at one job after another, and has no pages, no locks and no snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from django_pgqueue.states import FINISHED, State

UNFINISHED = {State.WAITING, State.READY, State.RUNNING}
FAILED = {State.DEAD, State.CANCELLED}
TICKS = "floor(extract(epoch FROM {} - %(start)s) / 1000)::int"
JOBS = f"""
SELECT id, batch_id, state, {TICKS.format("run_after")}, {TICKS.format("expires_at")}, {TICKS.format("finished_at")},
       cancel_requested_at IS NOT NULL
FROM pgqueue_job WHERE queue_name = 'default' ORDER BY id
"""
EDGES = "SELECT job_id, needs_id, policy, has_cancelled IS NOT NULL FROM pgqueue_dependency ORDER BY job_id, needs_id"
BATCHES = """
SELECT id, closed_at IS NOT NULL, failed_at IS NOT NULL, completed_at IS NOT NULL, succeeded_at IS NOT NULL
FROM pgqueue_batch ORDER BY id
"""
CALLBACKS = "SELECT arguments -> 'args' FROM pgqueue_job WHERE queue_name = 'callbacks' ORDER BY id"


@dataclass
class Job:
    """A row of pgqueue_job. All times are ticks."""

    id: int
    batch_id: int
    is_node: bool
    state: State
    due: int
    expires: int | None = None
    finished: int | None = None
    asked: bool = False
    ran_beside_retry: bool = False
    """Whether it was running when a job that it depends on was retried: then it can be ready before that ends."""

    def row(self) -> tuple[Any, ...]:
        return self.id, self.batch_id, self.state.value, self.due, self.expires, self.finished, self.asked


@dataclass
class Edge:
    """A row of pgqueue_dependency."""

    policy: str
    has_cancelled: bool = False


@dataclass
class Batch:
    """A row of pgqueue_batch. `label` is in the arguments of its callbacks."""

    id: int
    parent_id: int | None
    label: str
    is_closed: bool
    ends: set[str] = field(default_factory=set)
    """"failure", "complete" and "success", as far as they are recorded."""
    lost_failed: bool = False
    """Whether a dead or cancelled job was removed."""

    def row(self) -> tuple[Any, ...]:
        return self.id, self.is_closed, *(name in self.ends for name in ("failure", "complete", "success"))


class Model:
    """All rows, and what each transition does to them."""

    def __init__(self) -> None:
        self.now = 0
        self.jobs: dict[int, Job] = {}
        self.edges: dict[tuple[int, int], Edge] = {}
        self.batches: dict[int, Batch] = {}
        self.callbacks: list[list[str]] = []
        """Label and name of each callback that was added."""

    # ------------------------------------------------------------------ jobs

    def move(self, job: Job, state: State, **changes: Any) -> State:
        job.state, job.finished = state, self.now if state in FINISHED else None
        for name, value in changes.items():
            setattr(job, name, value)
        return state

    def state(self, job_id: int) -> State | None:
        job = self.jobs.get(job_id)
        return None if job is None else job.state

    def edges_of(self, job_id: int) -> list[tuple[int, Edge]]:
        return [(needs_id, edge) for (dependent, needs_id), edge in self.edges.items() if dependent == job_id]

    def dependents(self, job_ids: Collection[int]) -> set[int]:
        waiting = {job_id for job_id, needs_id in self.edges if needs_id in job_ids}
        return {job_id for job_id in waiting if self.state(job_id) is State.WAITING}

    def fails(self, needs_id: int, edge: Edge) -> bool:
        """Return whether this dependency cancels its dependent."""
        state = self.state(needs_id)
        return edge.policy != "ignore" if state is None else state in FAILED and edge.policy == "cancel"

    def delays(self, needs_id: int, edge: Edge) -> bool:
        """Return whether the dependent has to wait for this dependency."""
        state = self.state(needs_id)
        return state in UNFINISHED or (state in FAILED and edge.policy == "block")

    def has_to_wait(self, job_id: int) -> bool:
        edges = self.edges_of(job_id)
        return any(self.delays(*edge) for edge in edges) and not any(self.fails(*edge) for edge in edges)

    # ------------------------------------------------------------------ workflows

    def missed(self) -> set[int]:
        """Return the waiting jobs that a sweep has to advance."""
        return {job.id for job in self.jobs.values() if job.state is State.WAITING and not self.has_to_wait(job.id)}

    def advance(self, ended: Collection[int], found: Collection[int] = ()) -> dict[int, State]:
        """Advance the dependents of ended jobs, and of those that this cancels. Return the new states."""
        advanced = self.decide(found)
        pending = {*ended, *(job_id for job_id, state in advanced.items() if state is State.CANCELLED)}
        while pending:
            chosen = set()
            failing = set()
            for job_id in self.dependents(pending):
                edges = self.edges_of(job_id)
                if any(needs_id in pending and self.fails(needs_id, edge) for needs_id, edge in edges):
                    failing.add(job_id)
                elif not any(self.delays(*each) for each in edges):
                    chosen.add(job_id)
            while failing:
                chosen |= failing
                failing = {
                    job_id
                    for job_id in self.dependents(failing) - chosen
                    if any(needs_id in failing and edge.policy == "cancel" for needs_id, edge in self.edges_of(job_id))
                }
            moved = self.decide(chosen)
            pending = {job_id for job_id, state in moved.items() if state is State.CANCELLED}
            advanced |= moved
        return advanced

    def decide(self, job_ids: Collection[int]) -> dict[int, State]:
        """Cancel those of these waiting jobs that have a failed dependency, and make the others ready if they can be.

        In the order of ids, a job comes after those that it depends on.
        """
        moved, made_ready = {}, []
        for job in (self.jobs[job_id] for job_id in sorted(job_ids)):
            edges = self.edges_of(job.id)
            failing = [edge for needs_id, edge in edges if self.fails(needs_id, edge)]
            if failing:
                for edge in failing:
                    edge.has_cancelled = True
                moved[job.id] = self.move(job, State.CANCELLED)
            elif not any(self.delays(*edge) for edge in edges) and not any(
                needs_id in moved for needs_id, edge in edges
            ):
                made_ready.append(job)
        for job in made_ready:
            moved[job.id] = self.move(job, State.READY, due=max(job.due, self.now))
        return moved

    def restore(self, retried: Collection[int]) -> None:
        """Make the jobs wait again that the ends of retried jobs had cancelled, and those that would run too early.

        Ready jobs would: retried ones with an unfinished dependency, and the dependents of all of these jobs.
        """
        restored, found = set(retried), {*retried}
        while found:
            found = {
                job_id
                for (job_id, needs_id), edge in self.edges.items()
                if needs_id in found and edge.has_cancelled and self.state(job_id) is State.CANCELLED
            } - restored
            restored |= found
        for job_id in restored:
            for _, edge in self.edges_of(job_id):
                edge.has_cancelled = False
        for job_id in {job_id for job_id, needs_id in self.edges if needs_id in restored}:
            if self.state(job_id) is State.RUNNING:
                self.jobs[job_id].ran_beside_retry = True
        early = {
            job_id for job_id, needs_id in self.edges if needs_id in restored and self.state(job_id) is State.READY
        }
        moved = [
            job_id
            for job_id in restored | early
            if self.state(job_id) is State.CANCELLED
            or any(needs_id in restored or self.state(needs_id) in UNFINISHED for needs_id, _ in self.edges_of(job_id))
        ]
        for job_id in moved:
            job = self.jobs[job_id]
            job.ran_beside_retry = False
            self.move(job, State.WAITING, asked=False, expires=job.expires if job.state is State.READY else None)
        if State.CANCELLED in self.decide(moved).values():
            self.decide([job_id for job_id in moved if self.state(job_id) is State.WAITING])

    def postpone(self, job_id: int) -> bool:
        """Make a ready job wait again that has an unfinished dependency. Return whether it waits."""
        waits = any(self.state(needs_id) in UNFINISHED for needs_id, _ in self.edges_of(job_id))
        if waits and self.state(job_id) is State.READY:
            self.move(self.jobs[job_id], State.WAITING, ran_beside_retry=False)
        return self.state(job_id) is State.WAITING and waits

    def can_be_removed(self, job: Job) -> bool:
        """Return whether the job has ended and no other job of the workflow can need it."""
        needing = {State.SUCCEEDED: FAILED, State.CANCELLED: {State.DEAD}}.get(job.state, set())
        states = UNFINISHED | needing
        others = [other for other in self.jobs.values() if other.batch_id == job.batch_id and other.state in states]
        return job.state in FINISHED and not (job.is_node and others)

    def remove(self, job_ids: Iterable[int]) -> None:
        """Remove jobs as DELETE and PRUNE do, with the edges to what they depend on."""
        for job_id in job_ids:
            job = self.jobs.pop(job_id)
            self.batches[job.batch_id].lost_failed |= job.state in FAILED
            self.edges = {edge: row for edge, row in self.edges.items() if edge[0] != job_id}

    # ------------------------------------------------------------------ batches

    def events(self, batch: Batch) -> set[str]:
        """Return the ends that are to be recorded now."""
        children = [each for each in self.batches.values() if each.parent_id == batch.id]
        states = {job.state for job in self.jobs.values() if job.batch_id == batch.id}
        unfinished = states & UNFINISHED or any("complete" not in child.ends for child in children)
        failed = (
            batch.lost_failed
            or states & FAILED
            or any("complete" in child.ends and "success" not in child.ends for child in children)
        )
        is_over = batch.is_closed and not unfinished
        reached = {"failure": failed, "complete": is_over, "success": is_over and not failed}
        return {name for name, is_reached in reached.items() if is_reached} - batch.ends

    def settle(self, batch_ids: Collection[int]) -> None:
        """Record the ends of these batches and then those of their parents, and add the callbacks."""
        waiting = set(batch_ids)
        while waiting:
            events = {batch_id: self.events(self.batches[batch_id]) for batch_id in sorted(waiting)}
            waiting = set()
            for batch in (self.batches[batch_id] for batch_id, names in events.items() if names):
                names = events[batch.id]
                batch.ends |= names
                self.callbacks += [[batch.label, name] for name in ("failure", "complete", "success") if name in names]
                if names & {"complete", "success"} and batch.parent_id is not None:
                    waiting.add(batch.parent_id)
