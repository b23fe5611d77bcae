"""The list and the pages of schedules show which schedules fail, and how their latest runs ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.ground.attempt_ends import LEASE_RAN_OUT
from django_pgqueue.lifecycle import schedules as lifecycle_schedules
from django_pgqueue.models import Job, Schedule, ScheduleRun
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.test_schedules import SCHEDULES, make, page

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"
RunMaker = Callable[[Schedule, str], list[int | None]]


@pytest.fixture
def add_runs(make_job: JobMaker) -> RunMaker:
    """Return a function that adds runs with jobs in these states, the latest first, and returns the ids of the jobs.

    A run can also be "skipped", or its job "removed".
    """

    def add(schedule: Schedule, states: str) -> list[int | None]:
        now, job_ids = timezone.now(), list[int | None]()
        for minutes, state in enumerate(states.split()):
            job_id = None if state == "skipped" else 10**9 if state == "removed" else make_job(state).pk
            ScheduleRun.objects.create(schedule=schedule, tick_at=now - timedelta(minutes=minutes), job_id=job_id)
            job_ids.append(job_id)
        return job_ids

    return add


def text_of(client: Client, url: str = SCHEDULES) -> str:
    return " ".join(unescape(page(client, url)).replace("<wbr>", "").split())


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the table of the latest runs, without tags."""
    table = text.partition("<h2>Latest runs</h2>")[2].partition("</tbody>")[0].partition("<tbody>")[2]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in row] for row in rows]


@pytest.mark.parametrize(
    ("states", "badge"),
    [
        ("", 'pgqueue-succeeded">on<'),
        ("ready succeeded dead", 'pgqueue-succeeded">on<'),
        ("removed dead", 'pgqueue-succeeded">on<'),
        ("dead dead cancelled dead succeeded", 'pgqueue-dead">failing, 3 in a row<'),
        ("dead removed", 'pgqueue-dead">failing, 1+ in a row<'),
        ("dead " * 12, 'pgqueue-dead">failing, 10+ in a row<'),
    ],
)
def test_list_and_page_say_whether_a_schedule_fails(
    operator: Client, add_runs: RunMaker, states: str, badge: str
) -> None:
    schedule = make()
    add_runs(schedule, states)
    for url in (SCHEDULES, f"{SCHEDULES}{schedule.pk}/change/"):
        assert badge in text_of(operator, url), url


@pytest.mark.parametrize(("expression", "badge"), [("* * * * *", ">paused<"), ("whenever", ">cannot run<")])
def test_list_paused_or_invalid_schedule_is_not_called_failing(
    operator: Client, add_runs: RunMaker, expression: str, badge: str
) -> None:
    schedule = make(expression=expression)
    lifecycle_schedules.pause_schedule(connection, schedule.pk)
    add_runs(schedule, "dead dead")
    text = text_of(operator)
    assert badge in text and "failing" not in text


def test_list_counts_the_runs_of_each_schedule_alone(operator: Client, add_runs: RunMaker) -> None:
    for name, states in (("one", "dead succeeded"), ("two", "dead dead"), ("three", "succeeded")):
        add_runs(make(name), states)
    text = text_of(operator)
    assert [text.count(f">failing, {count} in a row<") for count in (1, 2)] == [1, 1] and text.count(">on<") == 1


def test_page_shows_tick_job_state_time_and_class_of_runs(operator: Client, add_runs: RunMaker) -> None:
    schedule = make()
    running, skipped, dead, removed, succeeded = add_runs(schedule, "running skipped dead removed succeeded")
    add_execution(Job.objects.get(state="dead"), exception_class="shop.errors.Declined", error="no money\nline 2")
    text = text_of(operator, f"{SCHEDULES}{schedule.pk}/change/")
    rows = rows_of(text)
    assert [row[1:4:2] for row in rows[1:4]] == [["", ""], [f"#{dead}", "10 s"], [f"#{removed}", ""]]
    assert [row[2] for row in rows] == ["running", "skipped", "dead", "removed", "succeeded"]
    assert [row[4] for row in rows] == ["", "", "shop.errors.Declinedno money", "", ""]
    assert f'<a href="{JOBS}{dead}/change/">no money</a>' in text
    assert re.search(r"UTC \(2 min( \d+ s)? ago\)", rows[2][0])
    table = text.partition("<h2>Latest runs</h2>")[2]
    assert [f'href="{JOBS}{job_id}/change/"' in table for job_id in (running, dead, removed, succeeded)] == [
        True, True, False, True,
    ]  # fmt: skip
    assert "How they ended is not known any more." in text and "line 2" not in table
    assert skipped is None


