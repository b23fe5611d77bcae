"""When a process checks what follows the ends of jobs: of each capability, and in general by a check of the test."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgqueue import Batch, signals
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ends import batches, end_check, end_checks
from django_pgqueue.ends.batches import Batches, settle
from django_pgqueue.ends.compensations import Compensations
from django_pgqueue.ends.end_check import Checked, Reactor, Sweep
from django_pgqueue.ends.end_checks import CHECKS, NEVER, EndChecks, ended_jobs, follow
from django_pgqueue.ends.graphs import EndedNode, Graphs, Role
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import batches as lifecycle_batches
from django_pgqueue.lifecycle import completions, graphs
from django_pgqueue.lifecycle.ends import EndedJob
from django_pgqueue.lifecycle.refused_rows import Refused
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition
from django_pgqueue.states import State
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.duties import DUTIES
from django_pgqueue.worker.maintenance.end_sweeps import UNUSED_SECONDS, EndSweep, end_sweeps
from tests import helpers
from tests.concurrency.test_batches import batch_of, callbacks
from tests.concurrency.test_sagas import dead_job
from tests.concurrency.test_workflows import end_job

ENGINE: Any = EngineConnection.__new__(EngineConnection)
"""An engine connection that is never used."""


class Recorder:
    """A check that notes the ids of jobs. `calls` are what was checked, and `answers` the results."""

    name = "recorder"
    interval_seconds = 0.0
    sweeps: tuple[Sweep, ...] = ()

    def __init__(self) -> None:
        self.calls: list[set[int]] = []
        self.answers: list[Checked | Exception] = []

    def note(self, ended: EndedJob) -> Iterable[int]:
        yield ended.job_id

    def check(self, connection: Any, noted: Collection[int], reactor: Reactor) -> Checked:
        self.calls.append(set(noted))
        answer = self.answers.pop(0) if self.answers else Checked()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def checks(recorder) -> EndChecks:
    return EndChecks(checks=[recorder])


# ------------------------------------------------------------------ the driver


def test_ended_job_is_checked_at_once(recorder, checks):
    assert checks.due_in_seconds == NEVER
    for job_id in (7, 8):
        checks.note([EndedJob(job_id)])
        assert checks.due_in_seconds == 0.0
        checks.check(ENGINE)
    assert recorder.calls == [{7}, {8}]
    assert checks.due_in_seconds == NEVER


def test_check_with_an_interval_checks_later_ends_together(recorder, checks, monkeypatch):
    clock = helpers.Clock(monkeypatch, end_checks)
    recorder.interval_seconds = 60.0
    for job_id in (7, 8, 9):
        checks.note([EndedJob(job_id)])
        checks.check(ENGINE)
    assert recorder.calls == [{7}]
    assert checks.due_in_seconds == 60.0
    clock.pass_by(60.0)
    checks.check(ENGINE)
    assert recorder.calls == [{7}, {8, 9}]
    assert checks.due_in_seconds == NEVER


def test_check_at_once_does_not_wait_for_the_interval(recorder, checks):
    recorder.interval_seconds = 60.0
    for job_id in (7, 8):
        checks.note([EndedJob(job_id)])
        checks.check(ENGINE, at_once=True)
    assert recorder.calls == [{7}, {8}]


def test_locked_row_is_checked_again_for_some_seconds(recorder, checks, monkeypatch):
    clock = helpers.Clock(monkeypatch, end_checks)
    recorder.answers = [Checked(locked={9})] * 4
    checks.note([EndedJob(7)])
    checks.check(ENGINE)
    checks.check(ENGINE)
    assert (recorder.calls, checks.due_in_seconds) == ([{7}], pytest.approx(end_checks.LOCKED_INTERVAL_SECONDS))
    clock.pass_by(end_checks.LOCKED_INTERVAL_SECONDS)
    checks.check(ENGINE)
    assert recorder.calls == [{7}, {9}]
    checks.note([EndedJob(8)])
    checks.check(ENGINE)
    assert recorder.calls == [{7}, {9}, {8, 9}]
    clock.pass_by(end_checks.LOCKED_SECONDS)
    checks.check(ENGINE)
    assert checks.due_in_seconds == NEVER


def test_lost_connection_keeps_what_was_noted(recorder, checks):
    recorder.answers = [psycopg.OperationalError()]
    checks.note([EndedJob(7)])
    with pytest.raises(psycopg.OperationalError):
        checks.check(ENGINE)
    assert checks.due_in_seconds == 0.0
    checks.check(ENGINE)
    assert recorder.calls == [{7}, {7}]


@pytest.mark.parametrize(
    "error",
    [psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.InsufficientPrivilege],
)
def test_refused_check_is_left_to_the_sweep(recorder, checks, caplog, error):
    """The connection works, so the completions of other jobs must not wait."""
    recorder.answers = [error("no")]
    checks.note([EndedJob(7)])
    checks.check(ENGINE)
    assert [record.__dict__["event"] for record in caplog.records] == ["end_checks_refused"]
    assert checks.due_in_seconds == NEVER


def test_refused_check_does_not_stop_those_behind_it(recorder):
    behind = Recorder()
    recorder.answers = [psycopg.errors.InsufficientPrivilege("no")]
    checks = EndChecks(checks=[recorder, behind])
    checks.note([EndedJob(7)])
    checks.check(ENGINE)
    assert behind.calls == [{7}]


def test_refused_row_is_logged_and_left_to_the_sweep(recorder, checks, caplog):
    recorder.answers = [Checked(refused=[Refused(8, OSError())])]
    checks.note([EndedJob(7)])
    checks.check(ENGINE)
    assert [record.__dict__["event"] for record in caplog.records] == ["end_check_refused"]
    assert checks.due_in_seconds == NEVER


@pytest.mark.parametrize("answer", [psycopg.errors.LockNotAvailable(), Checked(refused=[Refused(8, KeyError())])])
def test_refusal_in_an_application_raises(recorder, checks, answer):
    """An error in the caller's transaction must not be hidden."""
    recorder.answers = [answer]
    checks.note([EndedJob(7)])
    with pytest.raises((psycopg.Error, KeyError)):
        checks.check(SimpleNamespace())


