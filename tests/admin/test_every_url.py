"""Requests to every URL and every action of this package's admin, with and without permissions.

The tests read the URLs and actions from the admin site, so they also cover those that are added later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_pgqueue.admin.job.actions import ON_ONE_JOB
from django_pgqueue.models import (
    Execution,
    Job,
    JobBatch,
    LimitOverride,
    LimitState,
    Pause,
    Schedule,
    ScheduleRun,
    Worker,
)
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.parameters import NUL, fails, names_read

pytestmark = pytest.mark.slow

ADMINS = {
    model: model_admin for model, model_admin in admin.site._registry.items() if model._meta.app_label == "pgqueue"
}
ACTIONS: set[tuple[type, str]] = {
    (model, str(name))
    for model, model_admin in ADMINS.items()
    for name in (*(model_admin.actions or ()), "delete_selected")
}
LATER = timezone.now().replace(year=timezone.now().year + 1)


def list_of(model: type) -> str:
    return f"/admin/pgqueue/{model.__name__.lower()}/"


def urls(job: Job, *, of_rows: bool = False) -> Iterator[str]:
    """Yield every URL of our model admins, with the id of this job. `of_rows`: only URLs that take an id."""
    for model, model_admin in ADMINS.items():
        for pattern in model_admin.get_urls():
            route = str(pattern.pattern)
            if "<" in route or not of_rows:
                yield list_of(model) + re.sub(r"<[^>]+>", str(job.pk), route)


@pytest.fixture
def jobs(make_job: JobMaker) -> list[Job]:
    """Create one job for each operation, an execution, a worker, a pause and schedules.

    The other rows have ids of these jobs, so that the URLs with the id of a job find them as well.
    """
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    found = [make_job("dead"), make_job("ready", run_after=LATER), make_job("running")]
    Pause.objects.create(pk=found[0].pk, kind="queue", name="default")
    add_execution(found[0])
    for job in found:
        about: dict[str, Any] = {"task_name": "app.add", "arguments": {"args": [], "kwargs": {}}, "next_run_at": LATER}
        JobBatch.objects.create(pk=job.pk)
        Schedule.objects.create(pk=job.pk, name=f"of {job.pk}", expression="@daily", **about)
    return found


def all_rows() -> list[object]:
    return [
        list(model.objects.order_by("pk").values())
        for model in (
            Job,
            JobBatch,
            Execution,
            Worker,
            Pause,
            Schedule,
            ScheduleRun,
            LimitOverride,
            LimitState,
            LogEntry,
        )
    ]


def post_everything(client: Client, jobs: list[Job]) -> Iterator[tuple[str, int]]:
    """Post every button for each job and every action for all jobs; yield what was posted and the response status."""
    for job in jobs:
        of_rows = job is not jobs[0]  # once for the others
        # "Run now" must come first: no job is left to run after "cancel".
        for url in reversed(list(urls(job, of_rows=of_rows))):
            yield url, client.post(url, {"post": "yes", "state": "ready"}).status_code
    for model, name in ACTIONS:
        for across in "01":
            chosen = {"action": name, "_selected_action": [job.pk for job in jobs], "select_across": across}
            yield (
                f"{list_of(model)} {name}",
                client.post(list_of(model), chosen | {"post": "yes", "confirmed": "1"}).status_code,
            )


def test_registered_urls_include_every_list_and_operation(jobs: list[Job]) -> None:
    found = list(urls(jobs[0]))
    assert len(found) >= 4 * 6 + 3 and len(ACTIONS) == 22
    assert {f"/admin/pgqueue/job/{jobs[0].pk}/{operation.name}/" for operation in ON_ONE_JOB} <= set(found)
    assert {f"/admin/pgqueue/{name}/" for name in ("job", "deadjob", "jobbatch", "pause", "schedule", "worker")} <= set(
        found
    )


def test_forms_questions_and_histories_have_navigation(operator: Client, jobs: list[Job], make_job: JobMaker) -> None:
    question = operator.post(f"{list_of(Job)}{make_job('succeeded').pk}/retry/")
    assert type(question.context["original"]) is str  # a theme takes anything else for a row
    histories = [operator.get(f"{list_of(model)}{jobs[0].pk}/history/") for model in (Job, Pause, Schedule)]
    for page in (question, *histories, operator.get(f"{list_of(Pause)}add/")):
        assert b'class="pgqueue-navigation"' in page.content, page.request["PATH_INFO"]


@pytest.mark.quick
def test_every_url_anonymous_redirects_to_login(client: Client, jobs: list[Job]) -> None:
    before = all_rows()
    for job in jobs:
        for url in urls(job):
            for answer in (client.get(url), client.head(url), client.post(url), client.put(url), client.delete(url)):
                assert answer.status_code == 302 and "/login/" in answer.headers["Location"], url
    assert all(status == 302 for _, status in post_everything(client, jobs))
    assert all_rows() == before


def test_every_url_superuser_without_staff_status_redirects(client: Client, jobs: list[Job]) -> None:
    client.force_login(User.objects.create_user("visitor", is_superuser=True))
    assert {client.get(url).status_code for url in urls(jobs[0])} == {302}


def test_every_action_view_only_user_changes_nothing(client_of: Callable[..., Client], jobs: list[Job]) -> None:
    seen = ("view_job", "view_worker", "view_execution", "view_pause", "view_schedule", "view_jobbatch")
    client, before = client_of(*seen), all_rows()
    tried = dict(post_everything(client, jobs))
    assert len(tried) > 50
    assert all_rows() == before


def test_every_action_operator_runs_each_operation(operator: Client, jobs: list[Job]) -> None:
    """An operator's requests take effect; otherwise the tests above, which expect no change, prove nothing."""
    dict(post_everything(operator, jobs))
    done = {entry.get_change_message() for entry in LogEntry.objects.all()}
    assert done >= {"Retry.", "Cancel.", "Run now.", "Resumed.", "Pause.", "Resume."}
    assert not Pause.objects.exists()


