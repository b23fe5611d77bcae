"""`why()` names the reason why a job has not started, in each of the cases that it knows."""

import re
from datetime import timedelta

import pytest

from django_pgqueue import stats
from django_pgqueue.lifecycle import completions, operator, pauses
from django_pgqueue.lifecycle.types import Cancelled, Lane, Released
from django_pgqueue.models import Job
from django_pgqueue.states import Pausable
from django_pgqueue.stats import Count, Reason
from django_pgqueue.stats.limits import ready
from django_pgqueue.stats.sentences import utc_text
from tests import helpers
from tests.documents import plain, table
from tests.stats.limited_jobs import add

HANG = "tests.app.tasks.hang"
SENTENCES = {
    plain(reason): [re.sub(r"(\\ )?…", ".*", re.escape(text)) for text in re.findall('"(.+?)"', sentences)]
    for reason, sentences, _ in table("docs/production/troubleshooting.md", "reason")
}
"""What the page for operators says that a sentence is, for each reason. `…` stands for what differs."""


def update(connection, table, columns, row_id):
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgqueue_{table} SET {columns} WHERE id = %s", [row_id])


def claimed(connection, worker_id=1, **options):
    helpers.make_job(connection)
    return helpers.claim_one(connection, worker_id=worker_id, **options)


def assert_why(job_id, reason, *words, **fields):
    found = stats.why(job_id)
    assert found.reason is reason, found
    for word in words:
        assert word in found.sentence
    assert found.sentence.endswith(".")
    assert any(re.fullmatch(pattern, found.sentence) for pattern in SENTENCES[reason]), "the page has another sentence"
    assert {name: getattr(found, name) for name in fields} == fields
    shown = stats.why(job_id, time_text=lambda at: f"<{at.tzinfo is not None}>").sentence
    assert shown.count("<True>") == found.sentence.count(" UTC") and " UTC" not in shown
    return found


def test_why_job_without_row_is_gone(db):
    assert_why(1_000_000, Reason.GONE, state=None)


def test_why_unsaved_job_is_refused():
    with pytest.raises(ValueError, match="never enqueued"):
        stats.why(Job())


def test_why_finished_job_tells_how_it_ended(connection):
    job = claimed(connection)
    completions.succeed(connection, helpers.succeeded(job.key))
    assert_why(job.job_id, Reason.FINISHED, "succeeded at")
    job = claimed(connection)
    completions.fail(connection, helpers.failed(job.key, None))
    assert_why(job.job_id, Reason.FINISHED, "dead", "RuntimeError: as asked.", exception_class="RuntimeError")
    job = claimed(connection)
    completions.end_cancelled(connection, [Cancelled(job.key, None, 0.0, "not needed")])
    assert_why(job.job_id, Reason.FINISHED, "cancelled", "not needed.")


def test_why_running_job_names_its_worker(connection, add_worker):
    worker_id = add_worker()
    job = claimed(connection, worker_id)
    update(connection, "execution", "started_at = started_at - interval '10 min'", job.execution_id)
    assert_why(job.job_id, Reason.RUNNING, "on worker vm:7 for 10 min", worker="vm:7", worker_id=worker_id)
    operator.cancel(connection, [job.job_id])
    assert_why(job.job_id, Reason.CANCELLING, "asked to stop")


def test_why_prefetched_job_waits_for_a_slot(connection):
    job = claimed(connection, free_slots=0)
    assert_why(job.job_id, Reason.PREFETCHED, "free slot or has started since the last heartbeat", started_at=None)


def test_why_job_of_lost_worker_waits_for_rescue(connection, add_worker):
    job = claimed(connection, add_worker())
    update(connection, "execution", "lease_expires_at = statement_timestamp() - interval '1 s'", job.execution_id)
    assert_why(job.job_id, Reason.LOST, "lease of worker vm:7 ended", "rescue", worker="vm:7")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_execution WHERE id = %s", [job.execution_id])
    assert_why(job.job_id, Reason.LOST, "is gone", worker_id=None)


def test_why_expired_job_is_not_scheduled(connection):
    job_id = helpers.make_job(connection, expires_seconds=-1.0)
    assert_why(job_id, Reason.EXPIRED, "expired")


def test_why_job_of_unknown_task_shows_the_error(connection):
    job = claimed(connection)
    released = Released(job.key, 30.0, "this worker has no task 'shop.charge'")
    completions.release(connection, [released], unknown=True)
    found = assert_why(job.job_id, Reason.UNKNOWN_TASK, "no task 'shop.charge'.", "again at")
    assert found.unknown_since is not None
    dead_at = utc_text(found.unknown_since + timedelta(hours=1))
    assert f"If no worker can run it, the first attempt after {dead_at} makes it dead." in found.sentence


