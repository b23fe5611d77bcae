"""A different secret in each argument of many jobs: where it can be found afterwards, and where it cannot.

The tasks reveal nothing by themselves. The tests search the log lines, the pages of the admin, the metrics, the output
of the commands, the files of exports and all tables.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from django.utils import timezone

from django_pgqueue import Batch, Breaker, chain, control, history, log, send_event
from django_pgqueue.admin.console import PAGES
from django_pgqueue.lifecycle.breakers import Opened
from django_pgqueue.lifecycle.bulk_acts import Selection, request_act
from django_pgqueue.lifecycle.limit_overrides import NO_CONTROLS
from django_pgqueue.metrics import collect, render
from django_pgqueue.models import ArchivedJob, Job, JobBatch, OpenBreaker, Pause, Schedule
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.claiming.limited.key_claims import with_probes
from django_pgqueue.worker.completion import breaker_counter
from tests import helpers
from tests.admin.conftest import client_of as client_of
from tests.admin.conftest import known_content_types as known_content_types
from tests.admin.conftest import make_user as make_user
from tests.admin.test_every_page import crawl, names_of

from . import secret_tasks as tasks
from .secret_tasks import SECRETS, secret

OWN = {name: task for name, task in registry._tasks.items() if task.func.__module__ == tasks.__name__}
for own_name in OWN:
    del registry._tasks[own_name]
CODEC = "tests.app.codecs.Hidden"
LIST = "/admin/pgqueue/job/"
TOKEN = r'name="(csrfmiddlewaretoken|form_token|previewed_at)" value="[^"]*"|(\d[\d.]* (min|s|ms)\b ?)+|As of [\d:]+'
"""What differs between two requests."""


@pytest.fixture(autouse=True)
def known_tasks(monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[None]:
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **OWN})
    monkeypatch.setattr(registry, "_limits", None)
    SECRETS.clear()
    with override_settings(PGQUEUE={"TASK_MODULES": [tasks.__name__]}):
        yield
    registry._limits = None


def found_in(text: str) -> set[str]:
    """Return the uses of the secrets in a text."""
    return {use for use, value in SECRETS.items() if value in text}


def letter(number: int) -> dict[str, str]:
    return {name: secret(f"{name} {number}") for name in ("order", "address", "customer", "password")}


def run_everything() -> None:
    """Run jobs with secrets until each has ended or waits: some succeed, some are retried and die."""
    for number, task in enumerate((tasks.print_letter, tasks.send_letter)):
        task.using(headers={"tenant": secret("header")}).enqueue(**letter(number))
    for number in range(3):
        tasks.call.enqueue(secret(f"call {number}"), secret("region"))
    tasks.slow_down.enqueue(secret("slow"))
    tasks.wait_for_answer.enqueue(secret("waiting order"))
    tasks.lose_patience.enqueue(secret("impatient order"))
    tasks.negotiate.enqueue(secret("saga"))
    run_jobs(until=timedelta(seconds=1))
    send_event("answered", secret("event key"), secret("payload"))
    with Batch(on_complete=tasks.callback.s(secret("callback")), description="x") as batch:
        tasks.first.using(batch=batch).enqueue(secret("batched"))
    chain(tasks.first.s(secret("first"))).then(tasks.second, secret("second")).enqueue()
    run_jobs(until=timedelta(seconds=1))
    tasks.send_letter.enqueue(**letter(1) | {"order": secret("order 2")})  # blocked by the dead job
    Schedule.objects.create(
        name="nightly",
        task_name=tasks.first.name,
        arguments={"args": [secret("scheduled")], "kwargs": {}},
        expression="@daily",
        origin="code",
        next_run_at=timezone.now() - timedelta(hours=1),
    )
    run_jobs(schedules=True)


def act_on_keys() -> None:
    """Do what operators do with limit keys."""
    key = f"letters:to:{secret('address 1')}"
    control.pause(limit_key=key, reason="moved")
    control.override_limit(f"slow:{secret('slow')}", rate="5/s")
    OpenBreaker.objects.create(limit_key=f"calls:{secret('region')}", after_execution_id=0)
    request_act(connection, "cancel", Selection("ready", limit_key=key), previewed_at=timezone.now())


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Return a function that returns all log lines, with their fields. The statements of Django are left out."""
    caplog.set_level(logging.DEBUG)
    log.enable()

    def read() -> str:
        records = [record for record in caplog.records if not record.name.startswith("django.db.backends")]
        return "\n".join(f"{record.getMessage()} {vars(record)} {record.exc_text}" for record in records)

    yield read
    log.disable()


