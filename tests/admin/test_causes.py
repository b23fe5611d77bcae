"""The causes on the overview and on Django's index page: their order, links and buttons, and who sees limit keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.lifecycle import rollups
from django_pgqueue.models import (
    AuditEntry,
    Execution,
    JobBatch,
    JobDependency,
    Pause,
    Schedule,
    ScheduleRun,
    Worker,
)
from django_pgqueue.stats import CauseKind
from django_pgqueue.stats.causes import current
from django_pgqueue.worker.completion.attempt_counter import Tally
from tests import helpers
from tests.app import tasks

from .conftest import JobMaker
from .limits import declare, plain

PAGE, DOCUMENT, INDEX = "/admin/pgqueue/job/overview/", "/admin/pgqueue/job/overview.json", "/admin/"
PAST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def worker(db: None) -> Worker:
    return Worker.objects.create(hostname="vm", pid=7, supervisor_pid=6, version="1", concurrency=4)


def rows_of(client: Client, url: str = PAGE) -> list[str]:
    """Return the items of the list of causes."""
    answer = client.get(url)
    assert answer.status_code == 200
    return re.findall(r'<li class="pgqueue-cause.*?</li>', answer.content.decode(), re.DOTALL)


def post_form(client: Client, row: str) -> str:
    """Post the form in a row as a browser does, and return the page that follows."""
    [(action, form)] = re.findall(r'<form method="post" action="([^"]*)">(.*?)</form>', row, re.DOTALL)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    answer = client.post(action, fields, follow=True)
    assert answer.redirect_chain == [(PAGE, 302)]
    return str(answer.content.decode())


def paused_queue(make_job: JobMaker, count: int = 3) -> None:
    control.pause("orders", by="anna", reason="wrong price list")
    for _ in range(count):
        make_job(queue_name="orders", run_after=PAST)


def test_page_of_a_healthy_queue_has_no_list(operator: Client, worker: Worker) -> None:
    assert "What is wrong now" not in operator.get(PAGE).content.decode()


def test_paused_queue_is_resumed_from_the_overview(operator: Client, worker: Worker, make_job: JobMaker) -> None:
    paused_queue(make_job)
    [row] = rows_of(operator)
    assert "3 jobs wait: an operator has paused the queue orders: wrong price list (by anna" in plain(row)
    assert "/queue/?queue=orders" in row
    page = post_form(operator, row)
    assert "is resumed" in page and "pgqueue-cause" not in page
    assert not Pause.objects.exists() and AuditEntry.objects.filter(action="resume").exists()


def test_act_shows_its_effect_at_once_although_counts_are_kept(
    operator: Client, worker: Worker, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current, "AGE_LIMIT_SECONDS", 5.0)
    paused_queue(make_job)
    [row] = rows_of(operator)
    make_job(queue_name="orders", run_after=PAST)
    assert rows_of(operator)[0].count("3 jobs wait") == 1, "the second page shows the same reading"
    assert "pgqueue-cause" not in post_form(operator, row)


@pytest.mark.parametrize("name", ["action", "delete"])
def test_acts_of_lists_show_their_effect_at_once(
    client_of: Callable[..., Client], worker: Worker, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(current, "AGE_LIMIT_SECONDS", 5.0)
    operator = client_of("view_job", "view_pause", "pause_queue", "view_schedule", "delete_schedule")
    url, data = "/admin/pgqueue/pause/", {"action": "resume_selected"}
    if name == "action":
        paused_queue(make_job)
        data["_selected_action"] = str(Pause.objects.get().pk)
    else:
        broken = Schedule.objects.create(
            name="s", task_name=tasks.noop.name, arguments={}, expression="@daily", next_run_at=PAST, problem="x"
        )
        url, data = f"/admin/pgqueue/schedule/{broken.pk}/delete/", {"post": "yes"}
    assert len(rows_of(operator)) == 1
    operator.post(url, data, follow=True)
    assert not Pause.objects.exists() and not Schedule.objects.exists()
    assert rows_of(operator) == []


def test_user_without_rights_sees_causes_without_buttons(
    client_of: Callable[..., Client], worker: Worker, make_job: JobMaker
) -> None:
    paused_queue(make_job)
    make_job("dead", task_name="app.import")
    rows = rows_of(client_of("view_job"))
    assert len(rows) == 1
    for row in rows:
        assert "<form" not in row and 'class="button"' not in row


def test_key_of_nearly_all_jobs_is_paused_from_the_overview(
    operator: Client, worker: Worker, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch)
    for number in range(120):
        make_job(task_name="app.render", limit_key="render:globex" if number else "render:acme", run_after=PAST)
    [row] = [row for row in rows_of(operator) if "belong to" in row]
    assert "119 of 120 due jobs of the limit render belong to globex." in plain(row)
    post_form(operator, row)
    assert Pause.objects.get().name == "render:globex"


def test_limit_key_is_named_only_to_users_who_may_see_arguments(
    client_of: Callable[..., Client],
    worker: Worker,
    make_job: JobMaker,
    make_user: Callable[..., User],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(monkeypatch)
    control.pause(limit_key="render:globex", reason="as globex asked")
    make_job(task_name="app.render", limit_key="render:globex", run_after=PAST)
    without, with_permission = client_of("view_job", "pause_queue"), Client()
    with_permission.force_login(make_user("view_job", "view_arguments", name="ada"))
    for url in (PAGE, DOCUMENT, INDEX, "/admin/pgqueue/"):
        assert "globex" not in without.get(url).content.decode(), url
    assert "one key of the limit render is paused" in without.get(PAGE).content.decode()
    for url in (PAGE, DOCUMENT):
        assert "globex" in with_permission.get(url).content.decode(), url
    assert "globex" not in with_permission.get(INDEX).content.decode(), "the index page never names a key"


def test_index_page_of_django_shows_the_first_causes(
    operator: Client, worker: Worker, make_job: JobMaker, make_user: Callable[..., User]
) -> None:
    assert "what is wrong now" not in operator.get(INDEX).content.decode()
    for number in range(7):
        control.pause(f"queue{number}")
        make_job(queue_name=f"queue{number}", run_after=PAST)
    text = operator.get(INDEX).content.decode()
    assert text.count("an operator has paused the queue queue") == 5
    assert ">2 more causes</a>" in text and PAGE in text
    assert "what is wrong now" not in operator.get("/admin/auth/").content.decode(), "it extends the index page"
    assert operator.get("/admin/?database=nobody").status_code == 200
    other = Client()
    other.force_login(make_user("view_worker", name="ada"))
    assert "what is wrong now" not in other.get(INDEX).content.decode()


def test_each_kind_of_cause_has_a_link_and_most_have_an_act(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch)
    now = timezone.now()
    Worker.objects.create(
        hostname="vm", pid=7, supervisor_pid=6, version="1", concurrency=4, queue_names="default,orders"
    )
    paused_queue(make_job)
    control.pause(task="app.stripe")
    make_job(task_name="app.stripe", run_after=PAST)
    make_job(queue_name="nobody", run_after=PAST)
    make_job(task_name="shop.gone", run_after=now + timedelta(seconds=15), unknown_since=now)
    make_job(task_name="app.render", limit_key="unknown_limit", run_after=PAST)
    dead = make_job("dead", task_name="app.import", limit_key="import:customer:1", limit_order=2)
    make_job(task_name="app.import", limit_key="import:customer:1", limit_order=2, run_after=PAST)
    schedule = Schedule.objects.create(
        name="nightly", task_name=tasks.noop.name, arguments={}, expression="@daily", next_run_at=now
    )
    for hours in range(3):
        tick_at = now - timedelta(hours=hours)
        ScheduleRun.objects.create(schedule_id=schedule.pk, tick_at=tick_at, job_id=make_job("dead").pk)
    answer = operator.get(PAGE)
    kinds = [row["cause"].kind for row in answer.context["causes"]]
    assert kinds == [
        CauseKind.QUEUE_NOT_SERVED,
        CauseKind.UNKNOWN_TASK,
        CauseKind.LIMIT_UNDECLARED,
        CauseKind.BLOCKED_BY_DEAD,
        CauseKind.SCHEDULE_FAILING,
        CauseKind.QUEUE_PAUSED,
        CauseKind.TASK_PAUSED,
    ]
    for row in answer.context["causes"]:
        assert operator.get(row["link"].url).status_code == 200, row
        for act in row["acts"]:
            assert operator.get(act.url).status_code == 200, row
    acts = {row["cause"].kind for row in answer.context["causes"] if row["acts"] or row["button"]}
    assert acts == set(kinds) - {CauseKind.QUEUE_NOT_SERVED}
    [blocked] = [row for row in answer.context["causes"] if row["cause"].kind is CauseKind.BLOCKED_BY_DEAD]
    assert str(dead.pk) in blocked["acts"][0].url


def test_causes_of_workers_and_workflows_link_their_pages(
    worker: Worker, make_job: JobMaker, client_of: Callable[..., Client], make_user: Callable[..., User]
) -> None:
    operator = client_of("view_job", "view_jobbatch", "view_worker", "retry_job")
    now, batch = timezone.now(), JobBatch.objects.create()
    long_ago = now - timedelta(hours=1)
    Worker.objects.filter(pk=worker.pk).update(release="v1", started_at=long_ago)
    silent = {"last_heartbeat_at": now - timedelta(minutes=9)}
    for host, columns in (("vm", {"release": "v2"}), ("lost", silent)):
        Worker.objects.create(
            hostname=host, pid=8, supervisor_pid=6, version="1", concurrency=1, started_at=long_ago, **columns
        )
    root = make_job("dead", task_name="app.pay", in_graph=True, batch_id=batch.pk)
    after = make_job("cancelled", task_name="app.send", in_graph=True, batch_id=batch.pk)
    JobDependency.objects.create(job=after, needs=root, policy="cancel", has_cancelled=True)
    tally = Tally(Counter(succeeded=40))
    tally.add_times([], [1.0] * 40)
    names = {"queue_name": "default", "task_name": "app.export", "exception_class": ""}
    rollups.append_rollups(connection, [{**names, **tally.columns()}], 60.0)
    hanging = make_job(task_name="app.export", run_after=PAST)
    helpers.claim_one(connection, worker_id=worker.pk)
    Execution.objects.filter(job_id=hanging.pk).update(started_at=long_ago)
    answer = operator.get(PAGE)
    found = {row["cause"].kind: row for row in answer.context["causes"]}
    links = {kind: row["link"].url for kind, row in found.items()}
    assert links == {
        CauseKind.JOB_HANGING: "/admin/pgqueue/job/?state=running&task=app.export",
        CauseKind.WORKFLOW_FAILED: f"/admin/pgqueue/jobbatch/{batch.pk}/change/#pgqueue-graph",
        CauseKind.WORKER_LOST: "/admin/pgqueue/worker/",
        CauseKind.MIXED_RELEASES: "/admin/pgqueue/worker/",
    }
    acts = {kind: [act.url for act in found[kind]["acts"]] for kind in found}
    assert acts[CauseKind.JOB_HANGING] == [f"/admin/pgqueue/job/{hanging.pk}/change/"]
    assert "action=retry" in acts[CauseKind.WORKFLOW_FAILED][0] and "app.pay" in acts[CauseKind.WORKFLOW_FAILED][0]
    for url in {*links.values(), *(url for urls in acts.values() for url in urls)}:
        assert operator.get(url).status_code == 200, url
    other = Client()
    other.force_login(make_user("view_job", name="ada"))
    [row] = [row for row in rows_of(other) if "workflow failed in" in row]
    assert f"/admin/pgqueue/job/{root.pk}/change/" in row, "without the page of batches"


def test_many_late_schedules_link_their_list(operator: Client, worker: Worker) -> None:
    for number in range(7):
        values = {"task_name": tasks.noop.name, "arguments": {}, "expression": "@daily"}
        Schedule.objects.create(name=f"s{number}", next_run_at=PAST, **values)
    [row] = operator.get(PAGE).context["causes"]
    assert row["link"].url == "/admin/pgqueue/schedule/"


def test_failing_task_is_paused_and_resumed_from_the_overview(operator: Client, worker: Worker) -> None:
    tally = Tally(Counter(dead=5))
    names = {"queue_name": "default", "task_name": tasks.noop.name, "exception_class": "E"}
    rollups.append_rollups(connection, [{**names, **tally.columns()}], 60.0)
    for is_paused in (True, False):
        [row] = rows_of(operator)
        post_form(operator, row)
        assert Pause.objects.filter(kind="task", name=tasks.noop.name).exists() is is_paused
