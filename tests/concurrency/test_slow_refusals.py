"""Test that a write whose rows the database refuses slowly ends in time, and that its other rows are written later."""

from __future__ import annotations

import math
from typing import Any

import pytest
from psycopg import errors

from django_pgqueue.ends import batches as ends
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import batches, completions, events, graphs, leases, ranges, refused_rows, steps
from django_pgqueue.lifecycle.breakers import Ended
from django_pgqueue.worker.completion.attempt_counter import AttemptCounter, Tally
from django_pgqueue.worker.completion.breaker_counter import BreakerCounter
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.supervision.crash_charges import settle
from django_pgqueue.worker.supervision.heartbeat import ChildProcess
from django_pgqueue.worker.supervision.settlement import WITHOUT_SIGNALS
from tests import helpers
from tests.concurrency.test_refused_rows import due, insert, refused, waiting_jobs
from tests.worker.test_unwritten import report, states

ROUNDS = 100
"""More than these tests need: a division tries the parts in a random order."""


class Transition:
    """A transition that the database refuses for the rows in `bad`, `seconds` after each call."""

    def __init__(self, clock: helpers.Clock, bad: range, seconds: float) -> None:
        self.clock, self.bad, self.seconds = clock, bad, seconds
        self.calls = 0
        self.written: list[int] = []

    def __call__(self, rows: Any) -> dict[int, bool]:
        self.calls += 1
        if not set(self.bad).isdisjoint(rows):
            self.clock.pass_by(self.seconds)
            raise errors.RaiseException("not this one")
        self.written += rows
        return dict.fromkeys(rows, True)


@pytest.fixture(autouse=True)
def each_division_is_logged(monkeypatch):
    monkeypatch.setattr(refused_rows, "_left_logged_at", -math.inf)
    monkeypatch.setattr(ranges, "_logged_at", {})


@pytest.fixture
def clock(monkeypatch):
    return helpers.Clock(monkeypatch, refused_rows)


@pytest.fixture
def late(monkeypatch):
    """Time is up as soon as a division begins."""
    helpers.Clock(monkeypatch, refused_rows, reading_seconds=refused_rows.MOST_SECONDS)


@pytest.mark.promise("bad-row-slow")
def test_divided_all_rows_refused_slowly_ends_in_time(engine, clock, caplog):
    transition, began = Transition(clock, range(1000), 1.0), clock.now
    done = refused_rows.divided(engine, range(1000), transition)
    assert clock.now - began <= 1 + refused_rows.MOST_SECONDS + 5
    assert sorted([row for row, _ in done.refused] + done.left) == list(range(1000))
    assert (done.answers, len(done.refused)) == ({}, 1)
    [record] = caplog.records
    assert (record.event, record.subject, record.reason) == ("rows_left", "999 rows", "not this one")


@pytest.mark.parametrize("seconds", [2.0, 60.0])
def test_divided_one_row_refused_slowly_writes_most_others(engine, clock, seconds):
    """The large parts without the bad row are written first, and the rest by the next calls."""
    transition, rows = Transition(clock, range(500, 501), seconds), range(1000)
    calls = 0
    while rows:
        before, calls = transition.calls, calls + 1
        rows = refused_rows.divided(engine, rows, transition).left
        assert transition.calls - before <= 2 + 4 * refused_rows.PIECES
        assert rows == [] or transition.written or calls == 1
    assert sorted(transition.written) == [row for row in range(1000) if row != 500]


def test_divided_without_slow_rows_leaves_no_row(engine, clock, caplog):
    transition = Transition(clock, range(0, 1000, 2), 0.0)
    done = refused_rows.divided(engine, range(1000), transition)
    assert (done.left, sorted(done.answers)) == ([], list(range(1, 1000, 2)))
    assert transition.calls <= 2 * 1000
    assert caplog.records == []


@pytest.mark.promise("bad-row-slow")
@pytest.mark.parametrize("first", [0, 50])
def test_divided_many_bad_rows_again_reaches_the_others(engine, clock, first):
    """The bad rows are in each call again. A fixed order would try only them."""
    transition = Transition(clock, range(first, first + 50), refused_rows.MOST_SECONDS)
    for _ in range(20 * ROUNDS):
        if len(transition.written) == 50:
            break
        refused_rows.divided(engine, sorted(set(range(100)) - set(transition.written)), transition)
    assert sorted(transition.written) == list(range(50 - first, 100 - first))


def test_divided_without_a_time_limit_leaves_no_row(engine, late):
    transition = Transition(helpers.Clock(pytest.MonkeyPatch()), range(5), 1.0)
    assert refused_rows.divided(engine, range(20), transition, most_seconds=math.inf).left == []


# ------------------------------------------------------------------ who writes the rows that are left


@pytest.fixture
def link(committing):
    link = Link("default", "worker")
    yield link
    link.close()


def claim(engine: Any, count: int = 20) -> list[Any]:
    helpers.make_jobs(engine, count)
    return helpers.claim_all(engine)


