"""Every declared act in the admin: it needs each of its permissions, only POST runs it, and a record is left.

Each case posts the form that the page shows, as a browser does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client
from django.utils import timezone

from django_pgqueue import acts, control
from django_pgqueue.admin.buttons import BUTTONS
from django_pgqueue.admin.job.actions import ON_ONE_JOB
from django_pgqueue.admin.schedules.actions import OPERATIONS
from django_pgqueue.models import AuditEntry, JobBatch, LimitState, Pause, Schedule, ScheduleRun, Worker
from tests import helpers

from .conftest import JobMaker
from .limits import declare
from .parameters import NUL, fails, names_read

pytestmark = pytest.mark.slow

CONSOLE = "/admin/pgqueue/"
LATER = timezone.now() + timedelta(days=1)
DECLARED = [act for act in vars(acts).values() if isinstance(act, acts.OperatorAct) and act.permissions]


class Case(NamedTuple):
    """An act, the page with its form, the URL that the form is posted to, and the fields that the user fills in."""

    act: acts.OperatorAct
    page: str
    url: str
    fields: dict[str, str] = {}
    prepare: Callable[[], object] = lambda: None

    @property
    def name(self) -> str:
        return self.url.removeprefix(CONSOLE).partition("?")[0].strip("/")


def hold() -> None:
    LimitState.objects.create(limit_key="render:1", full_at=timezone.now(), held_until=LATER)


def pause_schedule() -> None:
    Schedule.objects.update(enabled=False)


def skip_run() -> None:
    schedule = Schedule.objects.get()
    ScheduleRun.objects.create(schedule=schedule, tick_at=schedule.next_run_at, skipped_by="ada")


JOB = "job/{dead}/change/"
CASES = [
    Case(acts.PAUSE, "job/queues/", "job/queues/pause/"),
    Case(acts.RESUME, "job/queues/", "job/queues/resume/", prepare=lambda: control.pause("default")),
    Case(acts.PAUSE, "job/tasks/", "job/tasks/pause/"),
    Case(acts.RESUME, "job/tasks/", "job/tasks/resume/", prepare=lambda: control.pause(task="app.render")),
    Case(acts.PAUSE, "job/limits/", "job/limits/pause/", {"confirmed": "1"}),
    Case(acts.RESUME, "job/limits/", "job/limits/resume/", prepare=lambda: control.pause(limit_key="render")),
    Case(
        acts.RESTORE_LIMIT,
        "job/limits/",
        "job/limits/restore/",
        prepare=lambda: control.override_limit("render", concurrency=5),
    ),
    Case(acts.END_HOLD, "job/limit/?limit=render&key=1", "job/limits/end_hold/", prepare=hold),
    Case(acts.OVERRIDE_LIMIT, "job/limits/change/?key=render", "job/limits/change/?key=render", {"concurrency": "7"}),
    Case(acts.RETRY, JOB, "job/{dead}/retry/"),
    Case(acts.ACKNOWLEDGE, JOB, "job/{dead}/acknowledge/", {"confirmed": "1", "reason": "gone"}),
    Case(acts.ERASE, JOB, "job/{dead}/erase/", {"confirmed": "1", "reason": "a", "erase_results": "on"}),
    Case(acts.DELETE, JOB, "job/{dead}/delete/", {"confirmed": "1"}),
    Case(acts.CANCEL, "job/{later}/change/", "job/{later}/cancel/"),
    Case(acts.RUN_NOW, "job/{later}/change/", "job/{later}/run/"),
    Case(
        acts.SET_MAX_ATTEMPTS,
        "job/{later}/change/",
        "job/{later}/attempts/",
        {"max_attempts": "77", "reason": "the other side is down"},
    ),
    Case(acts.MOVE, "job/{later}/change/", "job/{later}/move/", {"queue_name": "other", "anyway": "on"}),
    Case(acts.RETRY, "job/bulk_preview/?action=retry&state=dead", "job/bulk_preview/request/"),
    Case(
        acts.ERASE,
        "job/bulk_preview/?action=erase&state=dead",
        "job/bulk_preview/request/",
        {"reason": "a", "erase_results": "1"},
    ),
    Case(acts.EDIT_AND_RETRY, "job/{dead}/edit/", "job/{dead}/edit/"),
    Case(acts.ENQUEUE, "job/enqueue/app.render/", "job/enqueue/app.render/", {"argument-a": "5"}),
    Case(acts.STOP_WORKER, "worker/{worker}/stop/", "worker/{worker}/stop/"),
    Case(acts.LIVE_STACK, "worker/{worker}/change/", "worker/{worker}/stack/"),
    Case(acts.RUN_SCHEDULE, "schedule/{schedule}/change/", "schedule/{schedule}/run/"),
    Case(acts.PAUSE_SCHEDULE, "schedule/{schedule}/change/", "schedule/{schedule}/pause/"),
    Case(
        acts.RESUME_SCHEDULE,
        "schedule/{schedule}/change/",
        "schedule/{schedule}/resume/",
        prepare=pause_schedule,
    ),
    Case(
        acts.PAUSE_SCHEDULE,
        "schedule/{schedule}/pause_until/",
        "schedule/{schedule}/pause_until/",
        {"until": "2100-01-01T00:00:00"},
    ),
    Case(
        acts.UNDO_SKIP,
        "schedule/{schedule}/change/",
        "schedule/{schedule}/undo_skip/",
        prepare=skip_run,
    ),
    Case(acts.SKIP_NEXT_RUN, "schedule/{schedule}/skip/", "schedule/{schedule}/skip/"),
    Case(acts.RETRY_FROM, "jobbatch/{workflow}/retry_from/{node}/", "jobbatch/{workflow}/retry_from/{node}/"),
    Case(acts.CLOSE_BATCH, "jobbatch/{batch}/close/", "jobbatch/{batch}/close/"),
]
each_act = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@pytest.fixture
def ids(make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Make the rows that the acts change, and return their ids."""
    declare(monkeypatch)
    about: dict[str, Any] = {"task_name": "app.render", "arguments": {"args": [1], "kwargs": {}}}
    # One of the admin has its buttons in the form that edits it: see test_schedules.
    schedule = Schedule.objects.create(name="nightly", origin="code", expression="@daily", next_run_at=LATER, **about)
    workflow = JobBatch.objects.create()
    return {
        "workflow": workflow.pk,
        "node": make_job("dead", in_graph=True, batch_id=workflow.pk, **about).pk,
        "dead": make_job("dead", **about).pk,
        "later": make_job(run_after=LATER, **about).pk,
        "worker": Worker.objects.create(hostname="h", pid=7, supervisor_pid=6, version="v", concurrency=1).pk,
        "schedule": schedule.pk,
        "batch": JobBatch.objects.create().pk,
    }


