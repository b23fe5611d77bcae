"""Operations of the admin apply to the state that the page showed.

The tests cover double clicks, two operators at the same time, and the confirmation before succeeded jobs run again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, connections
from django.test import Client

from django_pgqueue.lifecycle import completions
from django_pgqueue.lifecycle import operator as lifecycle_operator
from django_pgqueue.models import Job, Schedule
from tests import helpers
from tests.admin.conftest import JobMaker, shown_by

pytestmark = pytest.mark.slow

JOBS, DEAD, SCHEDULES = "/admin/pgqueue/job/", "/admin/pgqueue/deadjob/", "/admin/pgqueue/schedule/"
ALL_ROWS = "SELECT job_id, count(*) FROM pgqueue_execution GROUP BY job_id"
committed = pytest.mark.django_db(transaction=True)


def post_at_once(*posts: Callable[[], Any]) -> list[Any]:
    """Send several forms at the same moment, each with its own connections; return the pages."""
    barrier = threading.Barrier(len(posts))

    def send(post: Callable[[], Any]) -> Any:
        barrier.wait(10)
        try:
            return post().content.decode()
        finally:
            connections.close_all()

    return [sent.result() for sent in [helpers.Background(partial(send, post)) for post in posts]]


def fail_all(engine: Any) -> int:
    """Claim all jobs and fail them, as a worker does; return their number."""
    claimed = helpers.claim_all(engine)
    completions.fail(engine, [helpers.failed(job.key, delay_seconds=None)[0] for job in claimed])
    return len(claimed)


@pytest.mark.quick
@pytest.mark.promise("defect-double-click")
@committed
def test_retry_double_click_runs_the_job_once(operator: Client, make_job: JobMaker) -> None:
    with closing(helpers.connect()) as engine:
        for _ in range(3):
            job = make_job("dead", task_name=helpers.NOOP)
            url = f"{JOBS}{job.pk}/retry/"
            shown = shown_by(operator, url)
            pages = post_at_once(*[partial(operator.post, url, shown, follow=True)] * 2)
            assert sorted("ready again" in page for page in pages) == [False, True]
            assert fail_all(engine) == 1
            assert "Nothing was changed" in operator.post(url, shown, follow=True).content.decode()
            assert fail_all(engine) == 0


@pytest.mark.promise("operators-retry-once")
@committed
def test_retry_by_two_operators_runs_each_job_once(operator: Client, make_user: Callable[..., Any]) -> None:
    """Two operators open the list of 300 dead jobs and retry all of them, while a worker runs them again.

    The jobs die a second time. If the second retry applied to them, they would run once more than intended.
    """
    other = Client()
    other.force_login(make_user("view_job", "retry_job", name="other"))
    with closing(helpers.connect()) as engine:
        ids = helpers.make_jobs(engine, 100)
        fail_all(engine)
        stop = threading.Event()

        def work() -> int:
            ran = 0
            while not stop.is_set():
                ran += fail_all(engine)
            return ran + fail_all(engine)

        forms = [
            {"action": "retry_selected", "_selected_action": ids, **shown_by(each, DEAD)} for each in (operator, other)
        ]
        worker = helpers.Background(work)
        posts = [
            partial(each.post, DEAD, form, follow=True) for each, form in zip((operator, other), forms, strict=True)
        ]
        post_at_once(*posts)
        operator.post(DEAD, forms[0], follow=True)
        stop.set()
        assert worker.result() == 100
        assert {count for _, count in engine.execute(ALL_ROWS).fetchall()} == {2}
    assert LogEntry.objects.count() == 100
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == set(map(str, ids))


@committed
def test_retry_skips_jobs_that_died_again_since_the_page(operator: Client) -> None:
    with closing(helpers.connect()) as engine:
        ids = helpers.make_jobs(engine, 3)
        fail_all(engine)
        form = {"action": "retry_selected", "_selected_action": ids, **shown_by(operator, DEAD)}
        lifecycle_operator.retry(engine, ids[:2])
        fail_all(engine)
        page = operator.post(DEAD, form, follow=True).content.decode()
        assert "1 job is ready again" in page and "2 jobs were left as they are: they have changed" in page
        assert fail_all(engine) == 1


@pytest.mark.parametrize("url", [JOBS, DEAD])
def test_action_without_shown_state_changes_nothing(operator: Client, make_job: JobMaker, url: str) -> None:
    job = make_job("dead")
    form = {"action": "retry_selected", "_selected_action": [job.pk], "select_across": "0", "shown": ["x"]}
    assert "1 job was left" in operator.post(url, form, follow=True).content.decode()
    assert "Nothing was changed" in operator.post(f"{JOBS}{job.pk}/retry/", {"shown": ""}, follow=True).content.decode()
    assert Job.objects.get().state == "dead"


@pytest.mark.parametrize(
    "word",
    ["", ":", "::::", "1:2:3:dead", "9" * 5000 + ":::dead", "1:" + "9" * 18 + "::dead", "1:-1:²:dead", "1:a:b:x"],
)
def test_action_forged_shown_fields_are_refused(operator: Client, make_job: JobMaker, word: str) -> None:
    job = make_job("dead")
    form = {"shown": word.replace("1:", f"{job.pk}:"), "shown_at": word}
    assert operator.post(f"{JOBS}{job.pk}/retry/", form, follow=True).status_code == 200
    chosen = {"action": "retry_selected", "_selected_action": [job.pk], "select_across": "1"}
    assert operator.post(JOBS, {**chosen, **form}, follow=True).status_code == 200
    assert Job.objects.get().state == "dead"


def test_cancel_refuses_a_job_that_began_to_run(operator: Client, make_job: JobMaker) -> None:
    job = make_job()
    url = f"{JOBS}{job.pk}/cancel/"
    shown = shown_by(operator, url)
    Job.objects.filter(pk=job.pk).update(state="running")
    assert "has changed since the page showed it" in operator.post(url, shown, follow=True).content.decode()
    assert Job.objects.get().cancel_requested_at is None


# ------------------------------------------------------------------ retry of succeeded jobs


def fields_of(page: str) -> dict[str, list[str]]:
    """Return the hidden inputs of the confirmation page."""
    form = page.rpartition('<form method="post">')[2]
    return {
        name: re.findall(f'name="{name}" value="([^"]*)"', form)
        for name in ("action", "_selected_action", "shown", "shown_copies", "confirmed")
        if f'name="{name}"' in form
    }


def test_retry_of_one_succeeded_job_asks_first(operator: Client, make_job: JobMaker) -> None:
    job = make_job("succeeded")
    url = f"{JOBS}{job.pk}/retry/"
    page = operator.post(url).content.decode()
    assert "<strong>1</strong> job has succeeded already" in page
    assert Job.objects.get().state == "succeeded" and not LogEntry.objects.exists()
    assert "ready again" in operator.post(url, fields_of(page), follow=True).content.decode()
    assert Job.objects.get().state == "ready"


@pytest.mark.promise("succeeded-jobs-rerun-after-confirmation")
def test_retry_of_succeeded_jobs_asks_with_the_count(operator: Client, make_job: JobMaker) -> None:
    done = [make_job("succeeded") for _ in range(3)]
    dead = make_job("dead")
    chosen = [job.pk for job in (*done, dead)]
    form = {"action": "retry_selected", "_selected_action": chosen, "select_across": "0"}
    page = operator.post(JOBS, form).content.decode()
    assert "<strong>3</strong> jobs have succeeded already" in page and "<strong>1</strong> other job" in page
    assert not Job.objects.filter(state="ready").exists()
    later = make_job("succeeded")
    Job.objects.filter(pk=done[0].pk).update(finished_at="2030-01-01T00:00Z")  # the job has run again since
    page = operator.post(JOBS, fields_of(page), follow=True).content.decode()
    assert "3 jobs are ready again" in page and "1 job was left" in page
    assert set(Job.objects.filter(state="ready").values_list("pk", flat=True)) == set(chosen) - {done[0].pk}
    assert Job.objects.get(pk=later.pk).state == "succeeded"


def test_dead_letter_action_ignores_succeeded_jobs(operator: Client, make_job: JobMaker) -> None:
    job = make_job("succeeded")
    shown = shown_by(operator, JOBS)["shown"]
    form = {"action": "retry_selected", "_selected_action": [job.pk], "shown": shown, "confirmed": "1"}
    operator.post(DEAD, form, follow=True)
    assert Job.objects.get().state == "succeeded"


# ------------------------------------------------------------------ schedules


@pytest.mark.promise("run-now-once")
@committed
def test_run_now_of_a_schedule_double_click_makes_one_job(operator: Client) -> None:
    with closing(helpers.connect()) as engine:
        schedule_id = helpers.make_schedule(engine, due_in=3600.0)
    url = f"{SCHEDULES}{schedule_id}/run/"
    shown = shown_by(operator, url)
    pages = post_at_once(*[partial(operator.post, url, shown, follow=True)] * 2)
    assert sorted("1 job is enqueued" in page for page in pages) == [False, True]
    assert "Nothing was changed" in operator.post(url, shown, follow=True).content.decode()
    assert Job.objects.count() == 1
    assert "1 job is enqueued" in operator.post(url, follow=True).content.decode()


def test_run_now_of_a_changed_schedule_is_refused(operator: Client, db: None) -> None:
    schedule_id = helpers.make_schedule(connection, due_in=3600.0)
    url = f"{SCHEDULES}{schedule_id}/run/"
    shown = shown_by(operator, url)
    Schedule.objects.update(revision=7)
    assert "Nothing was changed" in operator.post(url, shown, follow=True).content.decode()
    assert "did not say" in operator.post(url, {"shown": ""}, follow=True).content.decode()
    assert not Job.objects.exists()