def test_why_job_due_later_tells_when(connection):
    job_id = helpers.make_job(connection, delay_seconds=60.0)
    found = assert_why(job_id, Reason.SCHEDULED, "due at")
    assert found.due_at == Job.objects.get(pk=job_id).run_after
    job = claimed(connection)
    completions.fail(connection, helpers.failed(job.key, 60.0))
    assert_why(job.job_id, Reason.RETRYING, "Attempt 1 of 10", "RuntimeError: as asked.", attempt=1, max_attempts=10)


def test_why_job_of_paused_queue_or_task_names_the_operator(connection):
    job_id = helpers.make_job(connection)
    pauses.pause(connection, Pausable.TASK, helpers.NOOP, until=None, paused_by="ben", reason="")
    assert_why(job_id, Reason.TASK_PAUSED, f"task {helpers.NOOP} (by ben, since")
    pauses.pause(connection, Pausable.QUEUE, "default", for_seconds=60.0, paused_by="anna", reason="wrong link.")
    found = assert_why(job_id, Reason.QUEUE_PAUSED, "queue default: wrong link (by anna", "until")
    assert found.pause.until - found.pause.paused_at == timedelta(seconds=60)


def test_why_without_live_worker_says_so(connection, add_worker):
    job_id = helpers.make_job(connection)
    assert_why(job_id, Reason.NO_WORKER, "runworker")
    add_worker(silent_seconds=61)
    assert_why(job_id, Reason.NO_WORKER)
    add_worker("reports")
    assert_why(job_id, Reason.QUEUE_NOT_SERVED, "1 worker process runs, and none of them serves the queue default")


def test_why_without_worker_of_this_installation_says_what_workers_wait_for(connection, settings):
    job_id = helpers.make_job(connection)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_installation (id, system_identifier, database_oid, environment) VALUES (1, '7', 5, '')"
        )
    found = assert_why(job_id, Reason.NO_WORKER, "belongs to another installation (server 7, not ", "adopt`.")
    assert "database with OID 5, not " in found.sentence and "start `manage.py" not in found.sentence
    settings.PGQUEUE = {"CLONE_GUARD": "warn"}
    assert_why(job_id, Reason.NO_WORKER, "start `manage.py runworker`.")


def test_why_with_busy_slots_names_the_tasks_that_hold_them(connection, add_worker):
    worker_id = add_worker(concurrency=2)
    helpers.make_jobs(connection, 2, task_name=HANG)
    for job in helpers.claim_all(connection, worker_id=worker_id):
        update(connection, "execution", "started_at = started_at - interval '10 min'", job.execution_id)
    helpers.make_jobs(connection, 1)
    job_id = helpers.make_job(connection)
    found = assert_why(
        job_id, Reason.SLOTS_BUSY, "All 2 slots", f"2 × {HANG} for up to 10 min", "1 due job is claimed before it",
        slots_busy=2, slots_total=2, ahead=Count(1),
    )  # fmt: skip
    assert [(task.task_name, task.slots) for task in found.busy_tasks] == [(HANG, 2)]


def test_why_with_busy_slots_names_no_prefetched_job(connection, add_worker):
    worker_id = add_worker(concurrency=1)
    helpers.make_job(connection, task_name=HANG)
    helpers.claim_all(connection, worker_id=worker_id)
    helpers.make_jobs(connection, 2)
    helpers.claim_all(connection, worker_id=worker_id, free_slots=0)
    found = assert_why(helpers.make_job(connection), Reason.SLOTS_BUSY, "The only slot", f"1 × {HANG}", slots_busy=1)
    assert [(task.task_name, task.slots) for task in found.busy_tasks] == [(HANG, 1)]


def test_why_with_busy_slots_says_how_long_started_jobs_ran(connection, add_worker):
    worker_id = add_worker(concurrency=1)
    helpers.make_jobs(connection, 2, task_name=HANG)
    started, waits = helpers.claim_all(connection, worker_id=worker_id, free_slots=1)
    update(connection, "execution", "started_at = started_at - interval '10 s'", started.execution_id)
    update(connection, "execution", "claimed_at = claimed_at - interval '30 s'", waits.execution_id)
    assert_why(helpers.make_job(connection), Reason.SLOTS_BUSY, f"1 × {HANG} for up to 10 s")


