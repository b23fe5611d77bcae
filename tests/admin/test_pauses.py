"""The admin's list of pauses: pausing, resuming, clearing with a number, and who may."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from django_pgqueue import control, registry
from django_pgqueue.models import Job, Pause
from django_pgqueue.task import Task
from tests.app import tasks

from .conftest import JobMaker, add_execution

LIST = "/admin/pgqueue/pause/"
FORM = {"kind": "queue", "name": "mail", "paused_until_0": "", "paused_until_1": "", "reason": "the server is down"}


def act(client: Client, name: str, pause: Pause, **more: str) -> str:
    answer = client.post(LIST, {"action": name, "_selected_action": pause.pk, **more}, follow=True)
    return str(answer.content.decode())


def test_pausing_says_who_and_why(operator: Client) -> None:
    assert operator.post(f"{LIST}add/", FORM).status_code == 302
    pause = Pause.objects.get()
    assert (str(pause), pause.paused_by, pause.reason) == ("queue mail", "staff", "the server is down")
    assert LogEntry.objects.get().object_id == str(pause.pk)
    page = operator.get(LIST).content.decode()
    assert "staff" in page
    assert "the server is down" in page


def test_what_is_paused_may_be_paused_anew(operator: Client) -> None:
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
def test_what_cannot_be_meant_is_refused(operator: Client, wrong: dict[str, str], words: str) -> None:
    answer = operator.post(f"{LIST}add/", FORM | wrong)
    assert words in answer.content.decode()
    assert not Pause.objects.exists()


def test_a_task_is_paused_by_its_own_name(operator: Client) -> None:
    operator.post(f"{LIST}add/", FORM | {"kind": "task", "name": tasks.noop.name})
    assert str(Pause.objects.get()) == f"task {tasks.noop.name}"
    assert tasks.noop.name.rpartition(".")[2] in operator.get(LIST).content.decode()


def test_resuming_ends_it(operator: Client) -> None:
    control.pause("mail")
    assert "Queue mail is resumed." in act(operator, "resume_selected", Pause.objects.get())
    assert not Pause.objects.exists()


def test_clearing_asks_first_with_the_number(operator: Client, make_job: JobMaker) -> None:
    jobs = [make_job(queue_name="mail"), make_job(queue_name="mail", run_after=timezone.now() + timedelta(days=1))]
    running, other = make_job("running", queue_name="mail"), make_job()
    control.pause("mail")
    pause = Pause.objects.get()
    page = act(operator, "clear_selected", pause)
    assert "<strong>2</strong>" in page
    assert not Job.objects.filter(state="cancelled").exists()
    [shown_at] = re.findall('name="shown_at" value="([0-9]+)"', page)
    later = make_job(queue_name="mail")
    answer = act(operator, "clear_selected", pause, confirmed="1", shown_at=shown_at)
    assert "Queue mail: 2 jobs cancelled." in answer, "those that were counted, and none that came later"
    assert Job.objects.get(pk=later.pk).state == "ready"
    states = dict(Job.objects.exclude(pk=later.pk).values_list("pk", "state"))
    assert states == {jobs[0].pk: "cancelled", jobs[1].pk: "cancelled", running.pk: "running", other.pk: "ready"}
    assert Pause.objects.exists()


def test_who_may_not_cancel_jobs_may_not_clear(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    client = client_of("view_pause", "pause_queue")
    job = make_job(queue_name="mail")
    control.pause("mail")
    act(client, "clear_selected", Pause.objects.get(), confirmed="1")
    job.refresh_from_db()
    assert job.state == "ready"


@pytest.mark.parametrize("until", [None, timedelta(hours=1)])
def test_the_page_of_a_job_says_what_holds_it_back(
    operator: Client, make_job: JobMaker, until: timedelta | None
) -> None:
    job = make_job(queue_name="mail")
    page = f"/admin/pgqueue/job/{job.pk}/change/"
    control.pause(task="app.add", reason="<b>", by="ada", until=until)
    control.pause("other")
    text = operator.get(page).content.decode()
    ends = "" if until is None else " until [-0-9]+ [:0-9]+"
    assert re.search(rf"task app\.add, paused by ada{ends}: &lt;b&gt;", text)
    assert "paused, due for" in text
    control.resume(task="app.add")
    text = operator.get(page).content.decode()
    assert "Paused by" not in text and "paused, due" not in text
    assert "waiting for a worker, due for" in text


def test_a_pause_holds_back_a_further_attempt_too(operator: Client, make_job: JobMaker) -> None:
    job = make_job(queue_name="mail", attempt=2)
    control.pause("mail")
    text = operator.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()
    assert "waiting for attempt 3 of 10, paused, due for" in text


def test_one_that_is_over_is_shown_so_and_holds_nothing_back(operator: Client, make_job: JobMaker) -> None:
    job = make_job(queue_name="mail")
    Pause.objects.create(kind="queue", name="mail", paused_until=timezone.now() - timedelta(seconds=1))
    assert ">ended<" in operator.get(LIST).content.decode()
    assert "Paused by" not in operator.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()


def test_the_list_of_jobs_marks_what_is_held_back(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: Task[..., None] = Task(func=tasks.noop.func, aliases=("app.former",))
    monkeypatch.setitem(registry._tasks, "app.former", renamed)
    monkeypatch.setitem(registry._tasks, renamed.name, renamed)
    held = [make_job(queue_name="mail"), make_job(task_name="app.former"), make_job(task_name=renamed.name)]
    make_job(queue_name="other", task_name="mail")
    make_job("running", queue_name="mail")
    control.pause("mail")
    control.pause("other", until=timedelta(hours=1))
    control.pause(task=renamed)
    Pause.objects.filter(name="other").update(paused_until=timezone.now() - timedelta(seconds=1))
    rows = operator.get("/admin/pgqueue/job/").content.decode().split("<tr>")
    marked = {match[1] for row in rows if ">paused</div>" in row and (match := re.search(r"#(\d+)", row))}
    assert marked == {str(job.pk) for job in held}


def test_the_list_of_pauses_counts_what_still_runs(operator: Client, make_job: JobMaker) -> None:
    control.pause("mail")
    control.pause(task="app.add")
    for queue_name, task_name in (("mail", "app.other"), ("mail", "app.add"), ("other", "app.add")):
        make_job("running", queue_name=queue_name, task_name=task_name)
    add_execution(make_job("dead", queue_name="mail"))
    page = operator.get(LIST).content.decode()
    assert re.findall(r'field-running">([^<]*)<', page) == ["2", "2"]