def test_page_without_view_arguments_shows_no_message(client_of: Callable[..., Client], add_runs: RunMaker) -> None:
    schedule = make()
    add_runs(schedule, "dead")
    add_execution(Job.objects.get(state="dead"), exception_class="shop.errors.Declined", error="no money")
    text = text_of(client_of("view_schedule", "view_job"), f"{SCHEDULES}{schedule.pk}/change/")
    assert "shop.errors.Declined" in text and "no money" not in text


def test_page_gives_a_lost_attempt_no_run_time(operator: Client, add_runs: RunMaker) -> None:
    schedule = make()
    add_runs(schedule, "dead")
    add_execution(Job.objects.get(state="dead"), outcome="crashed", error=LEASE_RAN_OUT, exception_class="")
    assert rows_of(text_of(operator, f"{SCHEDULES}{schedule.pk}/change/"))[0][3] == "not known"


def test_page_shows_ten_runs_and_says_that_there_are_more(operator: Client, add_runs: RunMaker) -> None:
    few, many = make("few"), make("many")
    add_runs(few, "succeeded " * 10)
    add_runs(many, "succeeded " * 10 + "removed")
    for schedule, has_more in ((few, False), (many, True)):
        text = text_of(operator, f"{SCHEDULES}{schedule.pk}/change/")
        assert len(rows_of(text)) == 10
        assert ("Older runs are not shown." in text) is has_more and "not known any more" not in text
    assert "No run is on record." in text_of(operator, f"{SCHEDULES}{make('new').pk}/change/")


def test_page_without_view_job_shows_number_and_state_only(
    client_of: Callable[..., Client], add_runs: RunMaker
) -> None:
    schedule = make(origin="code")
    [job_id] = add_runs(schedule, "dead")
    add_execution(Job.objects.get(state="dead"), exception_class="shop.errors.Declined")
    text = text_of(client_of("view_schedule"), f"{SCHEDULES}{schedule.pk}/change/")
    assert rows_of(text)[0][1:] == [f"#{job_id}", "dead"]
    assert f"{JOBS}{job_id}/change/" not in text.partition("<h2>Latest runs</h2>")[2]
    for hidden in ("Declined", "Exception class", "Run time"):
        assert hidden not in text, hidden


def test_list_runs_the_same_queries_for_many_schedules(operator: Client, add_runs: RunMaker) -> None:
    add_runs(make("first"), "dead")
    with CaptureQueriesContext(connection) as one:
        page(operator)
    for number in range(20):
        add_runs(make(f"schedule {number}"), "dead " * 12)
    with CaptureQueriesContext(connection) as many:
        page(operator)
    assert len(many) == len(one)
    assert sum("pgqueue:runs_of_schedules" in query["sql"] for query in many) == 1


def test_next_run_that_waits_for_the_last_job_names_it(operator: Client, add_runs: RunMaker) -> None:
    schedule = make(if_running="queue", due_in=-7200.0)
    job_id, _ = add_runs(schedule, "ready succeeded")
    shown = f"waits for the end of #{job_id}"
    assert shown in text_of(operator, SCHEDULES)
    Schedule.objects.update(if_running="overlap")
    assert "waits for the end" not in text_of(operator, SCHEDULES)
    Schedule.objects.update(if_running="queue", next_run_at=timezone.now() + timedelta(hours=1))
    assert "waits for the end" not in text_of(operator, SCHEDULES)