def test_why_counts_the_slots_that_queue_options_leave(connection, add_worker):
    """The worker has free slots, but none for the queue. Its jobs of other queues are not the reason."""
    worker_id = add_worker("default=2,mail=", concurrency=6)
    helpers.make_jobs(connection, 3, task_name=HANG)
    helpers.claim_all(connection, limit=2, worker_id=worker_id)
    mail = Lane("mail", 0)
    helpers.make_jobs(connection, 2, queue_name="mail", task_name="app.send")
    helpers.claim_all(connection, mail, limit=1, worker_id=worker_id)
    job_id = helpers.make_job(connection)
    found = assert_why(
        job_id, Reason.SLOTS_BUSY, "All 2 slots for default are busy (2 × ", slots_busy=2, slots_total=2,
    )  # fmt: skip
    assert [(task.task_name, task.slots) for task in found.busy_tasks] == [(HANG, 2)]
    waiting = Job.objects.get(queue_name="mail", state="ready").pk
    assert_why(waiting, Reason.NEXT, slots_busy=3, slots_total=6)
    [default, queue] = [queue for queue in stats.queues() if queue.name in ("default", "mail")]
    assert (default.slots_busy, default.slots_total) == (2, 2)
    assert (queue.slots_busy, queue.slots_total) == (3, 6)
    [worker] = stats.workers()
    assert (worker.slots_busy, worker.slots_total) == (3, 6)
    assert (worker.queues, worker.queue_concurrency) == (("default", "mail"), {"default": 2, "mail": None})


def test_why_with_all_slots_busy_names_the_jobs_of_other_queues(connection, add_worker):
    worker_id = add_worker("default=2,mail=", concurrency=3)
    helpers.make_jobs(connection, 3, queue_name="mail", task_name="app.send")
    helpers.claim_all(connection, Lane("mail", 0), worker_id=worker_id)
    job_id = helpers.make_job(connection)
    found = assert_why(job_id, Reason.SLOTS_BUSY, "All 2 slots for default are busy (3 × app.send")
    assert [(task.task_name, task.slots) for task in found.busy_tasks] == [("app.send", 3)]


def test_why_of_other_queues_counts_the_slots_that_they_share(connection, add_worker):
    worker_id = add_worker("mail=5,*=1", concurrency=6)
    helpers.make_job(connection, queue_name="reports", task_name=HANG)
    helpers.claim_all(connection, Lane("reports", 0), worker_id=worker_id)
    assert_why(helpers.make_job(connection), Reason.SLOTS_BUSY, slots_busy=1, slots_total=1)
    assert "*" not in {queue.name for queue in stats.queues()}


@pytest.mark.promise("stats-why-ahead")
def test_why_counts_the_jobs_that_are_claimed_before(connection, add_worker):
    """It counts earlier jobs of the lane, and lanes that come first; not later jobs, paused queues or lower lanes."""
    add_worker()
    helpers.make_jobs(connection, 3)
    job_id = helpers.make_job(connection)
    helpers.make_jobs(connection, 5)
    helpers.make_jobs(connection, 2, queue_name="mail", priority=1)
    helpers.make_jobs(connection, 7, queue_name="mail", priority=-1)
    helpers.make_jobs(connection, 9, queue_name="held", priority=1)
    pauses.pause(connection, Pausable.QUEUE, "held")
    assert_why(job_id, Reason.IN_LINE, "5 due jobs are claimed before it", ahead=Count(5))


def test_why_does_not_know_how_many_come_first_in_a_cut_lane(connection, add_worker, monkeypatch):
    """The jobs that were counted are held. Others can stand behind them."""
    add_worker()
    job_id = helpers.make_job(connection)
    add("nobody", 3, priority=1)
    monkeypatch.setattr(ready, "ROWS_LIMIT", 2)
    assert_why(job_id, Reason.IN_LINE, "an unknown number of due jobs is claimed before it", ahead=Count(0, False))


def test_why_does_not_count_held_jobs_of_other_lanes(connection, add_worker):
    """A claim of the job meets them in a lane with a higher priority, and their limit admits none."""
    add_worker()
    job_id = helpers.make_job(connection)
    helpers.make_jobs(connection, 2, priority=1)
    add("nobody", 3, priority=1)
    assert_why(job_id, Reason.IN_LINE, "2 due jobs are claimed before it", ahead=Count(2))


@pytest.mark.parametrize(
    ("queues", "ahead"),
    [("default,mail", 0), ("mail,default", 9), ("default", 0), ("default=1,mail=", 2), ("default=1", 0)],
)
def test_why_follows_the_order_of_the_queues_of_a_worker(connection, add_worker, queues, ahead):
    add_worker(queues)
    job_id = helpers.make_job(connection)
    helpers.make_jobs(connection, 2, queue_name="mail", priority=1)
    helpers.make_jobs(connection, 7, queue_name="mail", priority=-1)
    assert_why(job_id, Reason.IN_LINE if ahead else Reason.NEXT, ahead=Count(ahead))


def test_why_first_job_is_next(connection, add_worker):
    add_worker()
    job_id = helpers.make_job(connection)
    assert_why(Job.objects.get(pk=job_id), Reason.NEXT, "next in line", workers=1, slots_busy=0)
