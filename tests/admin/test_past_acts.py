"""Charts and the timeline of a job show releases, pauses and acts on many jobs, each with the name and the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_pgqueue import Limit, control
from django_pgqueue.admin import past_acts
from django_pgqueue.admin.job import past_acts as of_job
from django_pgqueue.control import workers as worker_control
from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import AuditEntry, Job, OpenBreaker, Pause, Worker
from django_pgqueue.states import RequestKind
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.test_overview import add_worker, count
from tests.app import tasks

pytestmark = pytest.mark.slow

OVERVIEW = "/admin/pgqueue/job/overview/"
QUEUE = "/admin/pgqueue/job/queue/?queue="
JOBS = "/admin/pgqueue/job/"


def marks_of(client: Client, url: str = OVERVIEW) -> list[str]:
    """Return the list of marks below the charts, as text without tags."""
    text = client.get(url).content.decode().partition('class="pgqueue-marks"')[2].partition("</ol>")[0]
    return [re.sub(r"<[^>]+>", "", each).strip()[20:] for each in re.findall(r"<li>(.*?)</li>", text, re.S)]


def timeline_of(client: Client, job: Job) -> list[str]:
    page = client.get(f"{JOBS}{job.pk}/change/").content.decode()
    return re.findall(r"</time></span> <span>([^<]*)<", page.partition('class="pgqueue-timeline"')[2])


def bulk_act(action: str, jobs: int, **chosen: Any) -> None:
    audit.add_audit(connection, action, chosen, range(1, jobs + 1), done_by="ada", reason="fixed <b>")


@pytest.fixture
def finished_jobs(db: None) -> None:
    """Count an attempt, so that the charts are drawn."""
    count(300, succeeded=1)


def test_charts_show_acts_with_names_and_reasons(operator: Client, finished_jobs: None) -> None:
    add_worker(release="r1", minutes=40)
    add_worker(release="r2", minutes=30)
    control.pause("mail", by="ben", reason="SMTP\x1b down")
    control.resume("mail", by="eve")
    bulk_act("retry", 3, queue_name="mail", word="dead")
    bulk_act("cancel", 2)
    bulk_act("retry", 1)
    worker = Worker.objects.create(hostname="web", pid=7, supervisor_pid=6, version="1", concurrency=1)
    worker_control.request(worker.pk, RequestKind.STOP, "default", by="kim")
    assert marks_of(operator) == [
        "release r2",
        "queue mail paused by ben: SMTP\\x1b down",
        "queue mail resumed by eve",
        "3 jobs (queue mail) retried by ada: fixed &lt;b&gt;",
        "2 jobs cancelled by ada: fixed &lt;b&gt;",
        "stop of the worker web:7 requested by kim",
    ]
    page = operator.get(OVERVIEW).content.decode()
    for kind, lines in {"release": 1, "pause": 1, "resume": 1, "act": 3}.items():
        assert page.count(f'<path class="pgqueue-mark pgqueue-mark-{kind}" d="M0 5H24"') == lines
        assert len(re.findall(rf'pgqueue-mark-{kind}" d="M[0-9.]+ 0V100"', page)) >= lines, "each chart has the line"
    entry = AuditEntry.objects.get(action="pause")
    assert f'href="/admin/pgqueue/job/bulk_act/?id={entry.pk}"' in page


def test_charts_of_a_queue_leave_out_acts_on_other_queues(operator: Client, finished_jobs: None) -> None:
    control.pause("mail")
    control.pause("pdf")
    control.pause(task="app.any")
    bulk_act("retry", 2, queue_name="pdf")
    bulk_act("cancel", 3)
    shown = marks_of(operator, f"{QUEUE}mail")
    assert shown == ["queue mail paused", "task app.any paused", "3 jobs cancelled by ada: fixed &lt;b&gt;"]


def test_charts_of_a_queue_or_task_leave_out_acts_on_chosen_jobs(operator: Client, finished_jobs: None) -> None:
    """Such acts do not say of which queue and task the jobs are. The charts of all jobs have them."""
    for chosen in ({"selected": 3}, {"batch_id": 7, "from_job": 9}, {"jobs": [1, 2]}):
        audit.add_audit(connection, "retry", chosen, [1, 2, 3])
    control.pause("mail")
    assert len(marks_of(operator)) == 4
    assert marks_of(operator, f"{QUEUE}mail") == ["queue mail paused"]
    assert marks_of(operator, f"{QUEUE}pdf") == []
    assert marks_of(operator, f"{OVERVIEW}?task={tasks.add.name}") == [], "its queue is another one"


def test_charts_of_a_queue_leave_out_acts_on_tasks_of_others(operator: Client, monkeypatch: Any) -> None:
    other: Task[..., Any] = Task(func=tasks.add.func, queue_name="other", limit=Limit("api", concurrency=1))
    ran_here: Task[..., Any] = Task(func=tasks.fail.func, queue_name="other")
    mine: Task[..., Any] = Task(func=tasks.noop.func, queue_name="default")
    count(300, task=ran_here.name, succeeded=1)  # an attempt in the queue `default`
    known = {each.name: each for each in (other, ran_here, mine)}
    monkeypatch.setattr(registry, "all_tasks", lambda: [*known.values()])
    monkeypatch.setattr(registry, "get", known.get)
    monkeypatch.setattr(registry, "names_of", lambda name: (name,))
    for name in known:
        audit.add_audit(connection, "pause", {"task_name": name}, [])
    audit.add_audit(connection, "pause", {"limit_key": "api:7"}, [])
    assert marks_of(operator, f"{QUEUE}default") == [f"task {name} paused" for name in (ran_here.name, mine.name)]
    assert marks_of(operator, f"{OVERVIEW}?task={other.name}") == [f"task {other.name} paused", "limit api:7 paused"]
    assert len(marks_of(operator)) == 4


@pytest.mark.parametrize("may_view", [True, False])
def test_charts_show_circuit_breakers_that_opened(
    client_of: Callable[..., Client], finished_jobs: None, may_view: bool
) -> None:
    now = timezone.now()
    for key, minutes in (("stripe:7", 5), ("old", 90)):
        OpenBreaker.objects.create(limit_key=key, opened_at=now - timedelta(minutes=minutes), after_execution_id=0)
    Pause.objects.create(kind="limit", name="stripe:7", paused_by=PAUSED_BY, reason="18 of 30 attempts failed in 60 s")
    client = client_of("view_job", *(["view_arguments"] if may_view else []))
    key = "stripe:7" if may_view else "stripe:…"
    text = f"The circuit breaker of the limit {key} opened. 18 of 30 attempts failed in 60 s"
    assert marks_of(client) == [text]


def test_charts_show_acts_of_their_period_only(operator: Client, finished_jobs: None) -> None:
    control.pause("mail")
    AuditEntry.objects.update(began_at=timezone.now() - timedelta(hours=2))
    assert marks_of(operator) == []
    assert marks_of(operator, f"{OVERVIEW}?span=day") == ["queue mail paused"]


def test_charts_show_the_latest_marks_and_say_so(operator: Client, finished_jobs: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(past_acts, "MARKS_SHOWN", 2)
    for name in ("one", "two"):
        control.pause(name)
    assert "Only the latest" not in operator.get(OVERVIEW).content.decode()
    control.pause("three")
    assert marks_of(operator) == ["queue two paused", "queue three paused"]
    assert "Only the latest 2 are drawn" in operator.get(OVERVIEW).content.decode()


@pytest.mark.parametrize("may_view", [True, False])
def test_value_of_a_limit_key_needs_its_permission(
    client_of: Callable[..., Client], make_job: JobMaker, may_view: bool
) -> None:
    count(300, succeeded=1)
    job = make_job(limit_key="stripe:customer:7")
    control.pause(limit_key="stripe:customer:7", reason="7 asked for it")
    client = client_of("view_job", *(["view_arguments"] if may_view else []))
    shown = "limit stripe:customer:7 paused: 7 asked for it" if may_view else "limit stripe:… paused"
    assert marks_of(client) == [shown]
    assert shown in timeline_of(client, job)
    assert ("7 asked for it" in client.get("/admin/pgqueue/job/bulk_acts/").content.decode()) == may_view


def test_timeline_shows_what_concerns_the_job(operator: Client, make_job: JobMaker) -> None:
    now = timezone.now()
    worker = Worker.objects.create(hostname="web", pid=7, supervisor_pid=6, version="1", concurrency=1)
    Worker.objects.filter(pk=worker.pk).update(started_at=now - timedelta(hours=3), release="old")
    job = make_job(
        task_name=tasks.renamed.name, queue_name="mail", limit_key="api:7", enqueued_at=now - timedelta(hours=2)
    )
    add_execution(job, worker_id=worker.pk)
    add_worker(release="r2", minutes=30)
    control.pause("mail", by="ben", reason="SMTP down")
    control.resume("mail", by="eve", reason="SMTP up")
    targets: tuple[dict[str, Any], ...] = (
        {"queue_name": "pdf"},
        {"task": "app.other"},
        {"limit_key": "other"},
        {"limit_key": "api:8"},
    )
    for target in targets:
        control.pause(**target)
    control.pause(task=tasks.renamed)
    AuditEntry.objects.filter(filter__icontains="tests.app").update(filter={"task_name": tasks.renamed.aliases[0]})
    control.pause(limit_key="api")
    worker_control.request(worker.pk, RequestKind.STOP, "default", by="kim")
    other = Worker.objects.create(hostname="db", pid=8, supervisor_pid=6, version="1", concurrency=1)
    worker_control.request(other.pk, RequestKind.STOP, "default")
    shown = timeline_of(operator, job)
    assert [label for label in shown if not label.startswith(("enqueued", "due", "attempt"))] == [
        "first worker of release r2",
        "queue mail paused by ben: SMTP down",
        "queue mail resumed by eve: SMTP up",
        f"task {tasks.renamed.aliases[0]} paused",
        "limit api paused",
        "stop of the worker web:7 requested by kim",
    ]
    Job.objects.filter(pk=job.pk).update(finished_at=now - timedelta(hours=1), state="dead")
    assert not [label for label in timeline_of(operator, job) if "paused" in label or "first worker" in label]


def test_timeline_intervals_count_from_the_jobs_own_events(operator: Client, make_job: JobMaker) -> None:
    now = timezone.now()
    job = make_job(enqueued_at=now - timedelta(hours=2), run_after=now - timedelta(hours=2))
    Job.objects.filter(pk=job.pk).update(cancel_requested_at=now)
    add_worker(release="r1", minutes=300)
    add_worker(release="r2", minutes=30)
    html = operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    events = re.findall(r'<li class="pgqueue-event.*?</li>', html, re.DOTALL)
    [release] = [each for each in events if "first worker of release r2" in each]
    [cancelled] = [each for each in events if "cancel requested" in each]
    assert "after" not in release and "after 2 h" in cancelled


def test_timeline_says_who_cancelled_the_job_and_why(operator: Client, make_job: JobMaker) -> None:
    job, other = make_job("cancelled"), make_job("cancelled")
    audit.add_audit(connection, "cancel", {"jobs": [job.pk]}, [job.pk], done_by="ada", reason="wrong\nshop")
    assert "cancelled by ada: wrong" in timeline_of(operator, job)
    assert not [label for label in timeline_of(operator, other) if "ada" in label]


def test_timeline_shows_what_operators_did_to_the_job(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead", enqueued_at=timezone.now() - timedelta(hours=1))
    moved = {"word": "ready", "to_queue": "mail", "to_priority": 7}
    acts: dict[str, dict[str, Any]] = {
        "move": moved, "run_now": {"selected": 1}, "erase": {"jobs": [job.pk], "erased": ["results", "logs"]},
        "edit_and_retry": {"jobs": [job.pk]},
    }  # fmt: skip
    for action, chosen in acts.items():
        audit.add_audit(connection, action, chosen, [job.pk], done_by="ada", reason=f"why {action}")
    new = make_job("ready", enqueued_at=timezone.now() + timedelta(hours=1))
    audit.add_audit(connection, "edit_and_retry", {"jobs": [job.pk]}, [new.pk], done_by="ada")
    audit.add_audit(connection, "move", {"selected": 1}, [new.pk], done_by="ada")
    assert [label for label in timeline_of(operator, job) if "ada" in label] == [
        "moved to the queue mail to the priority 7 by ada: why move",
        "made due by ada: why run_now",
        "values erased (results, logs) by ada: why erase",
        "edited and retried as a new job by ada: why edit_and_retry",
    ]
    assert [label for label in timeline_of(operator, new) if "ada" in label] == [
        "made from another job by ada",
        "moved by ada",
    ]


def test_move_of_one_job_is_in_its_timeline(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    client = client_of("view_job", "move_job")
    job = make_job(run_after=timezone.now() + timedelta(days=1))
    client.post(f"{JOBS}{job.pk}/move/", {"queue_name": "other", "anyway": "on"}, follow=True)
    assert "moved to the queue other by staff" in timeline_of(client, job)
    assert AuditEntry.objects.get().filter == {"jobs": [job.pk], "to_queue": "other"}


def test_timeline_has_the_latest_acts_and_says_so(operator: Client, make_job: JobMaker, monkeypatch: Any) -> None:
    monkeypatch.setattr(of_job, "SHOWN", 1)
    job = make_job(queue_name="mail", enqueued_at=timezone.now() - timedelta(hours=1))
    control.pause("mail", by="ben")
    assert "Only the latest 20 releases" not in operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    control.resume("mail", by="eve")
    assert [label for label in timeline_of(operator, job) if "queue mail" in label] == ["queue mail resumed by eve"]
    assert "Only the latest 20 releases" in operator.get(f"{JOBS}{job.pk}/change/").content.decode()
