"""`throughput()`: what happened in a period, as the rollup has it."""

from collections import Counter
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.db import statements
from django_pgqueue.lifecycle import rollups
from django_pgqueue.models import Rollup
from django_pgqueue.worker.completion.attempt_counter import Tally
from tests import helpers
from tests.app.tasks import add

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def half_past_the_minute(monkeypatch):
    """Shift the clock of the statements, so that no minute ends during a test."""
    monkeypatch.setattr(statements.clock, "shift_seconds", 30.0 - timezone.now().second)


def append(connection, seconds_ago, task="shop.charge", queue="default", error="", waits=None, runs=None, **counts):
    tally = Tally(Counter(counts))
    tally.add_times(waits or [], runs or [])
    names = {"queue_name": queue, "task_name": task, "exception_class": error}
    rollups.append_rollups(connection, [{**names, **tally.columns()}], seconds_ago)


def last_hour(**options):
    return stats.throughput(timezone.now() - timedelta(hours=1), timezone.now() + MINUTE, **options)


@pytest.mark.promise("stats-sums")
def test_throughput_adds_points_histograms_and_failures(connection):
    append(connection, 600, waits=[0.1] * 9 + [5.0], runs=[1.0] * 10, succeeded=10)
    append(connection, 600, waits=[0.1], runs=[3.0], succeeded=1)
    append(connection, 60, error="ValueError", waits=[0.2] * 3, runs=[0.5] * 3, retried=2, dead=1)
    append(connection, 60, error="", retried=1, crashed=1)
    found = last_hour()
    assert [point.counts.finished for point in found.points] == [11, 1]
    assert (found.counts.succeeded, found.counts.failed, found.counts.dead, found.counts.crashed) == (11, 4, 1, 1)
    first, last = found.points
    assert (first.seconds, first.per_minute(first.counts.succeeded)) == (60, 11)
    assert first.wait.p50 == pytest.approx(0.1, rel=0.091)
    assert first.wait.p99 == pytest.approx(5.0, rel=0.091)
    assert (last.wait.count, last.run.mean) == (3, pytest.approx(0.5))
    assert found.run.p50 == pytest.approx(1.0, rel=0.091)
    assert (found.run.count, found.run.mean) == (14, pytest.approx((10 + 3 + 1.5) / 14))
    assert [(one.exception_class, one.retried, one.dead) for one in found.failures] == [
        ("ValueError", 2, 1),
        ("", 1, 0),
    ]
    assert found.failures[0].last_at == last.starts_at
    assert found.per_minute(found.counts.succeeded) == pytest.approx(11 / 61, rel=0.05)


@pytest.mark.promise("stats-sums")
def test_throughput_above_two_billion_keeps_its_sums(connection):
    """A sum of `bigint` is `numeric` in PostgreSQL. Python must get whole numbers nevertheless."""
    many = 2**31 - 1
    names = {"queue_name": "default", "task_name": "shop.charge"}
    for error in ("", "ValueError"):
        tally = Tally(Counter(succeeded=many, retried=many))
        tally.add_times([0.1], [1.0])
        columns = tally.columns() | {"wait_counts": [many], "run_counts": [many]}
        rollups.append_rollups(connection, [{**names, "exception_class": error, **columns}] * 3, 600)
    hour = timezone.now() - timedelta(hours=1), timezone.now() + MINUTE
    for merged in (6, 0):
        found, [by_task] = last_hour(), stats.throughput_by_task(*hour)
        numbers = [found.counts.succeeded, found.wait.count, found.run.count, by_task.counts.succeeded]
        assert numbers == [6 * many] * 4
        assert {type(number) for number in numbers} == {int}
        assert [(one.retried, type(one.retried)) for one in found.failures] == [(3 * many, int)] * 2
        assert found.run.p50 == pytest.approx(1.0, rel=0.091)
        assert rollups.merge_rollups(connection) == merged
        assert Rollup.objects.count() == 3, "a row that is refused would be merged alone"


def test_throughput_of_queue_or_task_leaves_out_others(connection):
    append(connection, 60, succeeded=1)
    append(connection, 60, queue="mail", succeeded=10, error="")
    append(connection, 60, task=add.name, error="KeyError", dead=100)
    assert last_hour(queue="mail").counts.finished == 10
    assert last_hour(task="shop.charge").counts.finished == 11
    assert last_hour(task=add).counts.finished == 100
    assert last_hour(task=add).failures[0].task_name == add.name
    assert last_hour(queue="mail").failures == ()
    assert last_hour(queue="none", task=add) == stats.throughput(last_hour().since, last_hour().until, queue="none")


def test_throughput_by_task_sums_each_task(connection):
    append(connection, 600, waits=[0.1] * 3, runs=[2.0] * 3, succeeded=3)
    append(connection, 60, queue="mail", error="KeyError", waits=[9.0], runs=[4.0], dead=1)
    append(connection, 60, task=add.name, runs=[0.5], succeeded=1)
    append(connection, 7200, task="shop.old", succeeded=1)
    charge, added = stats.throughput_by_task(timezone.now() - timedelta(hours=1), timezone.now() + MINUTE)
    assert (charge.name, charge.counts.finished, charge.counts.failed) == ("shop.charge", 4, 1)
    assert (charge.run.count, charge.wait.count, charge.run.mean) == (4, 4, pytest.approx(2.5))
    assert charge.run.p95 == pytest.approx(4.0, rel=0.091)
    assert (added.name, added.wait.p50, added.run.p50) == (add.name, None, pytest.approx(0.5, rel=0.091))
    [mail] = stats.throughput_by_task(queue="mail")
    assert (mail.name, mail.counts.dead) == ("shop.charge", 1)


