"""Move and delete one job from its page: the questions, the permissions, and the state that the page showed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from django_pgqueue.admin import shown
from django_pgqueue.models import Execution, Job
from tests.admin.conftest import JobMaker, add_execution
from tests.app import tasks

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"
LATER = timezone.now().replace(year=timezone.now().year + 1)


@pytest.fixture
def client(client_of: Callable[..., Client]) -> Client:
    return client_of("view_job", "move_job", "delete_job")


def post(client: Client, job: Job, name: str, **fields: Any) -> str:
    """Post a form of a job's operation with what its page shows now, and return the page that follows."""
    seen = {"shown": shown.token(job.pk, shown.as_seen(job)), **fields}
    page: str = client.post(f"{JOBS}{job.pk}/{name}/", seen, follow=True).content.decode()
    return page


def values(job: Job) -> tuple[str, int]:
    job.refresh_from_db()
    return job.queue_name, job.priority


def test_delete_is_the_last_and_quiet_button(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    client = client_of("view_job", "retry_job", "delete_job", "view_arguments", "edit_and_retry_job")
    job = make_job("dead", task_name=tasks.add.name)
    page = client.get(f"{JOBS}{job.pk}/change/").content.decode()
    tools = page.split("pgqueue-tools")[1].split("</ul>")[0]
    places = [tools.index(f">{label}</") for label in ("Retry", "Edit and retry", "History", "Delete")]
    assert places == sorted(places)
    assert tools.count("pgqueue-quiet-act") == 1 and 'class="pgqueue-quiet-act">Delete<' in tools


@pytest.mark.quick
def test_move_asks_for_the_queue_then_moves(client: Client, make_job: JobMaker) -> None:
    job, run_after = make_job(run_after=LATER), LATER
    make_job(queue_name="mail")
    page = post(client, job, "move")
    assert "The job is in the queue default, with the priority 0." in page
    assert '<option value="mail"></option>' in page and 'list="id_queue_name_values"' in page
    assert values(job) == ("default", 0)
    page = post(client, job, "move", queue_name="mail", priority="7")
    assert "1 job is moved." in page
    assert values(job) == ("mail", 7)
    assert job.run_after == run_after
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (str(job.pk), "Move to the queue mail, to the priority 7.")


@pytest.mark.parametrize(
    ("fields", "words", "after"),
    [
        ({"queue_name": "mail"}, "1 job is moved", ("mail", 3)),
        ({"queue_name": "", "priority": "-100.0"}, "1 job is moved", ("default", -100)),
        ({"queue_name": "", "priority": ""}, "Enter a queue, a priority, or both", None),
        ({"queue_name": "a b"}, "must be 1 to 100", None),
        ({"queue_name": "x" * 101}, "at most 100 characters", None),
        ({"queue_name": "\0"}, "Null characters are not allowed", None),
        ({"queue_name": "mail", "priority": "101"}, "less than or equal to 100", None),
        ({"queue_name": "mail", "priority": "x"}, "Enter a whole number", None),
    ],
)
def test_move_checks_the_fields(
    client: Client, make_job: JobMaker, fields: dict[str, str], words: str, after: tuple[str, int] | None
) -> None:
    job = make_job(priority=3)
    page = post(client, job, "move", **fields)
    assert words in page
    assert values(job) == (after or ("default", 3))
    if after is None:
        assert page.count('name="shown"') == 1


def test_move_to_a_probably_mistyped_queue_asks_again(client: Client, make_job: JobMaker) -> None:
    job = make_job()
    make_job(queue_name="reports")
    page = post(client, job, "move", queue_name="reprots")
    assert "did you mean &#x27;reports&#x27;" in page and 'name="anyway"' in page
    assert values(job) == ("default", 0)
    assert "1 job is moved" in post(client, job, "move", queue_name="reprots", anyway="on")
    assert values(job) == ("reprots", 0)


def test_move_of_a_job_that_has_changed_is_refused(client: Client, make_job: JobMaker) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(state="running")
    assert "Nothing was changed" in post(client, job, "move", queue_name="mail")
    assert values(job) == ("default", 0)


@pytest.mark.parametrize("state", ["dead", "succeeded", "cancelled"])
def test_delete_asks_then_deletes_the_job_and_its_attempts(client: Client, make_job: JobMaker, state: str) -> None:
    job = make_job(state)
    add_execution(job)
    page = post(client, job, "delete")
    assert "This cannot be undone" in page and 'name="confirmed"' in page and Job.objects.exists()
    page = post(client, job, "delete", confirmed="1")
    assert "1 job is deleted." in page and "does not exist" not in page
    assert not Job.objects.exists() and not Execution.objects.exists()
    assert LogEntry.objects.get().change_message == "Delete."


def test_delete_of_a_job_that_was_retried_is_refused(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now())
    assert "Nothing was changed" in post(client, job, "delete", confirmed="1")
    assert Job.objects.get().state == "dead"


@pytest.mark.parametrize(("name", "state"), [("move", "ready"), ("delete", "dead")])
def test_button_needs_its_own_permission(
    client_of: Callable[..., Client], make_job: JobMaker, name: str, state: str
) -> None:
    job = make_job(state, task_name=tasks.add.name)
    others = {"move_job", "delete_job", "retry_job", "cancel_job", "run_job"} - {f"{name}_job"}
    client = client_of("view_job", *others)
    url, fields = f"{JOBS}{job.pk}/{name}/", {"queue_name": "mail", "confirmed": "1"}
    assert url not in client.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert client.post(url, {"shown": shown.token(job.pk, shown.as_seen(job)), **fields}).status_code == 403
    assert Job.objects.get().queue_name == "default"


def test_buttons_are_offered_where_the_state_allows_them(client: Client, make_job: JobMaker) -> None:
    for state, names in (("ready", ["move"]), ("running", []), ("dead", ["delete"]), ("succeeded", ["delete"])):
        page = client.get(f"{JOBS}{make_job(state).pk}/change/").content.decode()
        assert [name for name in ("move", "delete") if f'/{name}/"><' in page] == names