def rows() -> dict[str, str]:
    """Return the text of each column of each table of the queue."""
    found = {}
    with connection.cursor() as cursor:
        for model in apps.get_app_config("pgqueue").get_models():
            if model._meta.proxy:
                continue
            table = model._meta.db_table
            for field in model._meta.concrete_fields:
                cursor.execute(f'SELECT coalesce(string_agg("{field.column}"::text, chr(10)), \'\') FROM "{table}"')
                found[f"{table}.{field.column}"] = cursor.fetchone()[0]
    return found


def places() -> set[str]:
    """Return the columns that contain a secret."""
    return {column for column, text in rows().items() if found_in(text)}


@pytest.mark.promise("defect-arguments-in-log")
def test_log_lines_contain_no_argument(lines: Callable[[], str]) -> None:
    run_everything()
    act_on_keys()
    assert "DEBUG" in lines() and found_in(lines()) == set()


def test_log_lines_of_breakers_have_digests_of_keys(lines: Callable[[], str]) -> None:
    helpers.make_job(connection)
    claimed = helpers.claim_one(connection)
    for region in ("north", "south"):
        key = f"calls:{secret(region)}"
        breaker_counter._log_opened(Opened(key, is_again=False, ended=3, failed=3), Breaker())
        breaker_counter._log_closed(key)
        with_probes([claimed._replace(limit_key=key)], NO_CONTROLS._replace(open_breakers=frozenset({key})))
    assert found_in(lines()) == set()
    digests = re.findall(r"limit key calls:#([0-9a-f]{8})", lines())
    assert len(set(digests)) == 2 and all(digests.count(each) == digests.count(digests[0]) for each in digests)


def test_errors_of_executions_contain_no_argument() -> None:
    run_everything()
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(concat(error, traceback, exception_class), ' ') FROM pgqueue_execution")
        assert found_in(cursor.fetchone()[0]) == set()


def viewer(client_of: Any) -> Client:
    """Return a client that may see and do everything, except view arguments."""
    codenames = Permission.objects.filter(content_type__app_label="pgqueue").values_list("codename", flat=True)
    client: Client = client_of(*(set(codenames) - {"view_arguments"}))
    return client


def pages(client: Client) -> Iterator[tuple[str, str]]:
    """Yield each page of the console, and the pages of all jobs and batches."""
    own = [f"{LIST}{pk}/{page}/" for pk in Job.objects.values_list("pk", flat=True) for page in ("change", "history")]
    own += [f"/admin/pgqueue/jobbatch/{pk}/change/" for pk in JobBatch.objects.values_list("pk", flat=True)]
    own += [f"/admin/pgqueue/pause/{pk}/history/" for pk in Pause.objects.values_list("pk", flat=True)]
    own += [f"{LIST}{page.name}.json" for page in PAGES if page.document]
    own += [f"{LIST}limit/?limit={name}" for name in registry.limits()]
    known = {answer.url: answer.html for answer in crawl(client, names_of) if answer.status == 200}
    for url in (*own, "/admin/", *known):
        html = known.get(url)
        if not html:
            answer = client.get(url)
            assert answer.status_code in (200, 302), url
            html = answer.content.decode()
        yield url, unquote_plus(unescape(html)).replace("<wbr>", "")


@pytest.mark.timeout(300)
def test_pages_without_view_arguments_show_no_argument(client_of: Any) -> None:
    run_everything()
    act_on_keys()
    leaks = {url: found for url, text in pages(viewer(client_of)) if (found := found_in(text))}
    assert leaks == {}


OF_KEY = "letters:to:Zq-address 1-qZ"


@pytest.mark.parametrize(
    ("url", "status"),
    [
        (f"{LIST}?limit={OF_KEY}", 200),
        (f"{LIST}bulk_preview/?action=cancel&state=ready&limit={OF_KEY}", 403),
        (f"{LIST}limits/change/?key={OF_KEY}", 403),
        (f"{LIST}limit/?limit=letters&key=to:Zq-address 1-qZ", 200),
        (f"{LIST}limit/?limit=letters&after=letters:to:Zq", 200),
        (f"/admin/pgqueue/pause/?kind=limit&name={OF_KEY}", 400),
    ],
)
def test_page_without_view_arguments_is_no_oracle_of_keys(client_of: Any, url: str, status: int) -> None:
    """The answer about a key that exists must be that about a key that does not exist."""
    run_everything()
    act_on_keys()
    client = viewer(client_of)
    answers = [client.get(each) for each in (url, url.replace("address 1", "nowhere").replace("to:Zq", "to:Zz"))]
    assert [answer.status_code for answer in answers] == [status, status]
    decoded = [unquote_plus(answer.content.decode()) for answer in answers]
    texts = [text.replace("nowhere", "address 1").replace("to:Zz", "to:Zq") for text in decoded]
    first, second = (re.sub(TOKEN, "", text).splitlines() for text in texts)
    assert [pair for pair in zip_longest(first, second) if pair[0] != pair[1]] == []


