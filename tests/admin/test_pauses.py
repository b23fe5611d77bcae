"""The admin's list of pauses: pause, resume, links to the jobs behind a pause, and permissions."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.admin import PauseAdmin
from django_pgqueue.declared.limits import Limit
from django_pgqueue.models import AuditEntry, Pause
from django_pgqueue.stats import paused_jobs
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.app import tasks

from .conftest import JobMaker, add_execution

BOTH = ("view_pause", "pause_queue")
LIST = "/admin/pgqueue/pause/"
only_pauses = AdminSite()
only_pauses.register(Pause, PauseAdmin)
urlpatterns = [path("admin/", only_pauses.urls)]
"""The URLs of a site where only the pauses are registered."""
FORM = {"kind": "queue", "name": "mail", "paused_until_0": "", "paused_until_1": "", "reason": "the server is down"}


def run_action(client: Client, name: str, pause: Pause, **more: str) -> str:
    answer = client.post(LIST, {"action": name, "_selected_action": pause.pk, **more}, follow=True)
    return str(answer.content.decode())


def test_pause_form_records_user_and_reason(operator: Client) -> None:
    assert operator.post(f"{LIST}add/", FORM).status_code == 302
    pause = Pause.objects.get()
    assert (str(pause), pause.paused_by, pause.reason) == ("queue mail", "staff", "the server is down")
    assert LogEntry.objects.get().object_id == str(pause.pk)
    page = operator.get(LIST).content.decode()
    assert "staff" in page and "pgqueue-state pgqueue-paused" in page
    assert 'field-what">queue mail<div class="pgqueue-last-words">the server is down<' in page.replace("<wbr>", "")


def test_pause_form_paused_queue_replaces_the_pause(operator: Client) -> None:
    control.pause("mail", until=60)
    assert operator.post(f"{LIST}add/", FORM).status_code == 302
    assert Pause.objects.get().paused_until is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "two words"}, "1 to 100 of the characters"),
        ({"paused_until_0": "2020-01-01", "paused_until_1": "08:00"}, "in the past"),
        ({"kind": "worker"}, "Select a valid choice"),
    ],
)
def test_pause_form_invalid_value_is_refused(operator: Client, wrong: dict[str, str], words: str) -> None:
    answer = operator.post(f"{LIST}add/", FORM | wrong)
    assert words in answer.content.decode()
    assert not Pause.objects.exists()


@pytest.mark.parametrize(("held", "status"), [(("pause_queue",), 403), (("view_pause",), 403), (BOTH, 302)])
def test_pause_form_requires_both_permissions(
    client_of: Callable[..., Client], held: tuple[str, ...], status: int
) -> None:
    client, given = client_of(*held), {"kind": "queue", "name": "mail"}
    assert client.post(f"{LIST}add/", given).status_code == status
    assert client.get(f"{LIST}add/").status_code == (200 if status == 302 else 403)
    assert Pause.objects.exists() == (status == 302)


def test_pause_form_task_is_stored_and_listed_by_name(operator: Client) -> None:
    operator.post(f"{LIST}add/", FORM | {"kind": "task", "name": tasks.noop.name})
    assert str(Pause.objects.get()) == f"task {tasks.noop.name}"
    assert tasks.noop.name.rpartition(".")[2] in operator.get(LIST).content.decode()


def test_pause_of_limit_key_is_made_listed_shown_and_resumed(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_limits", {"stripe": Limit("stripe", key=str)})
    job = make_job(limit_key="stripe:customer:7")
    add_execution(make_job(limit_key="stripe:customer:8"), limit_key="stripe:customer:8", limit_weight=1)
    control.pause("stripe")  # a queue with the name of the limit
    operator.post(f"{LIST}add/", FORM | {"kind": "limit", "name": "stripe:customer:7"})
    answer = operator.post(f"{LIST}add/", FORM | {"kind": "limit", "name": "stirpe"}, follow=True)
    assert "has the limit &#x27;stirpe&#x27;: did you mean &#x27;stripe&#x27;?" in answer.content.decode()
    page = operator.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()
    assert "imit stripe:customer:7, paused" in page
    assert "ueue stripe" not in page
    pause = Pause.objects.get(kind="limit", name="stripe:customer:7")
    assert "Limit stripe:customer:7 is resumed." in run_action(operator, "resume_selected", pause)
    assert set(Pause.objects.values_list("kind", "name")) == {("queue", "stripe"), ("limit", "stirpe")}


def test_pause_form_invalid_limit_key_is_refused(operator: Client) -> None:
    answer = operator.post(f"{LIST}add/", FORM | {"kind": "limit", "name": "two words"})
    assert "Invalid limit key: pass the name of a limit" in answer.content.decode()
    assert not Pause.objects.exists()


def test_pause_form_mistyped_queue_warns_and_pauses(operator: Client) -> None:
    answer = operator.post(f"{LIST}add/", FORM | {"name": "defualt"}, follow=True)
    assert "uses the queue &#x27;defualt&#x27;: did you mean &#x27;default&#x27;?" in answer.content.decode()
    assert Pause.objects.get().name == "defualt"


@pytest.mark.pgqueue(QUEUES=["default"])
def test_pause_form_unlisted_queue_is_refused(operator: Client) -> None:
    answer = operator.post(f"{LIST}add/", FORM | {"name": "defualt"})
    assert "is not in PGQUEUE[&#x27;QUEUES&#x27;]: did you mean &#x27;default&#x27;?" in answer.content.decode()
    assert not Pause.objects.exists()


def test_resume_action_deletes_the_pause(operator: Client) -> None:
    control.pause("mail")
    assert "Queue mail is resumed." in run_action(operator, "resume_selected", Pause.objects.get())
    assert not Pause.objects.exists()


@pytest.mark.parametrize("sees_keys", [True, False])
def test_audit_shows_pause_and_resume(client_of: Callable[..., Client], sees_keys: bool) -> None:
    client = client_of("view_job", *BOTH, *(["view_arguments"] if sees_keys else []))
    control.pause("mail", until=timedelta(hours=1), reason="<b>deploy", by="a\x1bda")
    control.pause(limit_key="stripe:customer:7")
    run_action(client, "resume_selected", Pause.objects.get(name="mail"), **shown_on(client))
    page = client.get("/admin/pgqueue/job/bulk_acts/").content.decode()
    assert re.search(
        r">Pause</a>.*Queue</span> mail · .*Until</span> 20[-0-9]+ [:0-9]+.*a\\x1bda.*&lt;b&gt;deploy", page, re.S
    )
    resumed = page.partition(">Resume</a>")[2].partition("</tr>")[0]
    assert re.search(r"Paused</span> by a\\x1bda, since 20[-0-9]+ [:0-9]+, until 20[-0-9]+ [:0-9]+", resumed)
    assert ">staff" in resumed and "done" in resumed
    assert ("stripe:customer:7" in page) == sees_keys
    act = client.get(f"/admin/pgqueue/job/bulk_act/?id={AuditEntry.objects.latest('pk').pk}").content.decode()
    assert "Resume: act" in act and "Left unchanged" not in act


def shown_on(client: Client) -> dict[str, str]:
    return {"shown_pauses": re.findall('name="shown_pauses" value="([^"]+)"', client.get(LIST).content.decode())[-1]}


def test_resume_action_leaves_a_pause_that_the_page_did_not_show(operator: Client) -> None:
    control.pause("mail", by="ada")
    control.pause("reports")
    shown = {"shown_pauses": re.findall('name="shown_pauses" value="([^"]+)"', operator.get(LIST).content.decode())}
    control.resume("mail")
    control.pause("mail", by="bob")
    Pause.objects.filter(name="mail").update(paused_at=timezone.now() + timedelta(seconds=5))
    chosen = [pause.pk for pause in Pause.objects.all()]
    answer = operator.post(LIST, {"action": "resume_selected", "_selected_action": chosen, **shown}, follow=True)
    assert list(Pause.objects.values_list("name", "paused_by")) == [("mail", "bob")]
    assert "Queue mail was paused again since the page was shown, so it stays paused." in answer.content.decode()
    assert "Queue reports is resumed." in answer.content.decode()


def test_pause_list_links_the_preview_that_cancels_waiting_jobs(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: Task[..., None] = Task(func=tasks.noop.func, aliases=("app.former",))
    for name in ("app.former", renamed.name):
        monkeypatch.setitem(registry._tasks, name, renamed)
        make_job(task_name=name)
    make_job(task_name="app.other", queue_name="mail")
    make_job(task_name="app.other")
    control.pause("mail")
    control.pause(task=renamed)
    monkeypatch.setattr(registry, "_limits", {})  # limits of other tests may have similar names
    for limit_key in ("import:7", "import:70", "importer"):
        make_job(task_name="app.import", limit_key=limit_key)
    control.pause(limit_key="import:7")
    text = operator.get(LIST).content.decode()
    links = re.findall(r'<a href="([^"]+)" aria-label="Cancel waiting… ([^"]+)">Cancel waiting…<', text)
    assert sorted(name for _url, name in links) == sorted(["app.former", "mail", renamed.name, "import:7"])
    for url, _name in links:
        assert (
            "<strong>1</strong> job meets the filter now." in operator.get(url.replace("&amp;", "&")).content.decode()
        )


def test_pause_list_without_cancel_permission_links_no_preview(client_of: Callable[..., Client]) -> None:
    control.pause("mail")
    client = client_of("view_pause", "view_job", "pause_queue")
    assert "Cancel waiting" not in client.get(LIST).content.decode()


@pytest.mark.urls("tests.admin.test_pauses")
def test_pause_list_on_a_site_without_jobs_links_no_preview(operator: Client) -> None:
    control.pause("mail")
    text = operator.get(LIST).content.decode()
    assert "queue mail" in text and "Cancel waiting" not in text


@pytest.mark.parametrize("until", [None, timedelta(hours=1)])
def test_job_page_paused_task_shows_the_pause(operator: Client, make_job: JobMaker, until: timedelta | None) -> None:
    job = make_job(queue_name="mail")
    page = f"/admin/pgqueue/job/{job.pk}/change/"
    control.pause(task="app.add", reason="<b>", by="ada", until=until)
    control.pause("other")
    text = operator.get(page).content.decode()
    ends = "" if until is None else " until [-0-9]+ [:0-9]+"
    assert re.search(rf"task app\.add, paused by ada{ends}: &lt;b&gt;", text)
    situation = text.partition("pgqueue-situation")[2]
    assert '<span class="pgqueue-state pgqueue-paused">paused</span>' in situation
    assert "paused, due" not in situation, "the badge says it"
    control.resume(task="app.add")
    text = operator.get(page).content.decode()
    assert "Paused by" not in text and "paused, due" not in text
    assert "waiting for a worker, due for" in text


@pytest.mark.parametrize("sees_pauses", [True, False])
def test_pages_link_the_pause_itself(client_of: Callable[..., Client], make_job: JobMaker, sees_pauses: bool) -> None:
    client = client_of("view_job", *(["view_pause"] if sees_pauses else []))
    job = make_job(queue_name="mail", task_name="app.add")
    control.pause("mail", reason="SMTP is down")
    control.pause(task="app.add", reason="<b>")
    control.pause("other")
    pages = [
        client.get(url).content.decode()
        for url in (f"/admin/pgqueue/job/{job.pk}/change/", "/admin/pgqueue/job/queue/?queue=mail")
    ]
    links = [set(re.findall(rf'href="({LIST}\?[^"]+)"', page)) for page in pages]
    mail, task = (f"{LIST}?kind={kind}&amp;name={name}" for kind, name in (("queue", "mail"), ("task", "app.add")))
    assert links == ([{mail, task}, {mail}] if sees_pauses else [set(), set()])
    assert all("SMTP is down" in page for page in pages)
    assert ">Pause of the queue mail</a>" in pages[0] or not sees_pauses
    if sees_pauses:
        listed = client.get(mail.replace("&amp;", "&")).context["cl"].result_list
        assert [str(pause) for pause in listed] == ["queue mail"]
        assert client.get(f"{LIST}?reason=x").status_code == 400


def test_job_page_paused_retry_shows_attempt_and_pause(operator: Client, make_job: JobMaker) -> None:
    job = make_job(queue_name="mail", attempt=2)
    control.pause("mail")
    text = operator.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()
    assert "waiting for attempt 3 of 10, due for" in text


def test_pause_expired_is_listed_as_ended_and_ignored(operator: Client, make_job: JobMaker) -> None:
    job = make_job(queue_name="mail")
    Pause.objects.create(kind="queue", name="mail", paused_until=timezone.now() - timedelta(seconds=1))
    assert ">ended<" in operator.get(LIST).content.decode()
    assert "Paused by" not in operator.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()


def test_job_list_marks_only_paused_jobs(operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: Task[..., None] = Task(func=tasks.noop.func, aliases=("app.former",))
    monkeypatch.setitem(registry._tasks, "app.former", renamed)
    monkeypatch.setitem(registry._tasks, renamed.name, renamed)
    paused = [make_job(queue_name="mail"), make_job(task_name="app.former"), make_job(task_name=renamed.name)]
    make_job(queue_name="other", task_name="mail")
    make_job("running", queue_name="mail")
    control.pause("mail")
    control.pause("other", until=timedelta(hours=1))
    control.pause(task=renamed)
    Pause.objects.filter(name="other").update(paused_until=timezone.now() - timedelta(seconds=1))
    rows = operator.get("/admin/pgqueue/job/").content.decode().split("<tr>")
    marked = {match[1] for row in rows if ">paused<" in row and (match := re.search(r"#(\d+)", row))}
    assert marked == {str(job.pk) for job in paused}


def test_pause_list_counts_running_jobs_of_each_pause(operator: Client, make_job: JobMaker) -> None:
    control.pause("mail")
    control.pause(task="app.add")
    for queue_name, task_name in (("mail", "app.other"), ("mail", "app.add"), ("other", "app.add")):
        make_job("running", queue_name=queue_name, task_name=task_name)
    add_execution(make_job("dead", queue_name="mail"))
    page = operator.get(LIST).content.decode()
    assert re.findall(r'field-running">([^<]*)<', page) == ["2", "2"]


def queries_of_list(client: Client) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(LIST).status_code == 200
    return [query["sql"] for query in captured]


def test_pause_list_runs_as_many_queries_for_50_pauses_as_for_one(operator: Client) -> None:
    control.pause("queue0")
    control.pause(limit_key="name")
    operator.get(LIST)  # the first request reads what later ones have in a cache
    one = queries_of_list(operator)
    for number in range(1, 50):
        target: dict[str, Any] = {("queue_name", "task", "limit_key")[number % 3]: f"name{number}"}
        control.pause(**target)
    assert Pause.objects.count() == 51
    assert len(queries_of_list(operator)) == len(one)
    jobs = [sql for sql in one if '"pgqueue_job"' in sql or " pgqueue_job" in sql]
    assert len(jobs) == 3, "the waiting jobs of queues, the lanes of limits, and the running jobs"


def test_pause_list_counts_the_waiting_and_running_jobs_of_each_pause(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_limits", {})
    monkeypatch.setattr(paused_jobs, "WAITING_LIMIT", 4)
    for queue_name, limit_key in (("mail", None), ("mail", "stripe:7"), ("mail", "stripe"), ("other", None)):
        make_job(queue_name=queue_name, limit_key=limit_key, limit_order=limit_key and 1)
        make_job("running", queue_name=queue_name, limit_key=limit_key)
    renamed: Task[..., None] = Task(func=tasks.noop.func, aliases=("app.former",))
    for name in ("app.former", renamed.name):
        monkeypatch.setitem(registry._tasks, name, renamed)
        make_job("running", queue_name="other", task_name=name)
    make_job("waiting", queue_name="mail")
    control.pause(task=renamed)
    for limit_key in ("stripe", "stripe:7"):
        control.pause(limit_key=limit_key)
    for queue_name in ("mail", "idle"):
        control.pause(queue_name)
    assert counts_of_list(operator) == {
        "queue mail": ("3", "3"),
        "limit stripe": ("2", "2"),
        "limit stripe:7": ("1", "1"),
        "queue idle": ("0", "0"),
        f"task {renamed.name}": ("–", "2"),
    }
    make_job(queue_name="mail")
    monkeypatch.setattr(paused_jobs, "RUNNING_LIMIT", 3)
    counts = counts_of_list(operator)
    assert counts["queue mail"][0] == "4+" and counts["queue idle"][0] == "0"
    monkeypatch.setattr(paused_jobs, "RANGES_LIMIT", 2)
    assert counts_of_list(operator)["limit stripe"][0] == "1+", "not all of its keys are counted"
    assert counts["limit stripe"][1] == "2+" and counts["queue idle"][1] == "–"


def counts_of_list(client: Client) -> dict[str, tuple[str, str]]:
    """Return how many jobs wait and run behind each pause, as the list shows them."""
    rows = re.findall(
        r'field-what">(.*?)<div.*?field-waiting">(.*?)</td>.*?field-running">(.*?)</td>',
        client.get(LIST).content.decode(),
        re.S,
    )
    return {what.replace("<wbr>", ""): (waiting, running) for what, waiting, running in rows}
