"""Jobs that *Edit and retry* has made new jobs of: bulk retries leave them out with a word, and a single one asks."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from django_pgqueue import Batch, chain
from django_pgqueue.ground.envelope import ERASED, seal
from django_pgqueue.models import AuditedJob, AuditEntry, Job
from django_pgqueue.testing import run_jobs
from tests.admin.conftest import Browser, JobMaker, add_execution
from tests.admin.test_bulk_acts import REQUEST, form, text_of, url
from tests.admin.test_edit_and_retry import PERMISSIONS, new_job, send
from tests.admin.test_stale_pages import fields_of
from tests.app import tasks

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"


@pytest.fixture
def editor(client_of: Callable[..., Client]) -> Client:
    return client_of(*PERMISSIONS, "retry_job", "delete_job")


@pytest.fixture
def edited(editor: Client, make_job: JobMaker) -> Job:
    """Return a dead job that was edited and retried, whose new job has succeeded."""
    job = make_job("dead", task_name=tasks.add.name)
    add_execution(job, exception_class="shop.Declined")
    send(editor, job, a="5")
    run_jobs()
    assert new_job(job).state == "succeeded"
    return job


def dead_like(job: Job, make_job: JobMaker) -> Job:
    other = make_job("dead", task_name=job.task_name)
    add_execution(other, exception_class="shop.Declined")
    return other


@pytest.mark.quick
@pytest.mark.promise("edited-jobs-left-out")
def test_retry_of_a_group_leaves_out_its_edited_job(editor: Client, edited: Job, make_job: JobMaker) -> None:
    dead_like(edited, make_job)
    [group] = editor.get(f"{JOBS}incidents/").context["groups"]
    assert group["jobs"] == "2"
    words = "1 of these jobs was edited and retried as a new job. It stays dead"
    assert words in text_of(editor, f"{JOBS}incidents/")
    page = text_of(editor, group["retry_url"])
    assert "<strong>1</strong> job meets the filter now." in page and f">#{edited.pk}<" not in page
    assert "1 further job that meets the filter: it was edited and retried as a new job" in page
    answer = unescape(editor.post(REQUEST, form(page), follow=True).content.decode())
    entry = AuditEntry.objects.get(action="retry")
    assert (entry.total, entry.filter["edited"]) == (1, 1)
    for text in (answer, unescape(text_of(editor, f"{JOBS}bulk_acts/"))):
        assert "Left out" in text and "1 job that was edited and retried as a new job" in text


@pytest.mark.promise("edited-jobs-left-out")
def test_retry_of_selected_jobs_leaves_out_the_edited_one(editor: Client, edited: Job, make_job: JobMaker) -> None:
    other = dead_like(edited, make_job)
    form = {"action": "retry_selected", "_selected_action": [edited.pk, other.pk], "select_across": "0"}
    page = editor.post(JOBS, form, follow=True).content.decode()
    assert "1 job is ready again" in page and "1 job was left out: it was edited and retried" in page
    assert "was left as it is" not in page
    entry = AuditEntry.objects.get(action="retry")
    assert (entry.total, entry.job_count, entry.left_count) == (1, 1, 1)
    assert entry.filter == {"selected": 2, "edited": 1}
    assert list(AuditedJob.objects.filter(entry=entry).values_list("job_id", flat=True)) == [other.pk]
    assert Job.objects.get(pk=edited.pk).state == "dead"


def test_question_about_succeeded_jobs_counts_no_edited_one(editor: Client, edited: Job, make_job: JobMaker) -> None:
    done = make_job("succeeded", task_name=tasks.add.name)
    Job.objects.filter(pk=edited.pk).update(state="succeeded")
    form = {"action": "retry_selected", "_selected_action": [edited.pk, done.pk], "select_across": "0"}
    page = editor.post(JOBS, form).content.decode()
    assert "<strong>1</strong> job has succeeded already" in page and "<strong>1</strong> job is left out" in page
    page = editor.post(JOBS, fields_of(page), follow=True).content.decode()
    assert "1 job is ready again" in page and "1 job was left out" in page
    assert Job.objects.get(pk=edited.pk).state == "succeeded" and Job.objects.get(pk=done.pk).state == "ready"


@pytest.mark.promise("edited-jobs-left-out")
def test_retry_of_one_edited_job_asks_and_names_the_new_one(editor: Client, edited: Job) -> None:
    path = f"{JOBS}{edited.pk}/retry/"
    page = editor.post(path).content.decode()
    new = new_job(edited)
    assert "was edited and retried as a new job" in page and f'{JOBS}{new.pk}/change/">#{new.pk}</a>' in page
    assert "with the old arguments" in page and "succeeded already" not in page
    assert Job.objects.get(pk=edited.pk).state == "dead"
    answer = editor.post(path, fields_of(page), follow=True).content.decode()
    assert "1 job is ready again" in answer and Job.objects.get(pk=edited.pk).state == "ready"


def test_retry_asks_again_if_the_job_was_edited_meanwhile(
    editor: Client, make_user: Callable[..., User], make_job: JobMaker
) -> None:
    """Otherwise the answer to a question about a succeeded job would run the old arguments beside the new ones."""
    job = make_job("succeeded", task_name=tasks.add.name)
    path = f"{JOBS}{job.pk}/retry/"
    question = fields_of(editor.post(path).content.decode())
    other = Browser()
    other.force_login(make_user(*PERMISSIONS, name="ben"))
    send(other, job, a="5", confirmed="on")
    page = editor.post(path, question).content.decode()
    assert "was edited and retried as a new job" in page and "succeeded already" in page
    assert Job.objects.get(pk=job.pk).state == "succeeded"
    answer = editor.post(path, fields_of(page), follow=True).content.decode()
    assert "1 job is ready again" in answer and Job.objects.get(pk=job.pk).state == "ready"


def test_retry_of_an_edited_job_says_if_the_new_one_is_gone(editor: Client, edited: Job) -> None:
    AuditedJob.objects.filter(job_id=new_job(edited).pk).delete()
    page = editor.post(f"{JOBS}{edited.pk}/retry/").content.decode()
    assert "a new job, which no longer exists" in page


def test_retry_of_the_new_job_and_other_acts_do_not_ask_about_it(editor: Client, edited: Job) -> None:
    new = new_job(edited)
    Job.objects.filter(pk=new.pk).update(state="dead")
    assert "1 job is ready again" in editor.post(f"{JOBS}{new.pk}/retry/", follow=True).content.decode()
    assert "edited and retried" not in text_of(editor, url("delete", state="dead"))


@pytest.mark.parametrize(("count", "shown"), [(2, "#{0}, #{1}"), (12, "… (12 jobs)")])
def test_preview_of_listed_jobs_shows_their_numbers(editor: Client, make_job: JobMaker, count: int, shown: str) -> None:
    ids = [make_job("dead").pk for _ in range(count)]
    page = unescape(text_of(editor, url("retry", ids=",".join(map(str, ids)))))
    assert f"<dd>#{ids[0]}, " in page and shown.format(*ids) in page
    editor.post(REQUEST, form(page))
    assert shown.format(*ids) in unescape(text_of(editor, f"{JOBS}bulk_acts/"))


@pytest.mark.parametrize(("action", "state"), [("retry", "dead"), ("cancel", "ready")])
@pytest.mark.parametrize("edited_count", ["7", "-1", "x"])
def test_count_of_left_out_jobs_is_not_that_of_the_form(
    client_of: Callable[..., Client], make_job: JobMaker, action: str, state: str, edited_count: str
) -> None:
    make_job(state)
    client = client_of(*PERMISSIONS, "retry_job", "cancel_job")
    page = text_of(client, url(action, state=state, edited=edited_count))
    client.post(REQUEST, {**form(page), "edited": edited_count}, follow=True)
    assert "edited" not in AuditEntry.objects.get().filter


# ------------------------------------------------------------------ where the form is offered


def test_edit_is_not_offered_for_a_node_that_gets_results(editor: Client) -> None:
    workflow = chain(tasks.add.s(1)).then(tasks.add).enqueue()
    run_jobs()
    first, second = workflow.jobs.order_by("pk")
    page = text_of(editor, f"{JOBS}{second.pk}/change/")
    assert f"{JOBS}{second.pk}/edit/" not in page and "contain results of other jobs. Retry it." in page
    assert f'href="{JOBS}{first.pk}/edit/"' in text_of(editor, f"{JOBS}{first.pk}/change/")
    assert "The new job is not part of the workflow" in text_of(editor, f"{JOBS}{first.pk}/edit/")


def test_edit_says_that_the_new_job_is_not_in_the_batch(editor: Client) -> None:
    with Batch() as batch:
        job = tasks.fail.using(batch=batch, max_attempts=1).enqueue()
        other = tasks.noop.using(batch=batch).enqueue()
    run_jobs()
    assert f"The new job is not part of the batch of job #{job.pk}" in text_of(editor, f"{JOBS}{job.pk}/edit/")
    send(editor, job)
    assert set(batch.jobs.values_list("pk", flat=True)) == {job.pk, other.pk}
    assert batch.jobs.dead().retry() == 0


@pytest.mark.parametrize(
    ("task_name", "arguments", "words"),
    [
        ("shop.gone", '{"args": [1], "kwargs": {}}', "No task is registered under the name shop.gone."),
        (tasks.add.name, seal(ERASED, b""), "Erased."),
        (tasks.add.name, f'{{"args": ["{"x" * 100_001}"], "kwargs": {{}}}}', "too long for a form"),
    ],
)
def test_edit_that_would_be_refused_is_not_offered(
    editor: Client, make_job: JobMaker, task_name: str, arguments: str, words: str
) -> None:
    job = make_job("dead", task_name=task_name)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET arguments = %s", [arguments])
    page = unescape(text_of(editor, f"{JOBS}{job.pk}/change/"))
    assert f"{JOBS}{job.pk}/edit/" not in page
    assert words in page.split("“Edit and retry” is not available:")[1].split("</p>")[0]


def test_reason_is_shown_only_to_users_who_could_edit(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job = make_job("dead", task_name="shop.gone")
    page = text_of(client_of("view_job", "view_arguments"), f"{JOBS}{job.pk}/change/")
    assert "is not available" not in page