def test_job_that_a_check_ends_is_noted_for_those_behind_it(recorder):
    behind = Recorder()
    recorder.answers = [Checked(ended=[EndedJob(8)])]
    checks = EndChecks(checks=[recorder, behind])
    checks.note([EndedJob(7)])
    checks.check(ENGINE)
    assert behind.calls == [{7, 8}]


def test_checks_run_in_their_order():
    """A cancelled dependent can end its batch, and compensations come first."""
    assert [type(each) for each in CHECKS] == [Compensations, Graphs, Batches]


def test_refused_read_of_ended_jobs_is_left_to_the_sweep(engine, caplog, monkeypatch):
    def refuse(*args):
        raise psycopg.errors.QueryCanceled

    monkeypatch.setattr(end_checks, "find_ended", refuse)
    dead = TransitionResult(TransitionStatus.DONE, State.DEAD)
    follow(engine, [JobTransition(7, None, dead)], FOREGROUND.react)
    assert [record.__dict__["event"] for record in caplog.records] == ["end_checks_refused"]


# ------------------------------------------------------------------ what is noted


def report(ending: Ending = Ending.SUCCEEDED, *, has_compensations: bool = False, delay_seconds=None, **claimed) -> Any:
    given = {"job_id": 7, "batch_id": None, "in_graph": None, "headers": None, **claimed}
    return SimpleNamespace(
        claimed=SimpleNamespace(**given),
        ending=ending,
        has_compensations=has_compensations,
        delay_seconds=delay_seconds,
    )


@pytest.mark.parametrize("ending", Ending)
def test_plain_job_is_not_noted(ending):
    assert ended_jobs([report(ending), report(ending, headers='{"trace":"7"}')]) == []


@pytest.mark.parametrize("ending", [Ending.RELEASED, Ending.UNKNOWN, Ending.SNOOZED, Ending.SUSPENDED, Ending.CRASHED])
def test_job_that_is_not_over_is_not_noted(ending):
    assert ended_jobs([report(ending, batch_id=7, in_graph=True, has_compensations=True)]) == []


def test_job_that_is_retried_is_not_noted():
    assert ended_jobs([report(Ending.FAILED, batch_id=7, delay_seconds=1.0)]) == []


@pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.WRITTEN, Ending.FAILED, Ending.CANCELLED])
def test_last_report_says_what_follows(ending):
    given = report(ending, batch_id=3, in_graph=True, has_compensations=True)
    assert ended_jobs([given]) == [EndedJob(7, 3, in_graph=True, has_compensations=True)]