def form_of(client: Client, case: Case, ids: dict[str, int]) -> tuple[str, dict[str, str]]:
    """Return the URL and the fields of the form of an act on its page, with those that the user fills in."""
    page, url = (f"{CONSOLE}{path}".format_map(ids) for path in (case.page, case.url))
    answer = client.get(page)
    assert answer.status_code == 200, page
    for attributes, form in re.findall(r'<form([^>]*method="post"[^>]*)>(.*?)</form>', answer.content.decode(), re.S):
        action = re.search(r' action="([^"]*)"', attributes)
        if urljoin(page, unescape(action[1]) if action else "") == url:
            inputs = re.findall(r'<input type="(?!submit|checkbox)\w+" name="([^"]+)"(?: value="([^"]*)")?', form)
            return url, {**{name: unescape(value) for name, value in inputs}, **case.fields}
    raise AssertionError(f"the page {page} has no form that is posted to {url}")


def records() -> int:
    return LogEntry.objects.count() + AuditEntry.objects.count()


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.mark.quick
def test_cases_cover_every_declared_act() -> None:
    posted = {(case.act, case.url.partition("?")[0]) for case in CASES}
    assert {(button.act, f"job/{button.kind}s/{button.word}/") for button in BUTTONS} <= posted
    assert {operation.act for operation in (*ON_ONE_JOB, *OPERATIONS)} <= {case.act for case in CASES}
    assert [act for act in DECLARED if act not in {case.act for case in CASES}] == []


