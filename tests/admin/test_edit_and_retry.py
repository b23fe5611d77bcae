"""Edit and retry a job: one new job, linked to the old one, and only if that is still as the form showed it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import chain, control, history, middleware
from django_pgqueue.backend.compat import task_enqueued
from django_pgqueue.ground.envelope import ERASED, seal
from django_pgqueue.models import AuditedJob, AuditEntry, Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.admin.conftest import JobMaker
from tests.admin.test_stale_pages import post_at_once
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"
OWN_FIELDS = ("confirmed", "reason")
PERMISSIONS = ("view_job", "view_arguments", "edit_and_retry_job")


@pytest.fixture
def editor(client_of: Callable[..., Client]) -> Client:
    return client_of(*PERMISSIONS)


def form_of(client: Client, job: Job) -> dict[str, str]:
    """Return the fields of the form as a browser sends them, without edits."""
    return fields_in(client.get(f"{JOBS}{job.pk}/edit/").content.decode())


def fields_in(page: str) -> dict[str, str]:
    form = page.split('<form method="post" novalidate>')[1].split("</form>")[0]
    inputs = re.findall(r'<input type="(?:hidden|text)" name="([^"]+)"(?: value="([^"]*)")?', form)
    texts = re.findall(r'<textarea name="([^"]+)"[^>]*>\s?(.*?)</textarea>', form, re.DOTALL)
    return {name: unescape(value) for name, value in (*inputs, *texts) if name != "csrfmiddlewaretoken"}


def send(client: Client, job: Job, **edits: str) -> str:
    """Open the form, edit it and send it; return the page that follows."""
    edited = {name if name in OWN_FIELDS else f"argument-{name}": value for name, value in edits.items()}
    return text_of(client, job, {**form_of(client, job), **edited})


def text_of(client: Client, job: Job, form: dict[str, str]) -> str:
    return unescape(client.post(f"{JOBS}{job.pk}/edit/", form, follow=True).content.decode()).replace("<wbr>", "")


def place_of(job: Job) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT ctid FROM pgqueue_job WHERE id = %s", [job.pk])
        return str(cursor.fetchone()[0])


def new_job(old: Job) -> Job:
    return Job.objects.exclude(pk=old.pk).get()


@pytest.mark.quick
@pytest.mark.promise("edit-and-retry-makes-a-linked-job")
def test_edit_makes_a_new_job_and_leaves_the_old_one(editor: Client, make_job: JobMaker) -> None:
    now = timezone.now()
    columns = {"queue_name": "mail", "priority": 7, "max_attempts": 4, "headers": {"tenant": "acme"}}
    arguments = {"args": [1], "kwargs": {"b": 2}}
    times = {"enqueued_at": now - timedelta(hours=1), "expires_at": now - timedelta(minutes=59)}
    job = make_job("dead", task_name=tasks.add.name, arguments=arguments, **columns, **times)
    place = place_of(job)
    page = send(editor, job, a="5")
    assert place_of(job) != place, "a retry that has begun must find another version of the row"
    new = new_job(job)
    assert f"This is the new job #{new.pk}. Job #{job.pk} stays dead." in page
    assert (new.state, new.attempt, new.arguments) == ("ready", 0, {"args": [5], "kwargs": {"b": 2}})
    assert {name: getattr(new, name) for name in columns} == columns
    assert new.run_after <= timezone.now() and new.expires_at == new.enqueued_at + timedelta(minutes=1)
    before = Job.objects.values().get(pk=job.pk)
    job.refresh_from_db()
    assert job.state == "dead" and before == Job.objects.values().get(pk=job.pk)
    run_jobs()
    new.refresh_from_db()
    assert (new.state, new.result) == ("succeeded", 7)


def test_edit_takes_a_reason_for_both_histories(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.add.name)
    assert "counts as a dead letter until somebody acknowledges" in editor.get(f"{JOBS}{job.pk}/edit/").content.decode()
    send(editor, job, a="5", reason="the customer has moved")
    assert AuditEntry.objects.get().reason == "the customer has moved"
    for each, words in ((job, "edited and retried as a new job"), (new_job(job), "made from another job")):
        page = unescape(editor.get(f"{JOBS}{each.pk}/change/").content.decode())
        assert f"{words} by staff: the customer has moved" in page
        assert "Reason: the customer has moved" in editor.get(f"{JOBS}{each.pk}/history/").content.decode()


def test_edit_is_linked_from_both_jobs_and_logged(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.noop.name, arguments={"args": ["old"], "kwargs": {"x": 1}})
    send(editor, job, args='["new"]', kwargs='{"y": 2}')
    new = new_job(job)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by, entry.outcome) == ("edit_and_retry", "staff", "done")
    assert "old" not in str(entry.filter) and "new" not in str(entry.filter)
    assert set(AuditedJob.objects.values_list("job_id", flat=True)) == {job.pk, new.pk}
    for each, label, other in (
        (job, "Retried with other arguments as", new),
        (new, "Made with other arguments from", job),
    ):
        page = unescape(editor.get(f"{JOBS}{each.pk}/change/").content.decode())
        assert f'{label} <a href="{JOBS}{other.pk}/change/">#{other.pk}</a>' in page
        for row in (
            '<th scope="row">args</th><td>["old"]</td><td>["new"]</td>',
            '<th scope="row">x</th><td>1</td><td>not passed</td>',
            '<th scope="row">y</th><td>not passed</td><td>2</td>',
        ):
            assert row in page, row
        history = unescape(editor.get(f"{JOBS}{each.pk}/history/").content.decode())
        assert f'{label} <a href="{JOBS}{other.pk}/change/">#{other.pk}</a>' in history
        assert '<th scope="row">x</th><td>1</td><td>not passed</td>' in history
    logged = {entry.object_id: entry.change_message for entry in LogEntry.objects.all()}
    assert logged == {
        str(job.pk): f"Edited and retried as job #{new.pk}. Changed arguments: args, x, y.",
        str(new.pk): f"Made from job #{job.pk}. Changed arguments: args, x, y.",
    }


def test_edit_difference_is_hidden_without_permission_and_erased_with_arguments(
    editor: Client, make_job: JobMaker, make_user: Callable[..., Any]
) -> None:
    job = make_job("dead", task_name=tasks.noop.name, arguments={"args": ["hunter2"], "kwargs": {}})
    send(editor, job, args='["hunter3"]')
    other = Client()
    other.force_login(make_user("view_job", name="other"))
    page = other.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert "hunter" not in page and "Retried with other arguments as" in page
    for each in (job, new_job(job)):
        past = other.get(f"{JOBS}{each.pk}/history/").content.decode()
        assert "hunter" not in past and "with other arguments" in past and "Hidden: you do not" in past
    history.erase(jobs=[job.pk])
    assert not AuditedJob.objects.filter(detail__isnull=False).exists()
    assert editor.get(f"{JOBS}{new_job(job).pk}/change/").status_code == 200


@override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]})
def test_edit_with_a_codec_records_only_names(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.fail.name)
    Job.objects.filter(pk=job.pk).update(arguments={"args": ["plain1"], "kwargs": {}})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET arguments = %s", ['{"args": ["plain1"], "kwargs": {}}'])
    page = send(editor, job, message="plain2")
    assert "not recorded, because the project encodes arguments" in page
    [detail] = AuditedJob.objects.filter(job_id=job.pk).values_list("detail", flat=True)
    assert detail == {"retried_as": new_job(job).pk, "changes": {"message": None}}


# ------------------------------------------------------------------ exact against what was shown


@pytest.mark.promise("edit-and-retry-once")
@pytest.mark.django_db(transaction=True)
def test_edit_double_click_makes_one_job(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.add.name)
    form = {**form_of(editor, job), "argument-a": "5"}
    pages = post_at_once(*[partial(editor.post, f"{JOBS}{job.pk}/edit/", form, follow=True)] * 2)
    assert sorted("This form was sent before" in page for page in pages) == [False, True]
    new = new_job(job)
    assert all(f"#{new.pk}" in page for page in pages)
    assert "This form was sent before" in text_of(editor, job, form)
    assert Job.objects.count() == 2 and AuditEntry.objects.count() == 1


@pytest.mark.promise("edit-and-retry-once")
@pytest.mark.parametrize(
    "change",
    [
        {"state": "ready", "finished_at": None},
        {"finished_at": timezone.now()},
        {"state": "cancelled"},
    ],
)
def test_edit_of_a_job_that_has_changed_is_refused(
    editor: Client, make_job: JobMaker, change: dict[str, object]
) -> None:
    job = make_job("dead", task_name=tasks.add.name)
    form = {**form_of(editor, job), "argument-a": "5"}
    Job.objects.filter(pk=job.pk).update(**change)
    page = text_of(editor, job, form)
    assert "Nothing was changed: the job has changed" in page or "Only a finished job can be edited" in page
    assert Job.objects.count() == 1 and not AuditEntry.objects.exists() and not LogEntry.objects.exists()


@pytest.mark.parametrize("missing", ["shown", "form_token"])
def test_edit_without_hidden_fields_is_refused(editor: Client, make_job: JobMaker, missing: str) -> None:
    job = make_job("dead", task_name=tasks.add.name)
    form = {**form_of(editor, job), missing: "x"}
    assert "the form did not say which state the page showed" in text_of(editor, job, form)
    assert Job.objects.count() == 1


def test_edit_with_errors_keeps_the_form_and_its_token(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.add.name)
    form = {**form_of(editor, job), "argument-a": "<b>"}
    page = editor.post(f"{JOBS}{job.pk}/edit/", form).content.decode()
    assert "Enter a number." in page and "&lt;b&gt;" in page and 'aria-invalid="true"' in page
    assert fields_in(page) == form
    assert Job.objects.count() == 1
    text_of(editor, job, {**form, "argument-a": "2"})
    assert new_job(job).arguments["args"] == [2]


# ------------------------------------------------------------------ which jobs, and who


@pytest.mark.parametrize(
    ("state", "is_offered"), [("dead", True), ("cancelled", True), ("ready", False), ("running", False)]
)
def test_edit_is_offered_for_finished_jobs(editor: Client, make_job: JobMaker, state: str, is_offered: bool) -> None:
    job = make_job(state, task_name=tasks.add.name)
    url = f"{JOBS}{job.pk}/edit/"
    assert (f'href="{url}"' in editor.get(f"{JOBS}{job.pk}/change/").content.decode()) == is_offered
    assert (editor.get(url).status_code == 200) == is_offered


def test_edit_of_a_succeeded_job_asks_first(editor: Client, make_job: JobMaker) -> None:
    job = make_job("succeeded", task_name=tasks.add.name)
    page = send(editor, job, a="2")
    assert "This job has succeeded already" in page and "This field is required" in page
    assert Job.objects.count() == 1
    send(editor, job, a="2", confirmed="on")
    assert new_job(job).arguments["args"] == [2]


@pytest.mark.parametrize("missing", PERMISSIONS)
def test_edit_needs_each_permission(client_of: Callable[..., Client], make_job: JobMaker, missing: str) -> None:
    client = client_of(*(set(PERMISSIONS) - {missing}), "retry_job")
    job = make_job("dead", task_name=tasks.add.name)
    url = f"{JOBS}{job.pk}/edit/"
    assert url not in client.get(f"{JOBS}{job.pk}/change/").content.decode()
    for answer in (client.get(url), client.post(url, {"argument-a": "1"})):
        assert answer.status_code == 403
    assert Job.objects.count() == 1


@pytest.mark.promise("defect-edited-node-gets-marker")
def test_edit_of_a_node_with_results_is_refused(editor: Client) -> None:
    """The new job would be in no workflow, and its task would be called with the stored marker of the result."""
    workflow = chain(tasks.add.s(1)).then(tasks.add).enqueue()
    run_jobs()
    first, second = workflow.jobs.order_by("pk")
    page = text_of(editor, second, {})
    assert "because they contain results of other jobs. Retry it." in page
    assert "argument-" in editor.get(f"{JOBS}{first.pk}/edit/").content.decode()
    assert workflow.jobs.count() == Job.objects.count() == 2


@pytest.mark.parametrize(
    ("task_name", "arguments", "words"),
    [
        ("shop.gone", '{"args": [1], "kwargs": {}}', "No task is registered under the name shop.gone."),
        (tasks.add.name, seal("vault", b"secret"), "Encoded by “vault”"),
        (tasks.add.name, seal(ERASED, b""), "Erased."),
        (tasks.add.name, '{"args": {}, "kwargs": {}}', "The arguments of this job cannot be edited."),
        (tasks.add.name, "17", "The arguments of this job cannot be edited."),
        (tasks.add.name, f'{{"args": ["{"x" * 100_001}"], "kwargs": {{}}}}', "too long for a form"),
        ("app.hidden", '{"args": ["hunter2"], "kwargs": {}}', "because it has sensitive ones"),
    ],
)
def test_edit_that_cannot_be_shown_is_refused_with_a_word(
    editor: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch, task_name: str, arguments: str, words: str
) -> None:
    hidden = tasks.fail.using()
    object.__setattr__(hidden, "sensitive", frozenset({"message"}))
    monkeypatch.setitem(registry._tasks, "app.hidden", hidden)
    job = make_job("dead", task_name=task_name)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET arguments = %s", [arguments])
    for answer in (editor.get(f"{JOBS}{job.pk}/edit/", follow=True), editor.post(f"{JOBS}{job.pk}/edit/", follow=True)):
        page = unescape(answer.content.decode())
        assert words in page and "hunter2" not in page and "novalidate" not in page
    assert Job.objects.count() == 1


def test_edit_shows_stored_arguments_that_no_longer_fit(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.add.name, arguments={"args": [1, 2, 3], "kwargs": {"currency": "EUR"}})
    page = unescape(editor.get(f"{JOBS}{job.pk}/edit/").content.decode())
    assert "The task does not take these arguments of the job" in page and '"currency": "EUR"' in page
    send(editor, job)
    assert new_job(job).arguments == {"args": [1, 2], "kwargs": {}}


def test_edit_says_what_is_paused(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.add.name, queue_name="mail")
    assert "before this is resumed" not in editor.get(f"{JOBS}{job.pk}/edit/").content.decode()
    control.pause("mail", reason="the bank is down", by="ada")
    page = editor.get(f"{JOBS}{job.pk}/edit/").content.decode()
    assert "The job does not start before this is resumed: queue mail, paused by ada: the bank is down." in page
    assert "does not start before this is resumed" in send(editor, job, a="5")


# ------------------------------------------------------------------ unique keys and middleware


def test_edit_keeps_a_fixed_key_and_never_replaces_another_job(editor: Client) -> None:
    task = tasks.add.using(unique_key="order:7", on_conflict="replace")
    job = task.enqueue(1)
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at=timezone.now())
    other = task.enqueue(2)
    page = send(editor, job, a="3")
    assert f"No job was added: job #{other.pk} has the unique key." in page
    other.refresh_from_db()
    assert other.arguments["args"] == [2] and Job.objects.count() == 2 and not AuditEntry.objects.exists()
    Job.objects.filter(pk=other.pk)._raw_delete("default")
    send(editor, job, a="3")
    assert new_job(job).unique_key == "order:7"


@pytest.mark.parametrize("unique_key", ["one", lambda a, b=0: f"order:{b}"])
def test_edit_skips_even_if_the_task_replaces(
    editor: Client, monkeypatch: pytest.MonkeyPatch, unique_key: str | Callable[..., str]
) -> None:
    task = tasks.add.using(unique_key=unique_key, on_conflict="replace")
    monkeypatch.setitem(registry._tasks, tasks.add.name, task)
    job = task.enqueue(1)
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at=timezone.now())
    other = task.enqueue(2)
    assert f"No job was added: job #{other.pk} has the unique key." in send(editor, job, a="3")
    other.refresh_from_db()
    assert other.arguments["args"] == [2]


class Tenant:
    """Sets a header, as a middleware that reads the tenant from the request."""

    def enqueue(self, call: middleware.Call) -> None:
        call.headers |= {"tenant": "of the operator", "more": 1}


def test_edit_keeps_the_headers_that_middleware_would_change(editor: Client, make_job: JobMaker) -> None:
    middleware.add("tests", Tenant())
    try:
        job = make_job("dead", task_name=tasks.add.name, headers={"tenant": "acme"})
        send(editor, job, a="3")
    finally:
        middleware.remove("tests")
    assert new_job(job).headers == {"tenant": "acme", "more": 1}


@pytest.mark.parametrize("is_edit", [True, False])
def test_forms_of_the_tasks_framework_send_its_signal(
    client_of: Callable[..., Client], make_job: JobMaker, is_edit: bool
) -> None:  # a column of the table
    sent: list[str] = []

    def receive(sender: object, task_result: Any, **_rest: object) -> None:
        sent.append(task_result.id)

    name = framework.add.module_path
    client = client_of(*PERMISSIONS, "enqueue_job")
    job = make_job("dead", task_name=name, arguments={"args": [1], "kwargs": {}}, queue_name="mail")
    url = f"{JOBS}{job.pk}/edit/" if is_edit else f"{JOBS}enqueue/{name}/"
    task_enqueued.connect(receive)
    try:
        answer = client.post(url, {**fields_in(client.get(url).content.decode()), "argument-a": '"x"'})
    finally:
        task_enqueued.disconnect(receive)
    assert answer.status_code == 302
    new = new_job(job)
    assert sent == [str(new.pk)] and new.queue_name == "mail"
    assert new.arguments == ({"args": ["x"], "kwargs": {}} if is_edit else {"args": [], "kwargs": {"a": "x"}})


def test_page_reads_the_changes_by_an_index(editor: Client, make_job: JobMaker) -> None:
    job = make_job("dead", task_name=tasks.add.name)
    send(editor, job, a="5")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_audit_job (audit_id, job_id)"
            " SELECT n, n + 1000000 FROM generate_series(1000000, 1020000) AS n"
        )
        cursor.execute("ANALYZE pgqueue_audit_job")
        cursor.execute("ANALYZE pgqueue_audit")
    with CaptureQueriesContext(connection) as captured:
        editor.get(f"{JOBS}{job.pk}/change/")
    read = [query["sql"] for query in captured if "pgqueue_audit_job" in query["sql"]]
    assert len(read) == 3
    for sql in read:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "pgqueue_audit_job_once" in plan and "Seq Scan on pgqueue_audit_job" not in plan, plan
