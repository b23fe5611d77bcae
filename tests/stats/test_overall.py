"""The figures of queues, tasks, lanes and workers."""

import pytest

from django_pgqueue import stats
from django_pgqueue.lifecycle import chunks, completions, pauses
from django_pgqueue.states import Pausable
from django_pgqueue.stats import Count, depths, fleet, overall
from tests import helpers

SLOW, FAST = "tests.app.tasks.slow", helpers.NOOP
CLAIMED = {"running": 2, "prefetched": 1, "lost": 1}
"""The jobs of the queue `mail` that workers have claimed."""


def run(connection, statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def claim(connection, queue, worker_id, **changes):
    return helpers.claim_all(connection, helpers.Lane(queue, 0), worker_id=worker_id, **changes)


@pytest.fixture
def jobs(connection, add_worker):
    """Put jobs in every state into the queue `mail`, and one due job of another task into `reports`."""
    worker_id = add_worker(concurrency=2)
    lost_id = add_worker(silent_seconds=3600)
    helpers.make_jobs(connection, 3, queue_name="mail")
    claim(connection, "mail", worker_id, free_slots=2)
    helpers.make_jobs(connection, 1, queue_name="mail")
    [lost] = claim(connection, "mail", lost_id)
    run(
        connection,
        "UPDATE pgqueue_execution SET lease_expires_at = statement_timestamp() - interval '1 s' WHERE id = %s",
        lost.execution_id,
    )
    for delay_seconds in (60.0, None):  # one retry, one dead letter
        helpers.make_jobs(connection, 1, queue_name="mail")
        [failed] = claim(connection, "mail", worker_id)
        completions.fail(connection, helpers.failed(failed.key, delay_seconds))
    helpers.make_jobs(connection, 2, queue_name="mail", delay_seconds=3600.0)
    helpers.make_jobs(connection, 4, queue_name="mail")
    helpers.make_jobs(connection, 1, queue_name="reports", priority=5, task_name=SLOW)
    run(connection, "UPDATE pgqueue_job SET run_after = run_after - interval '90 s' WHERE state = 'ready'")
    run(connection, "UPDATE pgqueue_job SET run_after = run_after + interval '180 s' WHERE attempt = 1")
    return worker_id


def queue_named(name):
    return {queue.name: queue for queue in stats.queues()}[name]


def depth_of(figures):
    states = ("due", "scheduled", "retrying", "paused", "running", "prefetched", "lost", "dead")
    counts = {state: getattr(figures, state) for state in states}
    assert all(count.is_exact for count in counts.values())
    return {state: count.value for state, count in counts.items() if count.value}


@pytest.mark.promise("stats-one-state")
def test_queues_count_each_job_in_one_state(jobs):
    assert depth_of(queue_named("mail")) == {
        "due": 4, "scheduled": 2, "retrying": 1, **CLAIMED, "dead": 1,
    }  # fmt: skip
    assert depth_of(queue_named("reports")) == {"due": 1}
    assert 90 < queue_named("mail").oldest_due_seconds < 100


def test_tasks_count_each_job_in_one_state(jobs):
    tasks = {task.name: task for task in stats.tasks()}
    assert depth_of(tasks[FAST]) == {"due": 4, "scheduled": 2, "retrying": 1, **CLAIMED, "dead": 1}
    assert depth_of(tasks[SLOW]) == {"due": 1}
    assert 90 < tasks[SLOW].oldest_due_seconds < 100
    assert depth_of(tasks["tests.app.tasks.add"]) == {}  # a task of this process, without jobs


def test_prefetched_jobs_are_no_running_ones(connection, add_worker):
    worker_id = add_worker(concurrency=2)
    helpers.make_jobs(connection, 3, queue_name="mail")
    helpers.make_jobs(connection, 3, queue_name="reports")
    claim(connection, "mail", worker_id, free_slots=0)
    started, *_ = claim(connection, "reports", worker_id, free_slots=0)
    # No start is recorded yet, so the two oldest have the slots.
    assert depth_of(queue_named("mail")) == {"running": 2, "prefetched": 1}
    assert depth_of(queue_named("reports")) == {"prefetched": 3}
    run(connection, "UPDATE pgqueue_execution SET started_at = claimed_at WHERE id = %s", started.execution_id)
    assert depth_of(queue_named("mail")) == {"running": 1, "prefetched": 2}
    assert depth_of(queue_named("reports")) == {"running": 1, "prefetched": 2}
    [worker] = stats.workers()
    assert (worker.slots_busy, worker.prefetched, worker.claimed) == (2, 4, 6)
    assert depth_of(stats.overview()) == {"running": 2, "prefetched": 4}
    assert {name: depth_of(task) for task in stats.tasks() if (name := task.name) == FAST} == {
        FAST: {"running": 2, "prefetched": 4}
    }


def test_started_jobs_run_also_beyond_the_slots_of_their_worker(connection, add_worker):
    """All jobs of a chunk run in one slot."""
    worker_id = add_worker(concurrency=1)
    helpers.make_jobs(connection, 3, queue_name="mail")
    claim(connection, "mail", worker_id)
    assert depth_of(queue_named("mail")) == {"running": 3}
    [worker] = stats.workers()
    assert (worker.slots_busy, worker.prefetched, worker.claimed) == (1, 0, 3)


def test_jobs_run_in_the_slots_beside_a_chunk(connection, add_worker):
    """No start of a plain job is recorded yet. Two run in the slots that the chunk leaves, and one is prefetched."""
    worker_id = add_worker("default=3,mail=", concurrency=3)
    helpers.make_jobs(connection, 4, task_name=FAST)
    run(connection, "UPDATE pgqueue_job SET limit_key = '+' || task_name")
    lane = helpers.Lane("default", 0, chunk_key=f"+{FAST}")
    chunks.claim_chunk(connection, lane, chunks.ChunkRule(4, 0.0), worker_id=worker_id, lease_seconds=60.0)
    assert queue_named("default").slots_busy == 1
    helpers.make_jobs(connection, 2, queue_name="mail")
    claim(connection, "mail", worker_id, free_slots=0)
    default = queue_named("default")
    assert (depth_of(default), default.slots_busy, default.slots_total) == ({"running": 4}, 3, 3)
    assert depth_of(queue_named("mail")) == {"running": 2}
    helpers.make_jobs(connection, 1, queue_name="mail")
    claim(connection, "mail", worker_id, free_slots=0)
    assert depth_of(queue_named("mail")) == {"running": 2, "prefetched": 1}
    [worker] = stats.workers()
    assert (worker.slots_busy, worker.prefetched, worker.claimed) == (3, 1, 7)
    found = stats.why(helpers.make_job(connection, queue_name="mail"))
    assert sorted(task.slots for task in found.busy_tasks) == [3]


def test_queues_of_live_workers_have_their_slots(jobs):
    mail = queue_named("mail")
    assert (mail.workers, mail.slots_busy, mail.slots_total) == (1, 2, 2)


def test_paused_queue_has_paused_jobs_and_no_due_ones(connection, jobs):
    pauses.pause(connection, Pausable.QUEUE, "mail", paused_by="anna", reason="wrong link")
    mail = queue_named("mail")
    assert depth_of(mail) == {"paused": 4, "scheduled": 2, "retrying": 1, **CLAIMED, "dead": 1}
    assert mail.is_paused
    assert (mail.pause.by, mail.pause.reason, mail.oldest_due_seconds) == ("anna", "wrong link", None)
    assert [lane.is_paused for lane in stats.lanes()] == [True, False]


def test_paused_task_has_paused_jobs_in_its_queue(connection, jobs):
    helpers.make_jobs(connection, 1, queue_name="mail", task_name=SLOW)
    pauses.pause(connection, Pausable.TASK, FAST)
    assert depth_of(queue_named("mail"))["paused"] == 4
    assert depth_of(queue_named("mail"))["due"] == 1
    assert not queue_named("mail").is_paused
    assert {task.name for task in stats.tasks() if task.is_paused} == {FAST}


def test_queue_without_jobs_is_listed_if_known(connection, add_worker, settings):
    settings.PGQUEUE = {"QUEUES": ["default", "listed"]}
    add_worker("served,default")
    pauses.pause(connection, Pausable.QUEUE, "held")
    queues = {queue.name: queue for queue in stats.queues()}
    assert {"served", "default", "held", "listed"} <= set(queues)
    assert queues["served"].workers == 1
    assert queues["held"].workers == 0


def test_lanes_have_counts_by_priority(jobs):
    mail, reports = stats.lanes()
    assert (mail.queue_name, mail.priority, mail.due, mail.scheduled, mail.retrying) == (
        "mail", 0, Count(4), Count(2), Count(1),
    )  # fmt: skip
    assert (reports.queue_name, reports.priority, reports.due) == ("reports", 5, Count(1))


def test_queue_figures_are_those_of_three_functions(connection, jobs, django_assert_max_num_queries):
    helpers.make_jobs(connection, 2, queue_name="reports", priority=7)
    for pauses_task in (False, True):
        if pauses_task:
            pauses.pause(connection, Pausable.TASK, FAST)
        with django_assert_max_num_queries(10):  # one of them looks for jobs with a limit, in an empty index
            found = stats.queue_figures()
        assert [(queue.name, depth_of(queue)) for queue in found.queues] == [
            (queue.name, depth_of(queue)) for queue in stats.queues()
        ]
        assert [worker.id for worker in found.workers] == [worker.id for worker in stats.workers()]
        in_order = [(lane.queue_name, lane.priority) for lane in found.lanes]
        assert in_order == [("mail", 0), ("reports", 7), ("reports", 5)]
        for lane, single in zip(found.lanes, stats.lanes(), strict=True):
            assert (lane.queue_name, lane.priority, lane.due) == (single.queue_name, single.priority, single.due)
            assert (lane.scheduled, lane.retrying) == (single.scheduled, single.retrying)
            assert lane.oldest_due_seconds == pytest.approx(single.oldest_due_seconds, abs=5)


@pytest.mark.promise("stats-lower-bounds")
def test_counts_beyond_limit_are_lower_bounds(connection, jobs, monkeypatch):
    monkeypatch.setattr(depths, "COUNT_LIMIT", 3)
    due = queue_named("mail").due
    assert (due, str(due)) == (Count(3, is_exact=False), "3+")
    assert not {task.name: task for task in stats.tasks()}[SLOW].due.is_exact  # it may have more in the lane of `mail`
    assert queue_named("reports").due == Count(1)


@pytest.mark.promise("stats-lower-bounds")
def test_counts_beyond_a_limit_are_the_limit(connection, add_worker, monkeypatch):
    """None of them is one more, whichever statement counts, also as the sum of queues or tasks."""
    worker_id = add_worker(concurrency=9)
    for queue in ("a", "b"):
        helpers.make_jobs(connection, 3, queue_name=queue)
        claim(connection, queue, worker_id, free_slots=3)
        helpers.make_jobs(connection, 3, queue_name=queue)
        for job in claim(connection, queue, worker_id, free_slots=3):
            completions.fail(connection, helpers.failed(job.key, None))
        helpers.make_nodes(connection, 3, needs=[helpers.make_job(connection, queue_name="c", delay_seconds=60.0)])
    helpers.make_jobs(connection, 6, queue_name="d", delay_seconds=60.0)
    helpers.make_jobs(connection, 6, queue_name="e")
    monkeypatch.setattr(depths, "COUNT_LIMIT", 4)
    monkeypatch.setattr(depths, "OPEN_LIMIT", 4)
    monkeypatch.setattr(fleet, "OPEN_LIMIT", 4)
    monkeypatch.setattr(overall, "COUNT_LIMIT", 4)
    found, limited = stats.overview(), Count(4, is_exact=False)
    assert (found.running, found.dead, found.dead_24h, found.waiting) == (limited, limited, limited, limited)
    assert (queue_named("d").scheduled, queue_named("e").due) == (limited, limited)
    for state in ("running", "dead", "waiting", "due"):
        assert sum((getattr(task, state) for task in stats.tasks()), start=Count()) == limited, state


def test_count_of_lanes_that_share_a_bound_is_round(connection, monkeypatch):
    for queue in "abc":
        helpers.make_jobs(connection, 700, queue_name=queue)
    monkeypatch.setattr(depths, "DUE_TOTAL", 1999)
    assert [queue_named(queue).due for queue in "abc"] == [Count(600, is_exact=False)] * 3


def test_cut_lane_leaves_both_kinds_of_its_jobs_open(connection, monkeypatch):
    """All jobs that were counted are of the paused task. Others can stand behind them."""
    helpers.make_jobs(connection, 4, queue_name="mail")
    helpers.make_jobs(connection, 1, queue_name="mail", task_name=SLOW)
    pauses.pause(connection, Pausable.TASK, FAST)
    monkeypatch.setattr(depths, "COUNT_LIMIT", 3)
    mail = queue_named("mail")
    assert (mail.paused, mail.due) == (Count(3, is_exact=False), Count(0, is_exact=False))


def test_count_adds_and_prints_thousands():
    assert str(Count(12_345)) == "12,345"
    assert (str(Count(10_000, is_exact=False)), str(Count(0, is_exact=False))) == ("10,000+", "–")
    assert (Count.up_to(9, 10), Count.up_to(10, 10)) == (Count(9), Count(10, is_exact=False))
    assert Count(1) + Count(2) == Count(3)
    assert Count(1) + Count(2, is_exact=False) == Count(3, is_exact=False)


def test_workers_have_slots_and_show_who_is_silent(jobs):
    live, silent = stats.workers()
    assert (live.id, live.is_live, live.slots_busy, live.slots_total, live.prefetched) == (jobs, True, 2, 2, 1)
    assert (live.host, live.pid, live.queues) == ("vm", 7, ())
    assert (silent.is_live, silent.slots_busy) == (False, 1)
    assert silent.heartbeat_age_seconds > 3600


def test_worker_of_some_queues_serves_only_these(add_worker):
    add_worker("mail,reports")
    [worker] = stats.workers()
    assert worker.queues == ("mail", "reports")
    assert worker.serves("mail")
    assert not worker.serves("default")


def test_rates_are_those_of_the_last_minute(connection, jobs, monkeypatch):
    assert queue_named("mail").enqueued_per_minute == 12
    run(connection, "UPDATE pgqueue_job SET enqueued_at = enqueued_at - interval '30 s'")
    assert queue_named("mail").enqueued_per_minute == 12
    assert not queue_named("mail").enqueued_is_estimate
    run(connection, "UPDATE pgqueue_job SET enqueued_at = enqueued_at - interval '90 s'")
    assert queue_named("mail").enqueued_per_minute == 0


@pytest.mark.parametrize("seconds", [0, 2, 50])
def test_rate_of_more_jobs_than_are_counted_is_an_estimate(connection, jobs, monkeypatch, seconds):
    """The newest 6 of 13 jobs stand for the others, whenever in the minute these came. One of the 6 is in `reports`."""
    monkeypatch.setattr(depths, "ENQUEUED_LIMIT", 6)
    run(
        connection,
        "UPDATE pgqueue_job SET enqueued_at = enqueued_at - make_interval(secs => %s) "
        "WHERE id < (SELECT id FROM pgqueue_job ORDER BY id DESC OFFSET 5 LIMIT 1)",
        seconds,
    )
    for figures, number in (
        (queue_named("mail"), 13 * 5 / 6),
        (queue_named("reports"), 13 / 6),
        (stats.overview(), 13),
    ):
        assert figures.enqueued_is_estimate
        assert figures.enqueued_per_minute == pytest.approx(number, rel=0.01)
    monkeypatch.setattr(depths, "ENQUEUED_LIMIT", 14)
    assert (queue_named("mail").enqueued_per_minute, queue_named("mail").enqueued_is_estimate) == (12, False)


def test_overview_adds_the_queues_up(connection, jobs):
    overview = stats.overview()
    assert depth_of(overview) == {"due": 5, "scheduled": 2, "retrying": 1, **CLAIMED, "dead": 1}
    assert (overview.workers, overview.slots_busy, overview.slots_total) == (1, 2, 2)
    assert overview.enqueued_per_minute == 13
    assert overview.dead_24h == Count(1)
    assert 90 < overview.oldest_due_seconds < 100
    assert overview.unserved_queues == ()
    run(connection, "UPDATE pgqueue_worker SET queue_names = 'reports'")
    run(connection, "UPDATE pgqueue_job SET finished_at = finished_at - interval '2 days' WHERE state = 'dead'")
    overview = stats.overview()
    assert overview.unserved_queues == ("mail",)
    assert overview.dead_24h == Count(0)


def test_queue_that_gets_shorter_has_time_until_empty():
    queue = stats.QueueStats(name="mail", due=Count(300), enqueued_per_minute=20.0, finished_per_minute=50.0)
    assert queue.empties_in_seconds == 600
    assert stats.QueueStats(name="mail", due=Count(1), enqueued_per_minute=2.0).empties_in_seconds is None


def test_stats_read_the_given_database(committing, other):
    """The alias `other` has its own connection to the same database."""
    with helpers.closing(helpers.connect()) as engine:
        helpers.make_jobs(engine, 2, queue_name="elsewhere")
    assert [queue.due.value for queue in stats.queues("other") if queue.name == "elsewhere"] == [2]
