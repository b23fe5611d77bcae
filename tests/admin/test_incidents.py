"""The page of incidents: groups of dead jobs, their links, the arguments that differ, and permissions."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.admin.console import incidents as incidents_page
from django_pgqueue.admin.console.incidents import compare, sparkline
from django_pgqueue.models import Execution, Job, Rollup, Worker
from django_pgqueue.stats import incident_groups
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.test_hostile import HOSTILE, Tags
from tests.admin.test_lists import DEAD
from tests.app import tasks

pytestmark = pytest.mark.slow

PAGE = "/admin/pgqueue/job/incidents/"


@pytest.fixture
def die(make_job: JobMaker) -> Callable[..., Job]:
    """Return a function that makes a dead job of a known task with an error."""

    def make(
        error: str = "shop.Declined", *, hours: float = 0.1, call: Any = None, text: str = "", **columns: Any
    ) -> Job:
        arguments = call or {"args": [1], "kwargs": {}}
        job = make_job("dead", task_name=columns.pop("task_name", tasks.add.name), arguments=arguments, **columns)
        Job.objects.filter(pk=job.pk).update(finished_at=timezone.now() - timedelta(hours=hours))
        add_execution(job, exception_class=error, error=text or f"text of {error}")
        job.refresh_from_db()
        return job

    return make


def test_page_groups_dead_jobs_of_the_span(operator: Client, die: Callable[..., Job]) -> None:
    declined = [die(), die(hours=2), die(hours=30)]
    die("shop.Timeout")
    die("", task_name="app.lost")
    counts = {}
    for since in ("hour", "day", "week", "all"):
        groups = operator.get(PAGE, {"since": since}).context["groups"]
        counts[since] = [(row["group"].exception_class, row["jobs"]) for row in groups]
    assert sorted(counts["hour"]) == [("", "1"), ("shop.Declined", "1"), ("shop.Timeout", "1")]
    assert counts["day"][0] == ("shop.Declined", "2") and counts["week"][0] == counts["all"][0] == (
        "shop.Declined",
        "3",
    )
    assert operator.get(PAGE).context["groups"][0]["jobs"] == "2"
    Job.objects.get(pk=declined[0].pk).retry()
    assert operator.get(PAGE, {"since": "all"}).context["groups"][0]["jobs"] == "2"


def test_link_of_a_group_lists_exactly_its_jobs(operator: Client, die: Callable[..., Job]) -> None:
    wanted = [die(hours=hours) for hours in (1, 2, 3)]
    die("shop.DeclinedToo")
    die("", task_name="app.lost")
    die(task_name="app.other")
    for row in operator.get(PAGE, {"since": "all"}).context["groups"]:
        listed = [job.pk for job in operator.get(row["list_url"]).context["cl"].result_list]
        assert len(listed) == int(row["jobs"]) and set(row["group"].sample_ids) == set(listed)
        if row["jobs"] == "3":
            assert listed == [job.pk for job in wanted]


def test_group_names_the_releases_in_which_its_jobs_died(operator: Client, die: Callable[..., Job]) -> None:
    for pk, release in ((1, "r1"), (2, "r2"), (3, "")):
        Worker.objects.create(pk=pk, hostname="vm", pid=pk, version="0.9", release=release, concurrency=1)
    for worker, hours in ((2, 3), (2, 2), (3, 5), (1, 1), (99, 4)):
        job = die(hours=hours)
        Execution.objects.filter(job=job).update(worker_id=worker)
    Execution.objects.filter(job=die("shop.Timeout", hours=6)).update(worker_id=1)
    detail = operator.get(PAGE, {"task": tasks.add.name, "error": "shop.Declined"}).context["detail"]
    assert [(row["name"], row["jobs"]) for row in detail["releases"]] == [
        ("version 0.9", "1"),
        ("not known: the record of the worker is removed", "1"),
        ("r2", "2"),
        ("r1", "1"),
    ]
    Worker.objects.all().delete()
    assert operator.get(PAGE).context["detail"]["releases"] == []


def test_messages_of_a_group_link_to_exactly_their_jobs(operator: Client, die: Callable[..., Job]) -> None:
    """29 of 30 jobs have one message apart from its numbers, and an operator takes these only."""
    for number in range(29):
        die(text=f"order {number} not found\nline {number}", hours=1 + number / 60)
    die(text="order not found")
    die("shop.Timeout", text="order 1 not found")
    detail = operator.get(PAGE, {"since": "all"}).context["detail"]
    found = [(row["text"], row["jobs"]) for row in detail["messages"]]
    assert found == [("order # not found", "29"), ("order not found", "1")] and detail["hidden_messages"] == 0
    for row in detail["messages"]:
        jobs = Job.objects.filter(pk__in=operator.get(row["list_url"]).context["cl"].found.ids)
        texts = set(jobs.values_list("executions__error", "executions__exception_class"))
        assert jobs.count() == int(row["jobs"]) and {error for _, error in texts} == {"shop.Declined"}
        assert all((" not found\n" in text) == (row["jobs"] == "29") for text, _ in texts)
        page = operator.get(row["retry_url"])
        assert page.context["preview"].chosen == int(row["jobs"])
        assert {str(name): value for name, value in page.context["described"]}["Error message"] == f"={row['text']}"


def test_messages_beyond_those_shown_are_counted(
    operator: Client, die: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents_page, "MESSAGES_SHOWN", 1)
    for text in ("a", "a", "b", "c"):
        die(text=text)
    page = operator.get(PAGE)
    assert [row["text"] for row in page.context["detail"]["messages"]] == ["a"]
    assert "2 rarer messages are not shown." in page.content.decode()


def test_messages_need_the_permission_to_view_arguments(
    client_of: Callable[..., Client], die: Callable[..., Job]
) -> None:
    """Neither a list nor a preview says whether a job has a message that the user may not see."""
    die(text="card 4711 of ada")
    support = client_of("view_job", "retry_job")
    page = support.get(PAGE)
    assert page.context["detail"]["messages"] == [] and "of ada" not in page.content.decode()
    for text in ("4711", "=card # of ada", "nothing"):
        listed = support.get(f"{DEAD}?message={text}")
        assert listed.context["cl"].result_count == 0 and "Can view arguments" in listed.content.decode()
        preview = f"/admin/pgqueue/job/bulk_preview/?action=retry&state=dead&message={text}"
        assert support.get(preview).status_code == 403
    [message] = stats.incident_messages(stats.incidents().groups[0], stats.incidents())
    assert (message.shape, message.jobs) == ("card # of ada", 1)


def test_free_span_bounds_the_deaths(operator: Client, die: Callable[..., Job]) -> None:
    die(hours=1)
    die("shop.Timeout", hours=50)
    now = timezone.now()
    span = {"since": (now - timedelta(hours=60)).isoformat(), "until": (now - timedelta(hours=40)).isoformat()}
    groups = operator.get(PAGE, span).context["groups"]
    assert [row["group"].exception_class for row in groups] == ["shop.Timeout"]
    assert [row["jobs"] for row in operator.get(PAGE, {"since": "nonsense"}).context["groups"]] == ["1", "1"]


def test_detail_shows_differing_arguments_and_one_traceback(operator: Client, die: Callable[..., Job]) -> None:
    for number in range(7):
        die(call={"args": [number], "kwargs": {"b": "EUR"}})
    page = operator.get(PAGE)
    compared = page.context["detail"]["compared"]
    assert [(argument.name, argument.differs) for argument in compared.arguments] == [("a", True), ("b", False)]
    assert compared.arguments[0].more == 2 and compared.arguments[1].values == (('"EUR"', 7),)
    text = page.content.decode()
    assert "text of shop.Declined" in text and text.count("ValueError: no such thing") == 1


def test_detail_of_the_chosen_group_is_shown(operator: Client, die: Callable[..., Job]) -> None:
    die()
    die()
    die("", task_name="app.lost")
    [small] = [row for row in operator.get(PAGE).context["groups"] if row["jobs"] == "1"]
    detail = operator.get(small["url"]).context["detail"]
    assert detail["group"]["group"].task_name == "app.lost"
    assert operator.get(PAGE, {"task": "app.none", "error": "x"}).context["detail"] is None


def test_sensitive_arguments_are_never_compared(die: Callable[..., Job]) -> None:
    calls = [json.dumps({"args": [], "kwargs": {"password": f"hunter{number}"}}) for number in range(2)]
    assert compare("app.unknown", calls).arguments == [] and compare("app.unknown", calls).note


def test_user_without_permission_sees_counts_only(client_of: Callable[..., Client], die: Callable[..., Job]) -> None:
    die(call={"args": ["hunter2"], "kwargs": {}})
    text = client_of("view_job").get(PAGE).content.decode()
    assert "shop.Declined" in text and "hunter2" not in text and "text of" not in text and "no such thing" not in text


def test_page_needs_permission_and_only_reads(
    client_of: Callable[..., Client], operator: Client, make_user: Callable[..., Any]
) -> None:
    assert operator.post(PAGE, {"shown": "x"}).status_code == 405
    operator.force_login(make_user("view_worker", name="other"))
    assert operator.get(PAGE).status_code == 403


def test_page_without_dead_jobs_says_what_is_missing(operator: Client, db: None) -> None:
    assert "No job that died in this time span is still dead" in operator.get(PAGE).content.decode()


@pytest.mark.parametrize("text", HOSTILE[:4])
def test_hostile_text_is_escaped(operator: Client, die: Callable[..., Job], text: str) -> None:
    die(text, task_name=text[:90], call={"args": [text], "kwargs": {text: text}})
    die(text, call={"args": [text], "kwargs": {text: text}})
    for row in operator.get(PAGE).context["groups"]:
        tags = Tags(operator.get(row["url"]).content.decode())
        assert tags.bad == []
        assert text.split("<")[0][:10] in unescape(tags.text)


def test_count_beyond_the_limit_says_so(
    operator: Client, die: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_groups, "DEAD_LIMIT", 2)
    for hours in (1, 2, 3):
        die(hours=hours)
    page = operator.get(PAGE)
    assert page.context["groups"][0]["jobs"] == "2+" and "those that died before" in page.content.decode()


def test_page_needs_a_constant_number_of_queries(operator: Client, die: Callable[..., Job]) -> None:
    counts = []
    for number in range(2):
        for each in range(6):
            die(f"shop.E{number}{each}")
        with CaptureQueriesContext(connection) as captured:
            operator.get(PAGE)
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 12


def test_failures_per_minute_are_drawn(operator: Client, die: Callable[..., Job]) -> None:
    die()
    now = timezone.now().replace(second=0, microsecond=0)
    for minutes, dead in ((10, 2), (5, 8)):
        Rollup.objects.create(
            span="minute",
            starts_at=now - timedelta(minutes=minutes),
            queue_name="default",
            task_name=tasks.add.name,
            exception_class="shop.Declined",
            dead=dead,
            wait_buckets=[],
            wait_counts=[],
            run_buckets=[],
            run_counts=[],
        )
    [group] = stats.incidents(now - timedelta(hours=1)).groups
    assert [rate for _, rate in group.failures] == [2, 8]
    chart = sparkline(group.failures)
    assert chart is not None
    heights = [bar["height"] for bar in chart["bars"]]
    assert heights == ["6.0"] * heights.count("6.0") + ["24.0"] * heights.count("24.0") and len(heights) < 20
    page = operator.get(PAGE, {"since": "hour"}).content.decode()
    assert "At most 8.0 per minute" in page and "<small>up to 8.0 per minute</small>" in page
    assert stats.failure_classes(connection, 3600) == {"shop.Declined"}


def test_incidents_naive_datetime_is_refused(db: None) -> None:
    with pytest.raises(ValueError, match="since must be an aware datetime"):
        stats.incidents(timezone.now().replace(tzinfo=None))


def test_dead_list_link_is_in_the_navigation(operator: Client, db: None) -> None:
    assert f'href="{PAGE}"' in operator.get(DEAD).content.decode()


def test_merged_hours_have_bars_as_long_as_an_hour() -> None:
    """Otherwise an even rate looks like a spike in each hour."""
    first = datetime(2026, 11, 29, 10, tzinfo=UTC)
    hours = [(first + timedelta(hours=number), 6.0) for number in range(10)]
    minutes = [(first + timedelta(hours=10, minutes=number), 6.0) for number in range(150)]
    chart = sparkline([*hours, *minutes])
    assert chart is not None
    assert len(chart["bars"]) == 40 and {bar["height"] for bar in chart["bars"]} == {"24.0"}
    spike = sparkline([*hours, *minutes[:-1], (minutes[-1][0], 600.0)])
    assert spike is not None and (spike["peak"], spike["top"], spike["is_cut"]) == ("600.0", "6.0", True)
    assert [bar["height"] for bar in spike["bars"]][-3:] == ["24.0", "3.0", "18.0"], "a gap cuts off the spike"
    assert not chart["is_cut"]
    sparse = sparkline([(first, 6.0), (first + timedelta(hours=5, minutes=7), 3.0)])
    assert sparse is not None and [bar["height"] for bar in sparse["bars"]] == ["24.0"] * 8 + ["12.0"]