def test_removed_job_keeps_no_steps_to_undo():
    assert ended_jobs([report(Ending.DISCARDED, batch_id=3, has_compensations=True)]) == [EndedJob(7, 3)]


@pytest.mark.parametrize(("ending", "noted"), [(Ending.SUCCEEDED, [5]), (Ending.DISCARDED, [5]), (Ending.FAILED, [])])
def test_success_of_a_compensation_leads_to_the_next_one(ending, noted):
    [ended] = ended_jobs([report(ending, headers='{"pgqueue_compensates":5}')])
    assert list(Compensations().note(ended)) == noted


# ------------------------------------------------------------------ workflows


def test_postponed_node_waits_again(engine):
    [unfinished] = helpers.make_nodes(engine)
    [waits, starts] = helpers.make_nodes(engine, 2, needs=[unfinished])
    engine.execute("UPDATE pgqueue_job SET state = 'ready' WHERE id IN (%s, %s)", [waits, starts])
    engine.execute("DELETE FROM pgqueue_dependency WHERE job_id = %s", [starts])
    checks = EndChecks(Reactor(FOREGROUND.react))
    checks.note_reports([report(Ending.POSTPONED, job_id=job_id, in_graph=True) for job_id in (waits, starts)])
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
    checks = EndChecks(Reactor(FOREGROUND.react))
    checks.note_reports([report(Ending.POSTPONED, job_id=waits, in_graph=True)])
    checks.check(engine)
    assert helpers.state_of(engine, waits) == "ready"


def test_locked_node_is_noted_again(engine, second):
    [needed] = helpers.make_nodes(engine)
    [waits] = helpers.make_nodes(engine, needs=[needed])
    end_job(engine, helpers.claim_one(engine))
    with helpers.transaction(second, f"SELECT 1 FROM pgqueue_job WHERE id = {waits} FOR UPDATE"):
        checked = Graphs().check(engine, [EndedNode(needed, Role.ENDED)], Reactor(FOREGROUND.react))
    assert checked.locked == [EndedNode(waits, Role.WAITING)]
    assert Graphs().check(engine, checked.locked, Reactor(FOREGROUND.react)).changed == 1
    assert helpers.state_of(engine, waits) == "ready"


def test_batch_of_a_cancelled_dependent_is_checked(engine):
    """The batch of a ready one is not: it cannot be over."""
    dead, fine = helpers.make_nodes(engine, 2)
    [cancelled] = helpers.make_nodes(engine, needs=[dead], batch_id=8)
    helpers.make_nodes(engine, needs=[fine], batch_id=9)
    one, two = helpers.claim_all(engine)
    end_job(engine, one, dies=True)
    end_job(engine, two)
    noted = [EndedNode(dead, Role.ENDED), EndedNode(fine, Role.ENDED)]
    checked = Graphs().check(engine, noted, Reactor(FOREGROUND.react))
    assert (checked.changed, checked.ended) == (2, [EndedJob(cancelled, 8)])


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


def link_to(engine) -> Any:
    return SimpleNamespace(use=lambda: nullcontext(engine))


def sweep_of(engine, name: str) -> EndSweep:
    [found] = [each for each in end_sweeps(link_to(engine), Reactor(FOREGROUND.react)) if each.name == name]
    return found


@pytest.mark.promise("workflow-advance-found-by-sweep")
def test_sweep_advances_what_no_completion_has_advanced(engine, monkeypatch):
    """A page at a time. The dependency of the first job has ended, and that of the second one has no row."""
    monkeypatch.setattr(graphs, "FIND_LIMIT", 2)
    needs = helpers.make_nodes(engine, 3)
    waiting = [helpers.make_nodes(engine, needs=[needs_id])[0] for needs_id in needs]
    end_job(engine, helpers.claim_one(engine))
    engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [needs[2]])
    sweep = sweep_of(engine, "waiting").run
    assert isinstance(sweep(), float)
    assert [helpers.state_of(engine, job_id) for job_id in waiting] == ["ready", "waiting", "waiting"]
    assert sweep() is False
    assert [helpers.state_of(engine, job_id) for job_id in waiting] == ["ready", "waiting", "cancelled"]


def test_sweep_without_waiting_jobs_runs_once_a_minute(engine):
    assert sweep_of(engine, "waiting").run() == UNUSED_SECONDS
    helpers.make_nodes(engine, needs=helpers.make_nodes(engine))
    assert sweep_of(engine, "waiting").run() is False


