"""How a worker process counts the attempts that end, and how the counts get into the rollup."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from django_pgqueue.ground import histogram
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import completions, operator, ranges, rollups
from django_pgqueue.lifecycle.types import Released
from django_pgqueue.reactions import Reactions
from django_pgqueue.states import State
from django_pgqueue.worker.completion import attempt_counter as module
from django_pgqueue.worker.completion.attempt_counter import AttemptCounter
from django_pgqueue.worker.completion.waiters import Waiters
from django_pgqueue.worker.completion.writer import finish
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers

COUNTS = ("succeeded", "retried", "dead", "cancelled", "released", "snoozed", "crashed")
HOUR = 3600.0


@pytest.fixture
def counter():
    return AttemptCounter()


@pytest.fixture
def reactions(counter):
    return Reactions([], Waiters(), counters=[counter])


def claim(engine, count=1, **changes):
    helpers.make_jobs(engine, count, **changes)
    return helpers.claim_all(engine, limit=count)


def report(claimed, ending=Ending.SUCCEEDED, ran=0.5, **changes):
    now = time.monotonic()
    return Report(claimed, ending, now - ran, now, **changes)


def rows(engine, *, are_totals=False):
    found = helpers.rows_of(engine, "pgqueue_rollup").values()
    return [row for row in found if row["span"].endswith("_total") is are_totals]


def totals(engine):
    """Return the sums of all rows by task and exception class, without the counts of 0."""
    found = {}
    for row in rows(engine):
        counts = found.setdefault((row["task_name"], row["exception_class"]), Counter())
        counts.update({name: row[name] for name in COUNTS if row[name]})
    return found


def test_finish_batch_of_successes_is_counted_once(engine, counter, reactions):
    jobs = claim(engine, 3)
    finish(engine, [report(job) for job in jobs], reactions)
    finish(engine, [report(job) for job in jobs], reactions)  # as after a lost reply
    counter.write(engine)
    [row] = rows(engine)
    assert (row["span"], row["queue_name"], row["task_name"]) == ("part", "default", helpers.NOOP)
    assert totals(engine) == {(helpers.NOOP, ""): {"succeeded": 3}}
    assert sum(row["wait_counts"]) == sum(row["run_counts"]) == 3
    assert row["run_seconds"] == pytest.approx(1.5)


def test_finish_success_of_lost_execution_is_not_counted(engine, counter, reactions):
    lost, job = claim(engine, 2)
    completions.release(engine, [Released(lost.key)])
    finish(engine, [report(lost), report(job)], reactions)
    counter.write(engine)
    assert totals(engine) == {(helpers.NOOP, ""): {"succeeded": 1}}


def test_finish_each_ending_is_counted_in_its_column(engine, counter, reactions):
    jobs = claim(engine, 7)
    operator.cancel(engine, [jobs[6].job_id])
    endings = [
        (Ending.FAILED, {"delay_seconds": 60.0, "exception_class": "ValueError"}),
        (Ending.FAILED, {"exception_class": "KeyError"}),
        (Ending.CRASHED, {"delay_seconds": 60.0}),
        (Ending.RELEASED, {}),
        (Ending.SNOOZED, {"delay_seconds": 60.0}),
        (Ending.CANCELLED, {}),
        (Ending.RELEASED, {}),  # its job was to be cancelled
    ]
    finish(engine, [report(job, ending, **more) for job, (ending, more) in zip(jobs, endings, strict=True)], reactions)
    counter.write(engine)
    assert totals(engine) == {
        (helpers.NOOP, "ValueError"): {"retried": 1},
        (helpers.NOOP, "KeyError"): {"dead": 1},
        (helpers.NOOP, ""): {"retried": 1, "crashed": 1, "released": 1, "snoozed": 1, "cancelled": 2},
    }
    timed = {row["exception_class"]: sum(row["run_counts"]) for row in rows(engine)}
    assert timed == {"ValueError": 0, "KeyError": 0, "": 3}, "only attempts that succeeded or failed are timed"


def test_every_ending_is_counted_in_each_state():
    """An ending without a column would be lost silently."""
    assert set(module.COLUMNS) == set(Ending)
    successes = {ending for ending, columns in module.COLUMNS.items() if not columns}
    assert successes == {Ending.SUCCEEDED, Ending.DISCARDED, Ending.WRITTEN}
    assert all(State.CANCELLED in columns for ending, columns in module.COLUMNS.items() if ending not in successes)


def test_wait_begins_when_job_is_due_and_ends_when_it_starts(engine, counter, reactions):
    """The job was enqueued long ago and due 40 s ago, and waits 3 s more in its process for a free slot."""
    job_id = helpers.make_job(engine)
    engine.execute("UPDATE pgqueue_job SET run_after = run_after - interval '40 s', enqueued_at = '2020-01-01'")
    [job] = helpers.claim_all(engine)
    assert job.job_id == job_id
    assert 0 <= time.monotonic() - job.claimed_at < 10
    claimed_at = datetime.fromtimestamp(job.claimed_ms / 1000, UTC)
    assert timedelta(seconds=39.9) <= claimed_at - job.run_after < timedelta(seconds=50)
    job = job._replace(run_after=claimed_at - timedelta(seconds=40))  # the claim has taken a while
    now = job.claimed_at
    finish(engine, [Report(job, Ending.SUCCEEDED, now + 3.0, now + 3.5)], reactions)
    counter.write(engine)
    [row] = rows(engine)
    expected = Counter()
    histogram.count_into(expected, [43.0])
    assert dict(zip(row["wait_buckets"], row["wait_counts"], strict=True)) == expected
    assert row["wait_seconds"] == pytest.approx(43, abs=0.9)
    assert row["run_seconds"] == pytest.approx(0.5)


def test_counts_are_due_six_times_in_each_minute(monkeypatch):
    """Otherwise a steady rate would have five parts in one minute, and seven in the next."""
    for offset in (0.0, module.SPREAD_SECONDS):
        counter = AttemptCounter()
        counter._offset_seconds = offset
        at, ends = 1_000_000_007.3, []
        for late in (0.2, 0.0, 0.4, 0.1) * 6:
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda at=at: at)
                at += counter.due_in_seconds + late
            ends.append(at)
        minutes = Counter(int((at - module.INTERVAL_SECONDS / 2) // 60) for at in ends)
        assert list(minutes.values())[1:-1] == [6, 6, 6], offset


@pytest.mark.promise("defect-idle-counts")
def test_counts_after_an_idle_hour_are_in_their_own_minute(engine, counter, reactions, monkeypatch):
    counter._since -= HOUR
    given = []
    monkeypatch.setattr(rollups, "append_rollups", lambda *args, seconds_ago: given.append(seconds_ago))
    finish(engine, [report(job) for job in claim(engine)], reactions)
    counter.write(engine)
    assert len(given) == 1 and given[0] < 60


def test_write_without_counts_appends_nothing(engine, counter, monkeypatch):
    monkeypatch.setattr(rollups, "append_rollups", pytest.fail)
    counter.write(engine)
    assert not counter


def test_write_on_lost_connection_keeps_the_counts(engine, second, counter, reactions):
    finish(engine, [report(job) for job in claim(engine, 2)], reactions)
    second.close()
    with pytest.raises(psycopg.OperationalError):
        counter.write(second)
    finish(engine, [report(job) for job in claim(engine, 3)], reactions)
    counter.write(engine)
    assert totals(engine) == {(helpers.NOOP, ""): {"succeeded": 5}}
    assert sum(rows(engine)[0]["run_counts"]) == 5
    assert not counter


def test_write_that_is_refused_drops_the_counts(engine, counter, reactions, caplog, monkeypatch):
    monkeypatch.setattr(ranges, "_logged_at", {})
    finish(engine, [report(job) for job in claim(engine)], reactions)
    with helpers.users_trigger(engine, "true", table="pgqueue_rollup", event="INSERT"):
        counter.write(engine)
    assert not counter
    assert "is dropped" in caplog.text


def test_many_exception_classes_are_counted_together(engine, counter, reactions, monkeypatch):
    monkeypatch.setattr(module, "CLASSES_LIMIT", 3)
    failures = [
        report(job, Ending.FAILED, exception_class=f"Error{number}") for number, job in enumerate(claim(engine, 4))
    ]
    finish(engine, [*failures, *(report(job) for job in claim(engine, 1))], reactions)
    counter.write(engine)
    assert {name: counts.total() for (_, name), counts in totals(engine).items()} == {
        "Error0": 1, "Error1": 1, "(other)": 2, "": 1,
    }  # fmt: skip


@pytest.fixture
def maintenance(committing, counter, reactions):
    link = Link("default", "maintenance")
    yield Maintenance(link, 1, reactions, counter)
    link.close()


def run_duty(maintenance, name):
    [duty] = [duty for duty in maintenance.duties if duty.name == name]
    return duty.function()


def test_rescue_counts_crashes(engine, maintenance, counter, settings):
    settings.PGQUEUE = {"LEASE": 4.0}
    claim(engine)
    helpers.end_lease(engine)
    helpers.rescue_by(maintenance)
    run_duty(maintenance, "counts")
    assert totals(engine) == {(helpers.NOOP, ""): {"retried": 1, "crashed": 1}}


def append(engine, seconds_ago, task=helpers.NOOP, queue="default", error="", **counts):
    columns = module.Tally(Counter(counts), 2.0, 1.0, Counter({3: 2}), Counter({1: 1, 4: 1})).columns()
    names = {"queue_name": queue, "task_name": task, "exception_class": error}
    rollups.append_rollups(engine, [{**names, **columns}], seconds_ago)


def in_one_minute(engine):
    """Move all rows to the minute of the first one. Another minute can have begun since it was appended."""
    engine.execute("UPDATE pgqueue_rollup SET starts_at = (SELECT min(starts_at) FROM pgqueue_rollup)")


@pytest.mark.promise("stats-merge")
def test_merge_keeps_the_sums_and_leaves_one_row_a_minute(engine, maintenance):
    for _ in range(3):
        append(engine, 200.0, succeeded=2, dead=1)
    in_one_minute(engine)
    append(engine, 0.0, succeeded=7)
    assert run_duty(maintenance, "rollups") is False
    run_duty(maintenance, "rollups")
    assert sorted((row["span"], row["succeeded"]) for row in rows(engine)) == [("minute", 6), ("part", 7)]
    [merged] = [row for row in rows(engine) if row["span"] == "minute"]
    assert (merged["dead"], merged["wait_seconds"], merged["run_seconds"]) == (3, 6.0, 3.0)
    assert (merged["wait_buckets"], merged["wait_counts"]) == ([3], [6])
    assert (merged["run_buckets"], merged["run_counts"]) == ([1, 4], [3, 3])
    assert (merged["starts_at"].second, merged["starts_at"].microsecond) == (0, 0)


def test_merge_of_old_minutes_leaves_one_row_an_hour(engine):
    for minutes in range(0, 120, 7):
        append(engine, 5 * HOUR + 60.0 * minutes, succeeded=1)
    while rollups.merge_rollups(engine) and any(row["span"] != "hour" for row in rows(engine)):
        pass
    assert 2 <= len(rows(engine)) <= 3
    assert all(row["starts_at"].minute == 0 for row in rows(engine))
    assert totals(engine) == {(helpers.NOOP, ""): {"succeeded": 18}}


@pytest.mark.promise("stats-merge")
def test_merge_adds_a_total_of_all_queues_and_tasks(engine):
    append(engine, 200.0, succeeded=2)
    append(engine, 200.0, task="shop.charge", queue="mail", error="KeyError", dead=3)
    in_one_minute(engine)
    for minutes in (0, 7):
        append(engine, 5 * HOUR + 60.0 * minutes, task=f"shop.task{minutes}", retried=1)
    while rollups.merge_rollups(engine):
        pass
    hours = {row["starts_at"] for row in rows(engine) if row["span"] == "hour"}
    assert len(rows(engine)) == 4 and hours
    found = {(row["span"], row["starts_at"]): row for row in rows(engine, are_totals=True)}
    assert sorted(span for span, _ in found) == ["hour_total"] * len(hours) + ["minute_total"]
    assert {(row["queue_name"], row["task_name"], row["exception_class"]) for row in found.values()} == {("", "", "")}
    for (span, starts_at), total in found.items():
        parts = [row for row in rows(engine) if (f"{row['span']}_total", row["starts_at"]) == (span, starts_at)]
        for name in (*COUNTS, "wait_seconds", "run_seconds"):
            assert total[name] == sum(row[name] for row in parts), name
        assert (total["wait_buckets"], total["wait_counts"]) == ([3], [2 * len(parts)])
        assert (total["run_buckets"], total["run_counts"]) == ([1, 4], [len(parts)] * 2)
    assert sum(row["dead"] for row in found.values()) == 3


@pytest.mark.promise("stats-merge")
def test_merge_by_two_workers_at_once_counts_nothing_twice(engine, second):
    append(engine, 200.0, succeeded=1)
    append(engine, 201.0, succeeded=1)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_rollup WHERE id = 1 FOR UPDATE")  # as a merge that is not committed
        assert rollups.merge_rollups(engine) == 1
    rollups.merge_rollups(second)
    assert totals(engine) == {(helpers.NOOP, ""): {"succeeded": 2}}


def test_prune_removes_rows_past_their_retention(engine, maintenance, settings):
    settings.PGQUEUE = {"STATS_RETENTION": 2 * HOUR}
    append(engine, 3 * HOUR, succeeded=1)
    append(engine, HOUR, succeeded=5)
    run_duty(maintenance, "old rollups")
    assert totals(engine) == {(helpers.NOOP, ""): {"succeeded": 5}}


def test_worker_without_stats_counts_and_merges_nothing(committing, engine):
    maintenance = Maintenance(Link("default", "maintenance"))
    assert not {"counts", "rollups"} & {duty.name for duty in maintenance.duties}
    finish(engine, [report(job) for job in claim(engine)], Reactions([], Waiters()))
    assert rows(engine) == []


def test_large_batch_is_timed_by_sample_and_counted_exactly(engine, counter, reactions):
    jobs = claim(engine, 300)
    finish(engine, [report(job, ran=0.02 if number % 2 else 20.0) for number, job in enumerate(jobs)], reactions)
    counter.write(engine)
    [row] = rows(engine)
    assert row["succeeded"] == 300
    assert sum(row["run_counts"]) == sum(row["wait_counts"]) == pytest.approx(300, abs=9)
    assert row["run_seconds"] == pytest.approx(150 * 20.02, rel=0.1)
    assert max(row["run_counts"]) <= 160