@each_act
def test_act_leaves_a_record(root: Client, ids: dict[str, int], case: Case) -> None:
    case.prepare()
    url, fields = form_of(root, case, ids)
    before = records()
    answer = root.post(url, fields)
    assert answer.status_code == 302, answer.content.decode()[:5000]
    assert records() > before
    assert AuditEntry.objects.filter(action=case.act.name, done_by="root").count() == 1
    assert case.act.name in acts.AUDITED
    found = [*LogEntry.objects.values_list("user__username", flat=True)]
    assert {*found, *AuditEntry.objects.values_list("done_by", flat=True)} - {""} == {"root"}


def test_pause_is_in_the_history_of_its_row(root: Client, ids: dict[str, int]) -> None:
    case = next(case for case in CASES if case.name == "job/queues/pause")
    url, fields = form_of(root, case, ids)
    assert root.post(url, fields).status_code == 302
    [entry] = LogEntry.objects.all()
    assert entry.object_id == str(Pause.objects.get().pk)


def records_by_row() -> Counter[object]:
    """Count the entries of the audit together, and those of each row's history."""
    return Counter(
        [*LogEntry.objects.values_list("content_type", "object_id"), *(["audit"] * AuditEntry.objects.count())]
    )


@pytest.mark.django_db(transaction=True)
@each_act
def test_act_posted_twice_at_once_leaves_one_record(root: Client, ids: dict[str, int], case: Case) -> None:
    """Two requests of a double click see the same, and then meet in the database. Only one of them is the act."""
    case.prepare()
    url, fields = form_of(root, case, ids)
    before = records_by_row()

    def send() -> None:
        try:
            assert root.post(url, fields).status_code in {200, 302}
        finally:
            connections.close_all()

    with closing(helpers.connect()) as other, helpers.transaction(other):
        other.execute("LOCK TABLE pgqueue_pause, pgqueue_limit_override IN SHARE MODE")  # reads go on, writes wait
        sent = [helpers.Background(send) for _ in range(2)]
        helpers.wait_until(lambda: waiting() + sum(not each.thread.is_alive() for each in sent) == 2)
    for each in sent:
        each.result()
    new = records_by_row() - before
    assert new and set(new.values()) == {1}


def waiting() -> int:
    """Return how many sessions of this database wait for a lock."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with connection.cursor() as cursor:  # not on the locking session: its transaction would see one snapshot only
        cursor.execute(waits)
        return int(cursor.fetchone()[0])


@each_act
def test_act_without_one_of_its_permissions_is_refused(
    root: Client, client_of: Callable[..., Client], ids: dict[str, int], case: Case
) -> None:
    case.prepare()
    url, fields = form_of(root, case, ids)
    codenames = {name.partition(".")[2] for name in case.act.permissions}
    others = {name.partition(".")[2] for act in DECLARED for name in act.permissions}
    for missing in sorted(codenames):
        User.objects.filter(username="staff").delete()
        client = client_of(*(others - {missing}))
        before = records()
        assert client.post(url, {**fields, "shown": fields.get("shown", "")}).status_code == 403, missing
        assert records() == before


@each_act
def test_act_is_not_run_by_a_link(root: Client, ids: dict[str, int], case: Case) -> None:
    case.prepare()
    url, fields = form_of(root, case, ids)
    before = records()
    if case.page == case.url:
        assert root.get(url).status_code == 200
    else:
        answer = root.get(url, fields)
        assert answer.status_code == 405 and answer.headers["Allow"] == "POST"
    assert records() == before


@each_act
def test_act_answers_nul_in_each_field(
    root: Client, ids: dict[str, int], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.prepare()
    url, fields = form_of(root, case, ids)
    with names_read(monkeypatch) as names:
        root.post(url, {**fields, "form_token": ""})
    tried = [fails(root, "post", url, {**fields, name: NUL}) for name in {*fields, *names}]
    assert [each for each in tried if each] == []