@pytest.mark.parametrize("term", ["Zq-customer 1-qZ", "Zq-cust", "customer:Zq-cust", "customer:Zq-customer 1-q"])
def test_search_without_permission_finds_no_guess_and_no_part(client_of: Any, term: str) -> None:
    """The answer about a value that exists must be that about a value that does not exist."""
    run_everything()
    client = viewer(client_of)
    texts = []
    for each in (term, term.replace("Zq", "Zz")):
        text = unquote_plus(unescape(client.get(LIST, {"q": each}).content.decode()))
        texts.append(re.sub(TOKEN, "", text.replace(each, "")).splitlines())
    assert [pair for pair in zip_longest(*texts) if pair[0] != pair[1]] == []


def test_search_without_permission_for_whole_key_shows_its_jobs(client_of: Any) -> None:
    run_everything()
    term = f"customer:{secret('customer 1')}"
    answer = viewer(client_of).get(LIST, {"q": term})
    assert [job.task_name for job in answer.context["cl"].result_list] == [tasks.send_letter.name] * 2
    assert found_in(unquote_plus(unescape(answer.content.decode())).replace(term, "")) == set()


def test_acts_on_a_key_need_view_arguments(client_of: Any) -> None:
    run_everything()
    client = viewer(client_of)
    key = f"slow:{secret('slow')}"
    for word in ("pause", "resume", "restore", "end_hold"):
        assert client.post(f"{LIST}limits/{word}/", {"key": key, "length": ""}).status_code == 403, word
    whole_limit = {"key": "slow", "length": "", "shown_pause": "", "confirmed": "1"}
    assert client.post(f"{LIST}limits/pause/", whole_limit).status_code == 302
    page = client.post("/admin/pgqueue/pause/add/", {"kind": "limit", "name": key}).content.decode()
    assert "Can view arguments" in page
    assert list(Pause.objects.values_list("name", flat=True)) == ["slow"]


def test_metrics_contain_no_argument() -> None:
    run_everything()
    assert found_in(render(collect())) == set()


AFTER_ERASURE = {
    "pgqueue_audit.filter",
    "pgqueue_event.key",
    "pgqueue_event.payload",
    "pgqueue_job.limit_key",
    "pgqueue_limit_override.limit_key",
    "pgqueue_limit_state.limit_key",
    "pgqueue_open_breaker.limit_key",
    "pgqueue_pause.name",
    "pgqueue_schedule.arguments",
}
"""Columns that keep a value, and are in the table of `docs/recipes/erasure.md`."""


@pytest.mark.promise("erase-keys")
def test_erased_jobs_leave_no_argument_in_their_rows() -> None:
    run_everything()
    act_on_keys()
    Job.objects.filter(finished_at=None).cancel()
    history.erase(before=timezone.now() + timedelta(days=1))
    assert places() == AFTER_ERASURE
    assert found_in(rows()["pgqueue_job.limit_key"]) == {"address 1"}, "that of the dead job that blocks its key"
    Job.objects.filter(state="dead").delete()
    assert places() == AFTER_ERASURE - {"pgqueue_job.limit_key"}


def test_archive_of_erased_jobs_contains_no_argument(tmp_path: Path) -> None:
    run_everything()
    Job.objects.filter(finished_at=None).cancel()
    history.erase(before=timezone.now() + timedelta(days=1))
    history.archive(older_than=0, states=["succeeded", "cancelled"])
    assert ArchivedJob.objects.exists() and found_in(rows()["pgqueue_archived_job.document"]) == set()


BESIDE_A_CODEC = {
    "pgqueue_event.key",
    "pgqueue_execution.limit_key",
    "pgqueue_job.headers",
    "pgqueue_job.limit_key",
    "pgqueue_job.unique_key",
    "pgqueue_limit_state.limit_key",
    "pgqueue_schedule.arguments",
    "pgqueue_search_key.value",
    "pgqueue_step.event_key",
}
"""Columns that a codec does not encode, because SQL compares them. `docs/guides/codecs.md` names them."""


def test_codec_leaves_only_the_documented_columns_plain() -> None:
    with override_settings(PGQUEUE={"TASK_MODULES": [tasks.__name__], "CODECS": [CODEC]}):
        run_everything()
    assert places() == BESIDE_A_CODEC


def test_commands_print_no_sensitive_argument() -> None:
    run_everything()
    printed = StringIO()
    for pk in Job.objects.values_list("pk", flat=True):
        call_command("pgqueue", "jobs", "show", str(pk), stdout=printed)
        call_command("pgqueue", "jobs", "show", str(pk), "--json", stdout=printed)
    assert not [use for use in found_in(printed.getvalue()) if use.startswith("password")]