def test_throughput_reads_parts_minutes_and_hours_alike(connection):
    for seconds in (30, 3600, 8 * 3600):
        append(connection, seconds, runs=[1.0], succeeded=1)
    rollups.merge_rollups(connection)
    rollups.merge_rollups(connection)
    found = stats.throughput(timezone.now() - timedelta(hours=10), timezone.now() + MINUTE)
    assert [point.seconds for point in found.points] == [3600, 60, 60]
    assert (found.counts.succeeded, found.run.count) == (3, 3)
    assert found.points[0].per_minute(60) == 1
    hours = stats.throughput(timezone.now() - timedelta(hours=10), timezone.now() + MINUTE, hourly=True)
    assert [point.seconds for point in hours.points] == [3600] * 3
    assert [point.starts_at.minute for point in hours.points] == [0] * 3
    assert (hours.counts, hours.run, hours.points[2].counts.succeeded) == (found.counts, found.run, 1)


@pytest.mark.promise("stats-sums")
def test_throughput_of_everything_equals_the_sum_of_the_queues(connection):
    for seconds in (30, 3600, 8 * 3600):
        append(connection, seconds, waits=[1.0, 2.0], runs=[0.5, 0.5], succeeded=2)
        append(connection, seconds, queue="mail", task="shop.mail", waits=[9.0], runs=[4.0], dead=1, error="KeyError")
    while rollups.merge_rollups(connection):
        pass
    period = timezone.now() - timedelta(hours=10), timezone.now() + MINUTE
    for hourly in (False, True):
        everything = stats.throughput(*period, hourly=hourly)
        queues = [stats.throughput(*period, queue=name, hourly=hourly) for name in ("default", "mail")]
        assert [point.starts_at for point in everything.points] == [point.starts_at for point in queues[0].points]
        assert (everything.counts.succeeded, everything.counts.dead) == (6, 3)
        assert everything.run.count == sum(queue.run.count for queue in queues) == 9
        assert everything.wait.mean == pytest.approx(4.0)
        assert everything.run.p95 == queues[1].run.p95
        assert everything.failures == queues[1].failures != ()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_rollup WHERE span IN ('minute', 'hour')")
    assert stats.throughput(*period).counts == everything.counts, "it reads only the totals"
    assert stats.throughput(*period, queue="mail").counts.dead < 3


def test_throughput_without_failures_or_waits_leaves_only_them_out(connection, django_assert_num_queries):
    append(connection, 60, waits=[1.0], runs=[2.0], dead=1, error="KeyError")
    whole = last_hour()
    with django_assert_num_queries(2):
        found = last_hour(with_failures=False)
    assert (found.failures, found.counts, found.wait) == ((), whole.counts, whole.wait)
    [task] = stats.throughput_by_task()
    [without] = stats.throughput_by_task(waits=False)
    assert (without.wait, without.run, without.counts) == (stats.Durations(), task.run, task.counts)


def test_throughput_hourly_merges_the_minutes_of_an_hour(connection):
    now = timezone.now()
    for seconds in (0, 60) if now.minute else (60, 120):
        append(connection, seconds, runs=[1.0] * 5 if seconds == 60 else [4.0] * 5, succeeded=5)
    [hour] = stats.throughput(hourly=True).points
    assert (hour.counts.succeeded, hour.run.count, hour.per_minute(120)) == (10, 10, 2)
    assert hour.run.p50 == pytest.approx(1.0, rel=0.091) and hour.run.p95 == pytest.approx(4.0, rel=0.091)


def test_failures_are_those_of_throughput(connection):
    append(connection, 60, error="ValueError", retried=2, dead=1)
    append(connection, 60, queue="mail", error="KeyError", dead=1)
    assert stats.failures() == stats.throughput().failures
    assert [each.exception_class for each in stats.failures(queue="mail")] == ["KeyError"]


def test_throughput_without_counts_is_empty(db):
    found = stats.throughput()
    assert (found.points, found.counts, found.failures) == ((), stats.AttemptCounts(), ())
    assert found.wait == stats.Durations()
    assert found.until - found.since >= timedelta(hours=1)


def test_throughput_of_invalid_period_is_refused(db):
    now = timezone.now()
    with pytest.raises(ValueError, match=r"since must be before until, got 20"):
        stats.throughput(now, now)
    with pytest.raises(ValueError, match=r"since needs a time zone, got datetime"):
        stats.throughput(datetime(2026, 1, 1))  # noqa: DTZ001 -- the mistake to refuse


def test_finished_per_minute_is_that_of_the_last_complete_minute(connection):
    for seconds, count in ((0, 1000), (60, 3), (60, 4), (120, 50)):
        append(connection, seconds, queue="mail", succeeded=count, released=9)
    queues = {queue.name: queue for queue in stats.queues()}
    assert queues["mail"].finished_per_minute == 7
    assert stats.overview().finished_per_minute == 7


def test_finished_per_minute_without_stats_is_unknown(connection, settings):
    settings.PGQUEUE = {"STATS": False}
    helpers.make_jobs(connection, 1)
    assert {queue.finished_per_minute for queue in stats.queues()} == {None}
    assert {task.finished_per_minute for task in stats.tasks()} == {None}
    assert stats.overview().finished_per_minute is None