@pytest.mark.promise("bad-row-slow")
@pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.DISCARDED, Ending.RELEASED])
def test_completer_out_of_time_writes_the_others_later(engine, late, link, ending):
    bad, *others = claim(engine)
    completer = Completer(link)
    with refused(engine, f"OLD.id = {bad.job_id}", event="DELETE OR UPDATE"):
        for job in (bad, *others):
            completer.hand_over(report(job, ending))
        for _ in range(ROUNDS):
            completer.tick()
        assert "running" not in states(engine, others) and states(engine, [bad]) == ["running"]
        assert completer.ids() == {bad.execution_id}


def test_settle_out_of_time_is_repeated(engine, late, link):
    bad, *others = claim(engine)
    process = ChildProcess(ProcessState(20), pid=1, orders=0, worker_id=1, expected_to_end=True)
    with refused(engine, f"NEW.id = {bad.job_id}"):
        assert not settle(link, process, WITHOUT_SIGNALS, by_default=True)
        rounds = 1
        while not settle(link, process, WITHOUT_SIGNALS, by_default=True):
            rounds += 1
            assert rounds < ROUNDS
    assert states(engine, others) == ["ready"] * 19 and states(engine, [bad]) == ["running"]


def test_progress_out_of_time_is_written_later(engine, late, committing):
    bad, *others = claim(engine)
    notes = Notes()
    for job in (bad, *others):
        notes.note(job.key, Progress(1.0))
    with refused(engine, f"NEW.id = {bad.job_id}"):
        assert notes.write(engine), "its completion would delete the progress that is left"
        for _ in range(ROUNDS):
            notes.write(engine)
    assert [helpers.job_row(engine, job.job_id)["progress_done"] for job in others] == [1.0] * 19
    assert not notes


def test_attempt_counts_out_of_time_are_kept(engine, late, committing):
    counter = AttemptCounter()
    for number in range(20):
        tally = Tally()
        tally.counts["dead"] = number
        counter._tallies[("default", f"t{number}", "")] = tally
    with refused(engine, "NEW.task_name = 't3'", "INSERT", "pgqueue_rollup"):
        counter.write(engine)
        assert counter, "some are left"
        for _ in range(ROUNDS):
            counter.write(engine)
    rows = helpers.rows_of(engine, "pgqueue_rollup").values()
    assert {row["task_name"]: row["dead"] for row in rows} == {f"t{n}": n for n in range(20) if n != 3}
    assert not counter


def test_breaker_counts_out_of_time_are_kept(engine, late, committing):
    counter = BreakerCounter()
    keys = [f"key{number}" for number in range(20)]
    for key in keys:
        counter._add(key, Ended(failed=3))
    with refused(engine, "NEW.limit_key = 'key3'", "INSERT", "pgqueue_breaker_count"):
        for _ in range(ROUNDS):
            counter.write_last(engine)
    rows = helpers.rows_of(engine, "pgqueue_breaker_count").values()
    assert sorted((row["limit_key"], row["failed"]) for row in rows) == sorted((k, 3) for k in keys if k != "key3")


def test_heartbeats_out_of_time_keep_the_workers(engine, late, committing):
    for number in range(1, 21):
        insert(engine, "pgqueue_worker", id=number)
    with refused(engine, "NEW.id = 3", table="pgqueue_worker"):
        answers = leases.extend(engine, range(1, 21), lease_seconds=60.0)
    assert answers.keys() == {*range(1, 21)}, "a missing worker would be registered again"
    assert not answers[3].is_extended


def test_batches_out_of_time_are_ended_later(engine, late, committing):
    callbacks = dict.fromkeys(["on_success", "on_complete", "on_failure"])
    batch_ids = []
    for _ in range(20):
        created = batches.create_batch(engine, description="", parent_id=None, callbacks=callbacks)
        batches.close_batch(engine, created.batch_id)
        batch_ids.append(created.batch_id)
    waiting = set(batch_ids)
    with refused(engine, f"NEW.id = {batch_ids[3]}", table="pgqueue_batch"):
        for _ in range(ROUNDS):
            settled = ends.settle(engine, waiting)
            waiting = settled.locked | {row for row, _ in settled.refused}
    assert waiting == {batch_ids[3]}


def test_wake_missed_out_of_time_keeps_its_page(engine, late, committing):
    """But only while it wakes jobs. Otherwise the pages behind would never be read."""
    job_ids = waiting_jobs(engine, 20)
    events.send_event(engine, "paid", "7", None)
    with refused(engine, f"NEW.id = {job_ids[3]}"):
        pages = [steps.wake_missed(engine, limit=20) for _ in range(ROUNDS)]
    assert due(engine) == [job_id for job_id in job_ids if job_id != job_ids[3]]
    assert all(page.job_ids for page in pages if page.mark == steps.FIRST_MARK)
    assert pages[-1].mark == ("paid", "7", job_ids[-1])
    assert any(page.mark == steps.FIRST_MARK for page in pages)


def test_advance_out_of_time_reports_the_others(engine, late, committing):
    [first] = helpers.make_nodes(engine)
    job_ids = helpers.make_nodes(engine, 20, needs=[first])
    completions.succeed(engine, helpers.succeeded(*(job.key for job in helpers.claim_all(engine))))
    with refused(engine, f"NEW.id = {job_ids[3]}"):
        done = graphs.advance(engine, [first])
    reported = [*(job.job_id for job in done.jobs), *done.locked_ids, *(row for row, _ in done.refused)]
    assert sorted(reported) == job_ids
