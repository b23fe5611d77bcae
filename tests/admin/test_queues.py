"""The pages of the queues: one row each, one click to pause and resume, and a bulk act on waiting jobs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.lifecycle import rollups
from django_pgqueue.models import AuditEntry, Execution, Job, Pause, Worker
from django_pgqueue.stats import depths
from django_pgqueue.worker.completion.attempt_counter import Tally
from tests.admin.test_databases import browser as browser
from tests.admin.test_databases import second as second

from .conftest import JobMaker

PAGE, DOCUMENT = "/admin/pgqueue/job/queues/", "/admin/pgqueue/job/queues.json"
PAUSE, RESUME = f"{PAGE}pause/", f"{PAGE}resume/"
PAST = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = {"queue_name": "mail", "task_name": "app.add", "exception_class": ""}


def text_of(client: Client, url: str = PAGE) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return str(answer.content.decode())


def row_of(text: str, queue: str) -> str:
    """Return the part of the page that is about one queue."""
    found: list[str] = re.findall(r"<tbody>.*?</tbody>", text, re.DOTALL)
    return next(part for part in found if f"queue={queue}" in part)


def cells_of(text: str, queue: str) -> dict[str, str]:
    found = re.findall(r'<td data-label="([^"]+)"[^>]*>(.*?)</td>', row_of(text, queue))
    return {label: re.sub(r"<[^>]+>", "", value) for label, value in found}


def form_of(text: str, queue: str, act: str) -> dict[str, str]:
    """Return the hidden fields of a form of a queue, as a browser posts them."""
    [form] = re.findall(rf'<form method="post" action="[^"]*{act}/[^"]*">.*?</form>', row_of(text, queue), re.DOTALL)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    return {name: value for name, value in fields.items() if name != "csrfmiddlewaretoken"}


def posted(client: Client, act: str, queue: str, **more: str) -> str:
    """Press a button of the page, and return the page that follows."""
    fields = form_of(text_of(client), queue, act)
    return str(client.post(f"{PAGE}{act}/", {**fields, **more}, follow=True).content.decode())


def test_rows_count_jobs_and_name_workers(operator: Client, make_job: JobMaker) -> None:
    make_job(queue_name="mail", run_after=PAST)
    make_job(queue_name="mail", run_after=timezone.now() + timedelta(hours=1), attempt=1)
    make_job("dead", queue_name="mail")
    Worker.objects.create(hostname="web-1", pid=77, version="v9", concurrency=4, queue_names="mail")
    make_job(queue_name="images", run_after=PAST)
    text = text_of(operator)
    cells = cells_of(text, "mail")
    assert (cells["due"], cells["retrying"], cells["running"], cells["dead"]) == ("1", "1", "0", "1")
    assert cells["slots busy"] == "0 / 4" and cells["empties in"] == "never at this rate"
    assert re.search(r"\d+ d", cells["oldest due"])
    assert "web-1:77: 0 / 4 slots busy" in row_of(text, "mail")
    assert "no worker" in row_of(text, "images") and "no worker" not in row_of(text, "mail")


def test_columns_of_rare_states_are_shown_if_there_are_such_jobs(operator: Client, make_job: JobMaker) -> None:
    make_job(queue_name="mail", run_after=PAST)
    text = text_of(operator)
    assert not {"held", "retrying", "unknown", "paused", "lost", "scheduled", "dead"} & cells_of(text, "mail").keys()
    assert 'colspan="7"' in text
    for _ in range(2):
        make_job(queue_name="mail", run_after=PAST, limit_key="nobody")
    make_job(queue_name="images", run_after=timezone.now() + timedelta(minutes=5), unknown_since=PAST)
    text = text_of(operator)
    mail, images = cells_of(text, "mail"), cells_of(text, "images")
    assert (mail["due"], mail["held"], mail["unknown"]) == ("12 held, in the same list", "2", "0")
    assert (images["due"], images["held"], images["unknown"]) == ("0", "0", "1")
    headings = re.findall(r"<th scope=\"col\">([^<]+)</th>", text.partition('id="pgqueue-queues"')[2])
    assert headings[1:6] == ["Due", "Oldest due", "Held", "Unknown", "Running"]
    assert len(headings) == 9 and 'colspan="9"' in text
    assert re.search(r'data-label="held"><a href="[^"]*/queue/\?queue=mail#pgqueue-held"', row_of(text, "mail"))
    assert "state=unknown" in row_of(text, "images").partition('data-label="unknown"')[2].partition("</td>")[0]
    lanes = text_of(operator, f"{PAGE.removesuffix('queues/')}queue/?queue=mail").partition("by priority")[2]
    assert '<th scope="col">Held</th>' in lanes and "<td>2</td>" in lanes and "Unknown" not in lanes


def test_figures_that_are_not_exact_say_so(operator: Client, make_job: JobMaker, monkeypatch: Any) -> None:
    for _ in range(3):
        make_job(queue_name="mail", run_after=PAST)
    for name in ("COUNT_LIMIT", "ENQUEUED_LIMIT"):
        monkeypatch.setattr(depths, name, 2)
    for seconds_ago in (75, 15):  # the minute that is read, and the next one, which can take its place meanwhile
        rollups.append_rollups(connection, [{**NAMES, **Tally(Counter(succeeded=9)).columns()}], seconds_ago)
    text = text_of(operator)
    cells = cells_of(text, "mail")
    assert cells["due"] == "2+" and "dead" not in cells
    assert cells["in / out per minute"] == "≈ 3 / 9" and re.match("&gt; ≈ .* s", cells["empties in"])
    assert re.search('<td data-label="due" title="Counting stopped here: there can be more."', text)
    for _ in range(2):
        make_job("dead", queue_name="images")
    text = text_of(operator)
    assert cells_of(text, "mail")["dead"] == "–"
    assert re.search('<td data-label="dead"[^>]* title="Not known: counting stopped', row_of(text, "mail"))


def test_prefetched_jobs_stand_below_the_running_ones(operator: Client, make_job: JobMaker) -> None:
    for _ in range(2):
        make_job("running", queue_name="mail")
    Execution.objects.update(started_at=None)
    Worker.objects.create(pk=1, hostname="web-1", pid=77, version="v9", concurrency=1)
    row = row_of(text_of(operator), "mail")
    cell = row.partition('data-label="running"><a ')[2].partition("</td>")[0]
    assert re.search(r'>1</a><div class="pgqueue-quiet">1 claimed, waiting for a slot</div>$', cell)
    assert "draining: 2 still running" in row_of(posted(operator, "pause", "mail"), "mail")


def test_paused_queue_lists_its_jobs_and_says_that_no_worker_is_left(operator: Client, make_job: JobMaker) -> None:
    job = make_job(queue_name="mail", run_after=PAST)
    control.pause("mail")
    row = row_of(text_of(operator), "mail")
    assert ">no worker<" in row and "no live worker serves this queue, so its jobs wait after the pause too" in row
    [link] = re.findall(r'<a href="([^"]+)">List waiting jobs', row)
    listed = operator.get(link.replace("&amp;", "&")).context["cl"].result_list
    assert [found.pk for found in listed] == [job.pk]
    Worker.objects.create(hostname="web-1", pid=77, version="v9", concurrency=1)
    row = row_of(text_of(operator), "mail")
    assert "no worker" not in row and "no live worker" not in row
    Job.objects.update(state="cancelled", finished_at=timezone.now())
    assert "List waiting jobs" not in row_of(text_of(operator), "mail")


def test_counts_link_to_the_jobs_in_that_state(operator: Client, make_job: JobMaker) -> None:
    job = make_job(queue_name="mail", run_after=PAST)
    make_job(run_after=PAST)
    [link] = re.findall(r'data-label="due"><a href="([^"]+)"', row_of(text_of(operator), "mail"))
    listed = operator.get(link.replace("&amp;", "&")).context["cl"].result_list
    assert [found.pk for found in listed] == [job.pk]


def test_pause_and_resume_take_one_click(operator: Client, make_job: JobMaker) -> None:
    make_job("running", queue_name="mail")
    text = posted(operator, "pause", "mail")
    pause = Pause.objects.get()
    assert (pause.kind, pause.name, pause.paused_by, pause.paused_until) == ("queue", "mail", "staff", None)
    assert "Queue mail is paused." in text
    assert re.search(r"staff paused it at [-0-9]+ [:0-9]+\.</a> · draining: 1 still running", row_of(text, "mail"))
    text = posted(operator, "resume", "mail")
    assert "Queue mail is resumed." in text and not Pause.objects.exists()
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == ["Paused.", "Resumed."]


def test_pause_takes_a_reason_and_an_end(operator: Client, make_job: JobMaker) -> None:
    make_job(queue_name="mail")
    text = posted(operator, "pause", "mail", reason="SMTP is <down>", length="3600")
    pause = Pause.objects.get()
    assert pause.reason == "SMTP is <down>"
    assert pause.paused_until is not None
    assert abs(pause.paused_until - timezone.now() - timedelta(hours=1)) < timedelta(minutes=1)
    assert "SMTP is &lt;down&gt;" in text and "drained: nothing is running" in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"queue": "two words", "shown_pause": ""}, "its name is invalid"),
        ({"queue": "mail", "shown_pause": "", "length": "-1"}, "choose one of the lengths"),
        ({"queue": "mail"}, "Nothing was changed"),
    ],
)
def test_pause_invalid_form_changes_nothing(operator: Client, fields: dict[str, str], words: str) -> None:
    assert words in operator.post(PAUSE, fields, follow=True).content.decode()
    assert not Pause.objects.exists() and not LogEntry.objects.exists()


@pytest.mark.pgqueue(QUEUES=["default"])
def test_pause_unlisted_queue_is_refused(operator: Client) -> None:
    text = operator.post(PAUSE, {"queue": "mail", "shown_pause": ""}, follow=True).content.decode()
    assert "is not in PGQUEUE" in text and not Pause.objects.exists()


def test_acts_on_another_pause_than_shown_are_refused(operator: Client, make_job: JobMaker) -> None:
    make_job(queue_name="mail")
    shown_free = form_of(text_of(operator), "mail", "pause")
    control.pause("mail", by="ada", reason="mine")
    assert "ada has paused queue mail" in operator.post(PAUSE, shown_free, follow=True).content.decode()
    assert Pause.objects.get().reason == "mine"
    shown_paused = form_of(text_of(operator), "mail", "resume")
    control.resume("mail")
    assert "is not paused any more" in operator.post(RESUME, shown_paused, follow=True).content.decode()
    control.pause("mail", by="bob")
    Pause.objects.update(paused_at=timezone.now() + timedelta(seconds=5))
    assert "bob has paused queue mail" in operator.post(RESUME, shown_paused, follow=True).content.decode()
    assert Pause.objects.exists() and not LogEntry.objects.exists()


def test_acts_ignore_nul_which_postgresql_cannot_store(operator: Client, make_job: JobMaker) -> None:
    make_job(queue_name="mail")
    assert "is paused" in posted(operator, "pause", "mail", reason="a\0b")
    assert Pause.objects.get().reason == "ab"
    for act in (PAUSE, RESUME):
        assert operator.post(act, {"queue": "ma\0il"}).status_code in {200, 302}


def test_resume_works_for_a_name_written_by_hand(operator: Client) -> None:
    pause = Pause.objects.create(kind="queue", name="<b> x/y")
    moment = re.findall(r'name="shown_pause" value="(\d+)"', text_of(operator))
    assert moment
    operator.post(RESUME, {"queue": pause.name, "shown_pause": moment[0]})
    assert not Pause.objects.exists()


def test_cancel_waiting_is_a_bulk_act_on_the_queue(operator: Client, make_job: JobMaker) -> None:
    waiting = [make_job(queue_name="mail"), make_job(queue_name="mail", run_after=timezone.now() + timedelta(days=1))]
    make_job("running", queue_name="mail")
    make_job()
    make_job("running", queue_name="busy")
    text = text_of(operator)
    [link] = re.findall(r'href="([^"]+)" class="button">Cancel waiting', row_of(text, "mail"))
    assert "Cancel waiting" not in row_of(text, "busy"), "no job of it waits"
    page = text_of(operator, link.replace("&amp;", "&"))
    assert "<strong>2</strong> jobs meet the filter now." in page
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))
    operator.post("/admin/pgqueue/job/bulk_preview/request/", fields)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.filter) == ("cancel", {"word": "ready", "queue_name": "mail"})
    assert Job.objects.filter(state="ready", queue_name="mail").count() == len(waiting), "workers cancel them"


def test_acts_need_their_permissions(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    make_job(queue_name="mail")
    client = client_of("view_job", "pause_queue")
    text = text_of(client)
    assert "Pause" in row_of(text, "mail") and "Cancel waiting" not in text
    client.logout()
    assert client.post(PAUSE, {"queue": "mail", "shown_pause": ""}).status_code == 302
    assert not Pause.objects.exists()


@pytest.mark.parametrize("held", [("view_job",), ("pause_queue",), ("view_pause", "cancel_job")])
def test_user_without_the_permissions_cannot_pause(client_of: Callable[..., Client], held: tuple[str, ...]) -> None:
    client = client_of(*held)
    assert client.get(PAGE).status_code == (200 if "view_job" in held else 403)
    assert client.post(PAUSE, {"queue": "mail", "shown_pause": ""}).status_code == 403
    assert client.get(DOCUMENT).status_code == client.get(PAGE).status_code


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", ""])
def test_act_redirects_only_to_this_site(operator: Client, back: str) -> None:
    answer = operator.post(RESUME, {"queue": "mail", "shown_pause": "", "back": back})
    assert (answer.status_code, answer.headers["Location"]) == (302, PAGE)


def test_page_of_a_queue_shows_lanes_and_returns_after_an_act(operator: Client, make_job: JobMaker) -> None:
    for priority in (0, 0, 5):
        make_job(queue_name="mail", priority=priority, run_after=PAST)
    url = "/admin/pgqueue/job/queue/?queue=mail"
    text = text_of(operator, url)
    assert "Queue mail" in text and "Waiting jobs by priority" in text
    assert ' aria-current="page">Queues<' in text
    assert re.findall(r'<th scope="row">(-?\d+)</th><td>(\d+)</td>', text) == [("5", "1"), ("0", "2")]
    assert "leaves pauses out of account" not in text
    answer = operator.post(PAUSE, form_of(text, "mail", "pause"))
    assert answer.headers["Location"] == url
    assert "leaves pauses out of account" in text_of(operator, url), "above, these jobs are paused"
    missing = operator.get("/admin/pgqueue/job/queue/?queue=%3Cnone%3E")
    assert missing.status_code == 404


def test_document_is_that_of_the_command(operator: Client, make_job: JobMaker) -> None:
    make_job(queue_name="mail")
    control.pause("mail", reason="down", until=60)
    output = StringIO()
    call_command("pgqueue", "queues", "--json", stdout=output)
    assert operator.get(DOCUMENT).json() == json.loads(output.getvalue())
    [mail] = [queue for queue in operator.get(DOCUMENT).json()["queues"] if queue["name"] == "mail"]
    assert mail["paused"] == {"value": 1, "is_exact": True} and mail["pause"]["reason"] == "down"


def test_empty_page_says_how_to_start(operator: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgqueue.tasks.registry.all_tasks", list)
    assert "Nothing yet" in text_of(operator)


@pytest.mark.parametrize("url", [PAGE, "/admin/pgqueue/job/queue/?queue=default"])
def test_number_of_queries_does_not_grow(operator: Client, make_job: JobMaker, url: str) -> None:
    make_job()
    operator.get(url)
    with CaptureQueriesContext(connection) as few:
        operator.get(url)
    for number in range(8):
        make_job(queue_name=f"queue{number}", priority=number)
        Worker.objects.create(hostname="h", pid=number, version="v", concurrency=4, queue_names=f"queue{number}")
        control.pause(f"queue{number}")
    with CaptureQueriesContext(connection) as many:
        operator.get(url)
    assert len(many) == len(few) <= 40


@pytest.mark.slow
def test_acts_change_the_database_that_the_page_shows(browser: Client) -> None:
    job = {"task_name": "a.b", "queue_name": "far", "arguments": {"args": [], "kwargs": {}}, "state": "ready"}
    Job.objects.using("second").create(**job)
    assert "queue=far" not in text_of(browser)
    text = text_of(browser, f"{PAGE}?database=second")
    fields = form_of(text, "far", "pause")
    [action] = re.findall(r'action="([^"]*pause/[^"]*)"', row_of(text, "far"))
    browser.post(action, fields)
    assert not Pause.objects.using("default").exists()
    assert Pause.objects.using("second").get().name == "far"
    far = browser.get(f"{DOCUMENT}?database=second").json()["queues"]
    assert [queue["name"] for queue in far if queue["pause"]] == ["far"]
    assert "paused" in text_of(browser, "/admin/pgqueue/job/overview/?database=second")


QUEUE = f"{PAGE.removesuffix('queues/')}queue/?queue=mail"


def section_of(client: Client, name: str) -> str:
    """Return the text of one section of the page of a queue; "" without it."""
    html = text_of(client, QUEUE).partition(f'<section id="{name}"')[2].partition("</section>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", html.partition(">")[2].replace("<wbr>", "")).split())


@pytest.mark.parametrize("may_view", [True, False])
def test_queue_names_limits_that_hold_its_jobs(
    client_of: Callable[..., Client], make_job: JobMaker, may_view: bool
) -> None:
    client = client_of("view_job", *(["view_arguments"] if may_view else []))
    assert section_of(client, "pgqueue-held") == ""
    for key, queue in (("nobody:4711", "mail"), ("nobody:4711", "mail"), ("other", "mail"), ("nobody:5", "images")):
        make_job(queue_name=queue, run_after=PAST, limit_key=key)
    text = section_of(client, "pgqueue-held")
    assert re.search(r"The oldest of these jobs has been due for \d+ d.*, since 2026-01-01", text)
    key = "nobody:4711" if may_view else "nobody:…"
    assert re.search(rf"{key} 2 \d+ d.* No task of this code declares the limit\. other 1 ", text)
    assert ("4711" in text) == may_view and "nobody:5" not in text
    assert "limit=nobody" in text_of(client, QUEUE)


def test_queue_names_tasks_of_its_due_jobs(operator: Client, make_job: JobMaker) -> None:
    for name, limit_key in (("app.a", None), ("app.b", None), ("app.b", "nobody")):
        make_job(queue_name="mail", task_name=name, run_after=PAST, limit_key=limit_key)
    make_job(queue_name="images", task_name="app.c", run_after=PAST)
    make_job(queue_name="mail", task_name="app.later", run_after=timezone.now() + timedelta(hours=1))
    text = section_of(operator, "pgqueue-due-tasks")
    assert "Jobs app.b 2 app.a 1 Of the jobs" in text and "app.c" not in text
    control.pause(task="app.a")
    assert "Jobs app.b 2 app.a 1 Of the jobs" in section_of(operator, "pgqueue-due-tasks")