def test_every_url_get_request_changes_nothing(operator: Client, jobs: list[Job]) -> None:
    before = all_rows()
    for job in jobs:
        for url in urls(job, of_rows=job is not jobs[0]):
            assert operator.get(url).status_code in {200, 302, 403, 404, 405}, url
        for model, name in ACTIONS:
            query: dict[str, Any] = {"action": name, "_selected_action": job.pk, "select_across": "1", "post": "yes"}
            operator.get(list_of(model), query)
    assert all_rows() == before


PARAMETERS = {"q", "p", "o", "e", "all", "_changelist_filters", "_popup", "_to_field", "id", "id__in", "pk__in"}
"""Parameters of Django's own views, some of which it reads only in a part of its pages."""
OF_DJANGO = re.compile(r"/admin/pgqueue/[a-z]+/(add/|[0-9]+/((change|delete|history)/)?)?")
CONDITIONS = {list_of(model): {field.name for field in model._meta.fields} | {"origin"} for model in ADMINS}
"""Parameters of the lists that can be conditions on rows. A list takes all of them from the URL at once."""


@pytest.mark.parametrize("method", ["get", "post"])
def test_every_url_answers_nul_in_each_parameter(
    admin_client: Client, jobs: list[Job], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    for url in urls(jobs[0]):
        with names_read(monkeypatch) as names:
            getattr(admin_client, method)(url, {"post": "yes"})
        wanted = names | (PARAMETERS if OF_DJANGO.fullmatch(url) else set())
        if method == "get":
            wanted |= CONDITIONS.get(url, set())
        tried += [fails(admin_client, method, url, {name: NUL}) for name in sorted(wanted)]
    assert [each for each in tried if each] == []
    assert len(tried) > 500


@pytest.mark.parametrize("chosen", [NUL, "x", "-1", "9" * 30])
def test_every_action_refuses_ids_that_are_no_numbers(operator: Client, jobs: list[Job], chosen: str) -> None:
    before = all_rows()
    for model, name in ACTIONS:
        posted = {"action": name, "_selected_action": [jobs[0].pk, chosen], "post": "yes", "confirmed": "1"}
        assert operator.post(list_of(model), posted).status_code in {400, 403, 405}, (model, name)
    assert all_rows() == before


def test_every_action_without_csrf_token_is_refused(operator: Client, jobs: list[Job]) -> None:
    strict, before = Client(enforce_csrf_checks=True), all_rows()
    strict.cookies = operator.cookies
    assert {status for _, status in post_everything(strict, jobs)} == {403}
    assert all_rows() == before