def test_duty_removes_edges_of_jobs_deleted_by_sql(engine):
    helpers.make_nodes(engine, needs=helpers.make_nodes(engine))
    engine.execute("DELETE FROM pgqueue_job")
    [duty] = [kind for kind in DUTIES if kind.name == "dependencies"]
    assert duty.start(link_to(engine), FOREGROUND)() is False
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
    moved = graphs.advance(engine, [dead, fine]).jobs
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

    def react(connection, transitions):
        waiting = helpers.scalar(connection, "SELECT count(*) FROM pgqueue_job WHERE state = 'waiting'")
        seen.append((len(transitions), waiting))

    checks = EndChecks(Reactor(react))
    checks.note([EndedJob(needed, in_graph=True)])
    checks.check(engine, at_once=True)
    assert seen == [(10, 15), (10, 5), (5, 0)]


def test_sweep_ends_the_batch_of_a_dependent_that_it_cancels(engine):
    batch_id = batch_of(engine, 0, is_closed=False)
    [dead] = helpers.make_nodes(engine)
    helpers.make_nodes(engine, needs=[dead], batch_id=batch_id)
    lifecycle_batches.close_batch(engine, batch_id)
    end_job(engine, helpers.claim_one(engine), dies=True)
    sweep_of(engine, "waiting").run()
    assert callbacks(engine) == ["complete", "failure"]


# ------------------------------------------------------------------ batches


def test_ends_of_a_batch_are_checked_together():
    assert Batches().interval_seconds == batches.INTERVAL_SECONDS > 0


def test_completer_that_stops_checks_at_once(recorder):
    recorder.interval_seconds = 60.0
    checks, link = EndChecks(checks=[recorder]), link_to(ENGINE)
    for job_id in (7, 8):
        checks.note([EndedJob(job_id)])
        checks.check(ENGINE)
    assert recorder.calls == [{7}]
    Completer(link, ends=checks).at_end()
    assert recorder.calls == [{7}, {8}]


def test_callback_sends_the_signal_of_an_enqueue(engine):
    """The worker sends it in another thread, by the function that it passes."""
    sent: list[Any] = []

    def receiver(**kwargs: Any) -> None: ...

    signals.job_enqueued.connect(receiver)
    try:
        batch_id = batch_of(engine, 1)
        end_job(engine, helpers.claim_one(engine))
        settle(engine, [batch_id], Reactor(publish=lambda *given: sent.append(given)))
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert callbacks(engine) == ["complete", "success"]
    assert [(signal, task, about["queue_name"]) for signal, task, about in sent] == [
        (signals.job_enqueued, helpers.NOOP, "callbacks")
    ] * 2


def test_sweep_walks_over_all_batches_page_by_page(engine, monkeypatch):
    for module in (end_check, batches):
        monkeypatch.setattr(module, "SWEEP_LIMIT", 2)
    for _ in range(5):
        batch_of(engine, 0)
    pages, last_id = [], 0
    while last_id is not None:
        swept = helpers.sweep_ends(engine, "batches", last_id)
        pages.append(swept.changed)
        last_id = swept.last_id
    assert pages == [4, 4, 2]


def test_only_the_rare_sweep_looks_at_complete_batches(engine):
    """Batches that failed are kept for weeks. One of them can be repaired just before its worker is lost."""
    batch_of(engine, 1)
    job = helpers.claim_one(engine)
    completions.fail(engine, helpers.failed(job.key, None))
    helpers.sweep_ends(engine, "batches")
    assert callbacks(engine) == ["complete", "failure"]
    engine.execute("UPDATE pgqueue_job SET state = 'succeeded' WHERE state = 'dead'")
    assert helpers.sweep_ends(engine, "batches").changed == 0
    assert helpers.sweep_ends(engine, "complete batches").changed == 1
    assert callbacks(engine) == ["complete", "failure", "success"]


def test_rare_sweep_without_batches_waits_for_its_hour(engine):
    assert sweep_of(engine, "complete batches").run() is False
    assert sweep_of(engine, "batches").run() == UNUSED_SECONDS


# ------------------------------------------------------------------ compensations


def test_sweep_of_compensations_finds_a_dead_job(engine):
    dead_job(engine, "a")
    assert helpers.sweep_ends(engine, "compensations").changed == 1
    assert sweep_of(engine, "compensations").run() == UNUSED_SECONDS
