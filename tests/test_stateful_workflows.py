"""Workflows and batches against a model: after each random transition, all rows must match the model.

A Hypothesis state machine enqueues random graphs with every policy, ends their jobs in every way, and lets operators
cancel, retry and delete. After the end of a job, the worker advances the dependents and looks at the batches, or it is
killed before that and leaves it to the sweeps. `workflow_model` says what each transition has to do. In addition, the
machine checks what workflows promise: after a sweep, no job waits whose dependencies are over, and each callback was
added at most once, and exactly once if its time has come.

CI runs 80 examples. For a long run, use `pytest tests/test_stateful_workflows.py --stateful-examples 10000`.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from hypothesis.stateful import run_state_machine_as_test as run_machine

from django_pgqueue.ends import batches as ends
from django_pgqueue.lifecycle import batches, graphs, operator, orphans
from django_pgqueue.lifecycle.enqueueing import NewJob
from django_pgqueue.lifecycle.types import TransitionStatus
from django_pgqueue.states import FINISHED, State
from tests import helpers
from tests.histories import TICK, History, action, end_attempt, state_after
from tests.workflow_model import BATCHES, CALLBACKS, EDGES, JOBS, UNFINISHED, Batch, Edge, Job, Model

pytestmark = pytest.mark.slow

SHAPES = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3), min_size=1, max_size=3),
        st.sampled_from(["cancel", "cancel", "ignore", "block"]),
        st.sampled_from([None, None, None, 2]),
    ),
    min_size=2,
    max_size=5,
)
"""The nodes of a workflow: the places of their dependencies, their policy, and the ticks until they expire."""
MOST = 8
"""Jobs. With more of them, transitions would rarely meet on one job."""
ENDINGS = st.sampled_from(["succeed", "succeed", "succeed", "die", "die", "fail", "release", "stop"])


class Workflows(History):
    """The rules. `self.executions` has the execution of each claim, and whether it is open."""

    model: Model

    @initialize(shape=SHAPES)
    def begin(self, shape: list[tuple[set[int], str, int | None]]) -> None:
        self.begin_anew(Model(), "dependency", "batch", "batch_removal", "step")
        self.add_workflow(shape, False)
        self.claim(2, 2)

    # ------------------------------------------------------------------ the application

    @action(2, shape=SHAPES, is_nested=st.booleans())
    def add_workflow(self, shape: list[tuple[set[int], str, int | None]], is_nested: bool) -> None:
        """Enqueue a workflow, as a batch that is closed, or a part of the last batch that is not complete."""
        if len(self.model.jobs) > MOST:
            return
        with self.engine.transaction():
            batch = self.add_batch(self.last_batch() if is_nested else None, is_closed=True)
            ids = graphs.draw_ids(self.engine, len(shape))
            needs = [sorted(ids[each] for each in places if each < place) for place, (places, _, _) in enumerate(shape)]
            row = {"task_name": helpers.NOOP, "queue_name": "default", "priority": 0, "max_attempts": 10}
            rows = [{**row, "delay_seconds": 0.0, "batch_id": batch.id, "expires_seconds": ticks and ticks * TICK}
                    for _, _, ticks in shape]  # fmt: skip
            nodes = [NewJob(each, helpers.NO_ARGUMENTS) for each in rows]
            graphs.add_nodes(self.engine, ids, [bool(each) for each in needs], nodes)
            edges = [(job_id, each, shape[place][1]) for place, job_id in enumerate(ids) for each in needs[place]]
            graphs.add_dependencies(self.engine, edges)
            batches.close_batch(self.engine, batch.id)
        for job_id, needed, (_, _, ticks) in zip(ids, needs, shape, strict=True):
            state, now = State.WAITING if needed else State.READY, self.model.now
            self.model.jobs[job_id] = Job(job_id, batch.id, True, state, now, ticks and now + ticks)
        self.model.edges |= {(job_id, needs_id): Edge(policy) for job_id, needs_id, policy in edges}

    def add_batch(self, parent: Batch | None, *, is_closed: bool) -> Batch:
        label = f"batch {len(self.model.batches)}"
        row = {"task_name": helpers.NOOP, "queue_name": "callbacks", "priority": 0, "max_attempts": 3}
        calls = {
            f"on_{name}": json.dumps({**row, "delay_seconds": 0, "arguments": {"args": [label, name], "kwargs": {}}})
            for name in ("failure", "complete", "success")
        }
        parent_id = None if parent is None else parent.id
        assert parent_id is None or batches.join_batch(self.engine, parent_id) is False
        made = batches.create_batch(self.engine, description="", parent_id=parent_id, callbacks=calls)
        self.model.batches[made.batch_id] = Batch(made.batch_id, parent_id, label, is_closed)
        return self.model.batches[made.batch_id]

    def last_batch(self) -> Batch | None:
        """Return the last batch that takes jobs."""
        return next((each for each in [*self.model.batches.values()][::-1] if "complete" not in each.ends), None)

    @action(1, opens=st.sampled_from([None, None, False, True]), closes=st.booleans())
    def add_job(self, opens: bool | None, closes: bool) -> None:
        """Add a plain job to the last batch, or to a new one (True: a nested one), and close it."""
        if len(self.model.jobs) > MOST:
            return
        batch = self.last_batch()
        if opens is not None:
            batch = self.add_batch(batch if opens else None, is_closed=False)
        if batch is not None:
            [job_id] = helpers.make_jobs(self.engine, batch_id=batch.id)
            self.model.jobs[job_id] = Job(job_id, batch.id, False, State.READY, self.model.now)
            if closes:
                assert batches.close_batch(self.engine, batch.id) is not batch.is_closed
                batch.is_closed = True

    # ------------------------------------------------------------------ the worker

    @action(4, count=st.integers(1, 4), lease=st.integers(0, 2))
    def claim(self, count: int, lease: int) -> None:
        due = {job.id for job in self.model.jobs.values() if job.state is State.READY and job.due <= self.model.now}
        claimed = helpers.claim_all(self.engine, limit=count, lease_seconds=(lease + 0.5) * TICK)
        assert {each.job_id for each in claimed} <= due
        assert len(claimed) == min(count, len(due))
        for each in claimed:
            assert bool(each.in_graph) == self.model.jobs[each.job_id].is_node
            self.model.move(self.model.jobs[each.job_id], State.RUNNING)
            self.keys[each.execution_id] = each.key, each.job_id
            self.open[each.execution_id] = self.model.now + lease

    @action(6, ending=ENDINGS, is_killed=st.booleans())
    def end(self, ending: str, is_killed: bool) -> None:
        """End an execution, open or not. Then the worker looks at the dependents and the batch, or it is killed."""
        execution_id = self.data.draw(
            st.sampled_from([*self.open, *self.open, *sorted(self.keys)[-2:]]), label="execution"
        )
        key, job_id = self.keys[execution_id]
        result, job = end_attempt(self.engine, key, ending, TICK), self.model.jobs.get(job_id)
        is_open = self.open.pop(execution_id, None) is not None and job is not None
        assert (result.status is TransitionStatus.DONE) == is_open
        if not is_open or job is None:
            return
        state = state_after(ending, is_asked=job.asked)
        self.model.move(job, state, due=self.model.now + 1 if (ending, state) == ("fail", State.READY) else job.due)
        if not is_killed and ending == "release" and state is State.READY:
            waits = self.model.postpone(job_id)
            assert graphs.postpone(self.engine, [job_id]) == [job_id] * waits
        if not is_killed and state in FINISHED:
            advanced = self.advance([job_id])
            self.settle({job.batch_id, *(self.model.jobs[each].batch_id for each in advanced)})

    def advance(self, ended: list[int], found: list[int] | None = None) -> dict[int, State]:
        wanted = self.model.advance(ended, found or [])
        advanced = graphs.advance(self.engine, ended, found or [])
        assert sorted((job.job_id, job.state) for job in advanced.jobs) == sorted(wanted.items())
        assert (advanced.locked_ids, advanced.refused) == (set(), [])
        return wanted

    def settle(self, batch_ids: set[int]) -> None:
        before = len(self.model.callbacks)
        self.model.settle(batch_ids)
        settled = ends.settle(self.engine, batch_ids)
        assert (settled.locked, settled.refused) == (set(), [])
        assert settled.changed == len(self.model.callbacks) - before

    # ------------------------------------------------------------------ operators

    def any_jobs(self, states: Collection[State]) -> list[int]:
        """Return up to three jobs in these states, and perhaps one that is in another state or does not exist."""
        ids = sorted(job.id for job in self.model.jobs.values() if job.state in states)
        found = self.data.draw(st.lists(st.sampled_from(ids or [0]), min_size=1, max_size=3, unique=True), label="jobs")
        other = self.data.draw(st.sampled_from([None, None, 0, *sorted(self.model.jobs)]), label="other")
        return found if other is None or other in found else [*found, other]

    @action(3, how=st.sampled_from(["cancel", "delete", "delete", "delete by SQL"]))
    def operate(self, how: str) -> None:
        if how == "cancel":
            self.cancel(self.any_jobs(UNFINISHED))
        elif how == "delete":
            self.delete(self.any_jobs(FINISHED))
        else:
            self.delete_by_sql(self.any_jobs([*State])[0])

    def cancel(self, ids: list[int]) -> None:
        wanted, advanced = {}, list[graphs.AdvancedJob]()
        for job in (self.model.jobs[job_id] for job_id in ids if job_id in self.model.jobs):
            if job.state in (State.READY, State.WAITING):
                wanted[job.id] = self.model.move(job, State.CANCELLED, asked=True)
            elif job.state is State.RUNNING and not job.asked:
                wanted[job.id] = self.model.move(job, State.RUNNING, asked=True)
        changed = [job_id for job_id, state in wanted.items() if state is State.CANCELLED]
        moved = self.model.advance(changed)
        assert operator.cancel(self.engine, ids, advanced=advanced) == wanted
        assert sorted((job.job_id, job.state) for job in advanced) == sorted(moved.items())

    @action(3)
    def retry(self) -> None:
        ids = [job_id for job_id in self.any_jobs(FINISHED) if self.model.state(job_id) in FINISHED]
        for job_id in ids:
            fresh = {"due": self.model.now, "asked": False, "expires": None}
            self.model.move(self.model.jobs[job_id], State.READY, **fresh)
        self.model.restore([job_id for job_id in ids if self.model.jobs[job_id].is_node])
        states = {job_id: self.model.jobs[job_id].state for job_id in ids}
        wanted = {job_id: state for job_id, state in states.items() if state is not State.CANCELLED}
        assert operator.retry(self.engine, ids) == wanted

    def delete(self, ids: list[int]) -> None:
        jobs = [self.model.jobs[job_id] for job_id in ids if self.model.state(job_id) in FINISHED]
        gone = {job.id: job.state for job in jobs if self.model.can_be_removed(job)}
        assert operator.delete(self.engine, ids) == gone
        self.model.remove(gone)

    def delete_by_sql(self, job_id: int) -> None:
        """Delete a row without the edges that name it."""
        self.engine.execute("DELETE FROM pgqueue_execution WHERE job_id = %s", [job_id])
        self.engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [job_id])
        self.model.jobs.pop(job_id, None)
        self.open = {each: lease for each, lease in self.open.items() if self.keys[each][1] != job_id}

    # ------------------------------------------------------------------ time, and the sweeps

    @action(2)
    def sweep(self) -> None:
        """Run all sweeps. Then no end may be left that nobody has noticed."""
        found = graphs.find_missed(self.engine)
        assert found.job_ids == sorted(self.model.missed())
        self.advance([], found.job_ids)
        assert self.model.missed() == set() == set(graphs.find_missed(self.engine).job_ids)
        unsettled = batches.unsettled_batches(self.engine, 0, 1000)
        assert unsettled == [batch.id for batch in self.model.batches.values() if "success" not in batch.ends]
        self.settle(set(unsettled))
        open_ends = [batch for batch in self.model.batches.values() if "success" not in batch.ends]
        assert not any(map(self.model.events, open_ends))
        lost = {edge for edge in self.model.edges if edge[0] not in self.model.jobs}
        assert orphans.prune_orphans(self.engine, "dependencies").removed == len(lost)
        self.model.edges = {edge: row for edge, row in self.model.edges.items() if edge not in lost}

    # ------------------------------------------------------------------ invariants

    @invariant()
    def tables_match_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        jobs = self.engine.execute(JOBS, {"start": self.start}).fetchall()
        assert jobs == [self.model.jobs[job_id].row() for job_id in sorted(self.model.jobs)]
        edges = [(*edge, row.policy, row.has_cancelled) for edge, row in sorted(self.model.edges.items())]
        assert self.engine.execute(EDGES).fetchall() == edges
        assert self.engine.execute(BATCHES).fetchall() == [batch.row() for batch in self.model.batches.values()]
        assert [row[0] for row in self.engine.execute(CALLBACKS)] == self.model.callbacks

    @invariant()
    def no_node_is_ready_before_its_dependencies_end(self) -> None:
        if hasattr(self, "model"):
            ready = [job for job in self.model.jobs.values() if job.state is State.READY and not job.ran_beside_retry]
            states = {self.model.state(needs_id) for job in ready for needs_id, _ in self.model.edges_of(job.id)}
            assert not states & UNFINISHED

    @invariant()
    def each_callback_is_added_once(self) -> None:
        if hasattr(self, "model"):
            added = [tuple(each) for each in self.model.callbacks]
            assert len(added) == len(set(added)) == sum(len(batch.ends) for batch in self.model.batches.values())


@pytest.mark.quick
@pytest.mark.promise("workflow-advance-once")
@pytest.mark.promise("batch-callbacks-once")
@pytest.mark.timeout(400)  # as test_stateful.py
def test_workflows_any_order_of_transitions_match_model(engine, request):
    Workflows.engine = engine
    examples = request.config.getoption("--stateful-examples") or settings().max_examples // 5
    run_machine(Workflows, settings=settings(max_examples=examples, stateful_step_count=60))
