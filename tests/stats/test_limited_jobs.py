"""Operators see the jobs with a limit wherever they see those without one."""

from __future__ import annotations

import json
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.db import connection, models
from django.utils import timezone

from django_pgqueue import Limit, control, queues, stats
from django_pgqueue.deploys import stored
from django_pgqueue.job_search import Filters, find
from django_pgqueue.lifecycle.bulk_acts import Selection
from django_pgqueue.lifecycle.bulk_selection import read_page
from django_pgqueue.models import Job
from django_pgqueue.stats.limits import lanes as limited_lanes
from django_pgqueue.stats.limits import ready
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.app import tasks

pytestmark = pytest.mark.django_db

LIMITED: Task[..., Any] = Task(
    func=tasks.add.func, name=tasks.add.name, queue_name="mail", limit=Limit("customers", key="{a}", concurrency=1)
)
LATER = timedelta(hours=1)


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the limit. Each of its keys has one slot, so one of its due jobs is held."""
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"customers": LIMITED.limit}))


@pytest.fixture
def jobs() -> list[int]:
    """Add jobs with a limit: three that are due, two that are due later, and one due job without a limit."""
    due = LIMITED.enqueue_many([(1,), (2,), (1,)])
    later = LIMITED.using(run_after=LATER).enqueue_many([(1,), (3,)])
    return [*due, *later, tasks.add.using(queue_name="mail").enqueue(1).pk]


def mail() -> stats.QueueStats:
    [queue] = [each for each in stats.queues() if each.name == "mail"]
    return queue


@pytest.mark.usefixtures("jobs")
def test_queues_count_jobs_with_and_without_limit():
    queue = mail()
    assert (queue.name, queue.due.value, queue.held.value, queue.scheduled.value) == ("mail", 3, 1, 2)
    assert queue.due.is_exact and queue.held.is_exact
    assert queue.oldest_due_seconds is not None
    overview = stats.overview()
    assert (overview.due, overview.held) == (stats.Count(3), stats.Count(1))


@pytest.mark.usefixtures("jobs")
def test_tasks_count_jobs_with_limit():
    [task] = [each for each in stats.tasks() if each.name == tasks.add.name]
    assert (task.due.value, task.held.value, task.scheduled.value) == (3, 1, 2)


@pytest.mark.usefixtures("jobs")
def test_lane_is_listed_once():
    [lane] = stats.lanes()
    assert (lane.queue_name, lane.priority) == ("mail", 0)
    assert (lane.due.value, lane.held.value, lane.scheduled.value) == (3, 1, 2)


@pytest.mark.usefixtures("jobs")
def test_retrying_jobs_with_limit_are_counted_apart():
    Job.objects.filter(limit_key="customers:3").update(attempt=1)
    queue = mail()
    assert (queue.scheduled.value, queue.retrying.value) == (1, 1)


@pytest.mark.usefixtures("jobs")
def test_paused_jobs_with_limit_are_paused():
    control.pause("mail")
    queue = mail()
    assert (queue.due.value, queue.held.value, queue.paused.value) == (0, 0, 4)


@pytest.mark.usefixtures("jobs")
def test_count_of_more_jobs_than_are_read_is_not_exact(monkeypatch):
    monkeypatch.setattr(ready, "ROWS_LIMIT", 2)
    queue = mail()
    assert not queue.due.is_exact
    assert not queue.held.is_exact
    assert not queue.scheduled.is_exact


def test_lanes_with_limit_are_found_in_all_queues_and_priorities():
    for queue, priority in (("a", 1), ("a", -1), ("b", 0)):
        LIMITED.using(queue_name=queue, priority=priority).enqueue(1)
    tasks.add.using(queue_name="c").enqueue(1)
    assert limited_lanes.limited_lanes(connection) == [("a", 1), ("a", -1), ("b", 0)]


def test_names_contain_queues_of_jobs_with_limit(monkeypatch):
    monkeypatch.setattr(stats.used_names, "RECENT_JOBS", 1)
    LIMITED.using(queue_name="a").enqueue(1)
    LIMITED.using(queue_name="b").enqueue(1)
    tasks.add.using(queue_name="c").enqueue(1)
    assert stats.names(connection).queues == ["a", "b", "c"]


def test_filters_contain_jobs_with_limit(jobs):
    def found(query: Any) -> list[int]:
        return sorted(query.values_list("pk", flat=True))

    assert found(Job.objects.ready()) == jobs
    assert found(Job.objects.due()) == [*jobs[:3], jobs[5]]
    assert found(Job.objects.scheduled()) == jobs[3:5]
    assert found(control.waiting("mail")) == jobs
    assert found(queues.waiting("mail", "default")) == jobs


@pytest.mark.usefixtures("jobs")
def test_filters_count_jobs_of_both_kinds_once():
    ready = Job.objects.ready()
    assert (ready.count(), ready.exists(), len(ready), ready.count()) == (6, True, 6, 6)
    assert (ready.all()[:4].count(), ready.values("queue_name").distinct().count()) == (4, 1)
    assert ready.values("limit_key").annotate(jobs=models.Count("pk")).count() == 4
    assert ready.union(Job.objects.running()).count() == 6
    assert [ready.all().count_up_to(limit) for limit in (1, 3, 6, 7)] == [1, 3, 6, 6]
    assert Job.objects.ready().filter(limit_key__isnull=False).exists()
    assert not Job.objects.ready().filter(queue_name="other").exists()


@pytest.mark.usefixtures("jobs")
def test_filters_ask_for_each_kind(django_assert_num_queries):
    jobs = Job.objects.ready().filter(queue_name="mail").order_by("pk")
    with django_assert_num_queries(2):
        jobs.count()
    with django_assert_num_queries(1):
        jobs.exists()
    with django_assert_num_queries(2):
        jobs.filter(limit_key__isnull=False).exists()
    with django_assert_num_queries(1):
        Job.objects.filter(queue_name="mail").count()


@pytest.mark.parametrize(("word", "places"), [("due", [0, 1, 2, 5]), ("scheduled", [3, 4]), ("ready", range(6))])
def test_search_finds_jobs_with_limit(jobs, word, places):
    found = find(Filters(words=(word,), alias="default"), 10)
    assert sorted(found.ids) == [jobs[place] for place in places]


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_bulk_act_pages_through_jobs_with_and_without_limit(jobs, size):
    other = LIMITED.using(queue_name="other", priority=3).enqueue(1).pk
    at, cursor, found = timezone.now() + timedelta(seconds=1), None, []
    while True:
        selection = Selection("ready")
        page = read_page(connection, selection, cursor, at, states=["ready"], audit_id=1, limit=size, shown=size)
        found += [row.job_id for row in page.rows if row.is_chosen]
        if page.is_last:
            break
        cursor = json.loads(json.dumps(page.rows[-1].position))
    assert found[0] == jobs[5], "jobs without a limit come first"
    assert sorted(found) == sorted([*jobs, other])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_bulk_act_by_limit_pages_through_all_its_lanes(jobs, size):
    """No job leaves its range here, as it does while a worker executes the act."""
    others = [LIMITED.using(queue_name=name).enqueue(2).pk for name in ("lists", "other")]
    lowest = LIMITED.using(queue_name="other", priority=-100).enqueue(2).pk
    at, cursor, found = timezone.now() + timedelta(seconds=1), None, []
    while True:
        selection = Selection("ready", limit_key="customers")
        page = read_page(connection, selection, cursor, at, states=["ready"], audit_id=1, limit=size, shown=size)
        found += [row.job_id for row in page.rows if row.is_chosen]
        assert len(page.rows) <= size
        if page.is_last:
            break
        cursor = json.loads(json.dumps(page.rows[-1].position))
    assert found == [others[0], jobs[0], jobs[2], jobs[3], jobs[1], jobs[4], others[1], lowest]


def test_bulk_act_on_a_queue_leaves_jobs_of_other_queues(jobs):
    LIMITED.using(queue_name="lists").enqueue(1)
    LIMITED.using(queue_name="other").enqueue(1)
    at = timezone.now() + timedelta(seconds=1)
    for word, places in (("ready", range(6)), ("due", [0, 1, 2, 5]), ("scheduled", [3, 4])):
        selection = Selection(word, queue_name="mail")
        page = read_page(connection, selection, None, at, states=["ready"], audit_id=1, limit=20, shown=20)
        assert sorted(row.job_id for row in page.rows) == [jobs[place] for place in places], word


@pytest.mark.usefixtures("jobs")
def test_check_of_a_deploy_reads_jobs_with_limit(monkeypatch):
    monkeypatch.setattr(stored, "BATCH", 2)
    batches = [batch for lane in stored._lanes(connection) for batch in lane]
    assert sorted(job_id for batch in batches for job_id in batch) == sorted(Job.objects.values_list("pk", flat=True))
