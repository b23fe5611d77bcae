"""When a worker process advances the dependents of the nodes of workflows whose ends it has written."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgqueue import Batch, graph_ends, lifecycle
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import graphs
from django_pgqueue.lifecycle.graphs import Advanced, AdvancedJob
from django_pgqueue.states import State
from django_pgqueue.worker.completion import graph_checks
from django_pgqueue.worker.completion.batch_checks import NEVER
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.graph_checks import GraphChecks
from django_pgqueue.worker.execution.events import FOREGROUND
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.graph_duties import GraphDuties
from django_pgqueue.worker.maintenance.sweeps import UNUSED_SECONDS
from tests import helpers
from tests.concurrency.test_workflows import end_job

CONNECTION: Any = None
NOTHING = Advanced([], set(), [])


@pytest.fixture
def advanced(monkeypatch):
    """The calls of `advance()`, each with the ended and the locked jobs. `advanced.answers` are the results."""
    calls: Any = SimpleNamespace(jobs=[], answers=[])

    def advance(connection, ended_ids, after, *, found_ids):
        calls.jobs.append((set(ended_ids), set(found_ids)))
        answer = calls.answers.pop(0) if calls.answers else NOTHING
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(graph_ends, "advance", advance)
    return calls


def report(job_id: int = 7, ending: Ending = Ending.SUCCEEDED, *, in_graph: bool | None = True) -> Any:
    return SimpleNamespace(claimed=SimpleNamespace(job_id=job_id, in_graph=in_graph), ending=ending)


def test_postponed_node_waits_again(engine):
    [unfinished] = helpers.make_nodes(engine)
    [waits, starts] = helpers.make_nodes(engine, 2, needs=[unfinished])
    engine.execute("UPDATE pgqueue_job SET state = 'ready' WHERE id IN (%s, %s)", [waits, starts])
    engine.execute("DELETE FROM pgqueue_dependency WHERE job_id = %s", [starts])
    checks = GraphChecks()
    checks.note([report(waits, Ending.POSTPONED), report(starts, Ending.POSTPONED)])
    assert checks.due_in_seconds == 0.0
    checks.check(engine)
    assert checks.due_in_seconds == NEVER
    assert [helpers.state_of(engine, job_id) for job_id in (unfinished, waits, starts)] == ["ready", "waiting", "ready"]


def test_postponed_node_whose_dependency_ends_meanwhile_is_ready(engine, monkeypatch):
    """The end of the dependency commits between the two statements, and its worker has seen a ready dependent."""
    [unfinished] = helpers.make_nodes(engine)
    [waits] = helpers.make_nodes(engine, needs=[unfinished])
    engine.execute("UPDATE pgqueue_job SET state = 'ready' WHERE id = %s", [waits])
    postpone = graphs.postpone

    def postpone_and_end(connection, job_ids):
        postponed = postpone(connection, job_ids)
        engine.execute("UPDATE pgqueue_job SET state = 'succeeded', finished_at = now() WHERE id = %s", [unfinished])
        return postponed

    monkeypatch.setattr(graphs, "postpone", postpone_and_end)
    checks = GraphChecks()
    checks.note([report(waits, Ending.POSTPONED)])
    checks.check(engine)
    assert helpers.state_of(engine, waits) == "ready"


def test_job_outside_of_workflows_sends_no_statement(advanced):
    checks = GraphChecks()
    checks.note([report(in_graph=None), report(ending=Ending.SNOOZED), report(ending=Ending.RELEASED)])
    checks.check(CONNECTION)
    assert (checks.due_in_seconds, advanced.jobs) == (NEVER, [])


def test_every_end_is_advanced_at_once(advanced):
    checks = GraphChecks()
    for job_id in (7, 8):
        checks.note([report(job_id)])
        checks.check(CONNECTION)
    assert advanced.jobs == [({7}, set()), ({8}, set())]


def test_locked_job_is_advanced_again_for_some_seconds(advanced, monkeypatch):
    checks = GraphChecks()
    advanced.answers = [Advanced([], {9}, [])] * 3
    checks.note([report(7)])
    checks.check(CONNECTION)
    checks.check(CONNECTION)
    assert advanced.jobs == [({7}, set())]
    time.sleep(checks.due_in_seconds)
    checks.check(CONNECTION)
    assert advanced.jobs == [({7}, set()), (set(), {9})]
    monkeypatch.setattr(graph_checks, "LOCKED_SECONDS", 0.0)
    time.sleep(checks.due_in_seconds)
    checks.check(CONNECTION)
    assert checks.due_in_seconds == NEVER


def test_lost_connection_keeps_the_nodes(advanced):
    checks = GraphChecks()
    advanced.answers = [psycopg.OperationalError()]
    checks.note([report(7)])
    with pytest.raises(psycopg.OperationalError):
        checks.check(CONNECTION)
    checks.check(CONNECTION)
    assert advanced.jobs == [({7}, set())] * 2


def test_refused_statement_is_logged_and_left_to_the_sweep(advanced, caplog):
    checks = GraphChecks()
    advanced.answers = [
        psycopg.errors.InsufficientPrivilege("no"),
        Advanced([], set(), [lifecycle.Refused(8, OSError())]),
    ]
    with caplog.at_level(logging.WARNING):
        for job_id in (7, 8):
            checks.note([report(job_id)])
            checks.check(CONNECTION)
    assert [record.__dict__["event"] for record in caplog.records] == ["graph_checks_refused", "advance_refused"]
    assert checks.due_in_seconds == NEVER


@pytest.mark.parametrize("error", [psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled])
def test_locked_table_is_left_to_the_sweep(advanced, caplog, error):
    """The connection works, so the completions of other jobs must not wait."""
    checks = GraphChecks()
    advanced.answers = [error("no")]
    checks.note([report(7)])
    checks.check(CONNECTION)
    assert [record.__dict__["event"] for record in caplog.records] == ["graph_checks_refused"]
    assert checks.due_in_seconds == NEVER


@pytest.mark.promise("defect-locked-table-stops-completions")
@pytest.mark.slow
@pytest.mark.parametrize("table", ["pgqueue_dependency", "pgqueue_batch", "pgqueue_step"])
def test_locked_table_delays_completions_by_one_timeout(engine, second, table):
    """The node has a batch and compensations too, so the completer reads all three tables after the completion."""
    helpers.make_nodes(engine, batch_id=Batch().open().id)
    link: Any = SimpleNamespace(use=lambda: nullcontext(engine))
    claimed, completer = helpers.claim_one(engine), Completer(link)
    completer.hand_over(Report(claimed, Ending.SUCCEEDED, 0.0, 0.0, has_compensations=True))
    with second.transaction():
        second.execute(f"LOCK TABLE {table}")
        engine.execute("SET lock_timeout = '2s'")  # as in a worker
        began = time.monotonic()
        completer.tick()
        assert time.monotonic() - began < 15
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"
    assert (len(completer), completer.is_behind) == (0, False)


def test_batch_of_a_cancelled_dependent_is_checked(advanced):
    """The batch of a ready one is not: it cannot be over."""
    batches: list[int] = []
    checks = GraphChecks(FOREGROUND, batches.extend)
    jobs = [
        AdvancedJob(number, state, "noop", "default", number, is_due=True)
        for number, state in ((1, State.CANCELLED), (2, State.READY))
    ]
    advanced.answers = [Advanced(jobs, set(), [])]
    checks.note([report(7)])
    checks.check(CONNECTION)
    assert batches == [1]


def duties(engine) -> GraphDuties:
    link: Any = SimpleNamespace(use=lambda: nullcontext(engine))
    return GraphDuties(link, FOREGROUND)


@pytest.mark.promise("workflow-advance-found-by-sweep")
def test_sweep_advances_what_no_completion_has_advanced(engine, monkeypatch):
    """A page at a time. The dependency of the first job has ended, and that of the second one has no row."""
    monkeypatch.setattr(graphs, "FIND_LIMIT", 2)
    needs = helpers.make_nodes(engine, 3)
    waiting = [helpers.make_nodes(engine, needs=[needs_id])[0] for needs_id in needs]
    end_job(engine, helpers.claim_one(engine))
    engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [needs[2]])
    sweep = duties(engine).sweep
    assert isinstance(sweep(), float)
    assert [helpers.state_of(engine, job_id) for job_id in waiting] == ["ready", "waiting", "waiting"]
    assert sweep() is False
    assert [helpers.state_of(engine, job_id) for job_id in waiting] == ["ready", "waiting", "cancelled"]


def test_sweep_without_waiting_jobs_runs_once_a_minute(engine):
    assert duties(engine).sweep() == UNUSED_SECONDS
    helpers.make_nodes(engine, needs=helpers.make_nodes(engine))
    assert duties(engine).sweep() is False


def test_duty_removes_edges_of_jobs_deleted_by_sql(engine):
    helpers.make_nodes(engine, needs=helpers.make_nodes(engine))
    engine.execute("DELETE FROM pgqueue_job")
    assert duties(engine).prune() is False
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_dependency") == 0


def test_advance_pages_through_thousands_of_dependents(engine, monkeypatch):
    """A job cancels 25 dependents and theirs, 10 edges at a time. Another one makes 25 ready. One ignores it."""
    monkeypatch.setattr(graphs, "FIND_LIMIT", 10)
    dead, fine = helpers.make_nodes(engine, 2)
    cancelled = helpers.make_nodes(engine, 25, needs=[dead])
    last = helpers.make_nodes(engine, 1, needs=cancelled)
    ready = helpers.make_nodes(engine, 25, needs=[fine])
    ready += helpers.make_nodes(engine, needs=[cancelled[7]], policy="ignore")
    one, two = helpers.claim_all(engine)
    end_job(engine, one, dies=True)
    end_job(engine, two)
    moved = lifecycle.advance(engine, [dead, fine]).jobs
    assert sorted(job.job_id for job in moved) == sorted(cancelled + last + ready)
    assert {helpers.state_of(engine, job_id) for job_id in cancelled + last} == {"cancelled"}
    assert {helpers.state_of(engine, job_id) for job_id in ready} == {"ready"}


def test_advance_reacts_after_each_page(engine, monkeypatch):
    """The first of many dependents can start before the last one is ready."""
    monkeypatch.setattr(graphs, "FIND_LIMIT", 10)
    [needed] = helpers.make_nodes(engine)
    helpers.make_nodes(engine, 25, needs=[needed])
    end_job(engine, helpers.claim_one(engine))
    seen: list[tuple[int, int]] = []

    def after(connection, transitions):
        waiting = helpers.scalar(connection, "SELECT count(*) FROM pgqueue_job WHERE state = 'waiting'")
        seen.append((len(transitions), waiting))

    graph_ends.advance(engine, [needed], after)
    assert seen == [(10, 15), (10, 5), (5, 0)]
