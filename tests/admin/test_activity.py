"""The charts of the overview and of a queue: for one task, with the failure rate, and with the day before."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from django_pgqueue.admin.console import activity
from django_pgqueue.stats import AttemptCounts
from tests.admin.test_overview import count
from tests.app import tasks

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

OVERVIEW = "/admin/pgqueue/job/overview/"
QUEUE = "/admin/pgqueue/job/queue/"
DAY = 86400


def page_of(client: Client, url: str = OVERVIEW, **parameters: Any) -> str:
    answer = client.get(url, parameters)
    assert answer.status_code == 200
    return answer.content.decode()


def summaries(page: str) -> dict[str, str]:
    """Return what screen readers read of each chart, by its title."""
    found = [unescape(text) for text in re.findall(r'role="img" aria-label="([^"]+)"', page)]
    return {text.partition(",")[0]: text for text in found}


def cells(page: str) -> list[list[str]]:
    """Return the rows of the table of figures, without the first column."""
    table = page.partition('id="pgqueue-activity"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.findall(r"<td>(.*?)</td>", row) for row in table.split("</tr>")[:-1]]


@pytest.fixture
def two_tasks(db: None) -> None:
    count(300, task="app.one", succeeded=30, dead=10)
    count(300, task="app.two", succeeded=5)


@pytest.mark.parametrize("url", [OVERVIEW, f"{QUEUE}?queue=default"])
def test_charts_of_one_task_count_its_attempts_only(operator: Client, two_tasks: None, url: str) -> None:
    all_tasks = page_of(operator, url, **({"queue": "default"} if "queue" in url.partition("?")[2] else {}))
    assert "completed at most 35" in summaries(all_tasks)["Attempts per minute"]
    given = {"task": "app.two", **({"queue": "default"} if "queue" in url.partition("?")[2] else {})}
    page = page_of(operator, url, **given)
    assert "Activity of app.two" in page
    assert "completed at most 5," in summaries(page)["Attempts per minute"]
    assert "failed at most 0," in summaries(page)["Attempts per minute"]


def test_choice_of_a_task_keeps_the_other_choices(operator: Client, two_tasks: None) -> None:
    page = page_of(operator, QUEUE, queue="default", task="app.two", span="day", figures="1")
    form = page.partition('action="#pgqueue-activity"')[2].partition("</form>")[0]
    for name, value in {"queue": "default", "span": "day", "figures": "1"}.items():
        assert f'<input type="hidden" name="{name}" value="{value}">' in form
    assert 'name="task" value="app.two"' in form and f'<option value="{tasks.add.name}">' in form
    header = page.partition('id="pgqueue-activity"')[2].partition("</header>")[0]
    links = [unescape(link) for link in re.findall(r'<a href="([^"]+)"', header)]
    assert all("queue=default" in link for link in links)
    assert ["task=app.two" in link for link in links] == [True] * 4 + [False], "the last one shows all tasks"


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_task_that_is_no_name_means_all_tasks(operator: Client, two_tasks: None, name: str) -> None:
    page = page_of(operator, task=name)
    assert "<h2>Activity</h2>" in page and "completed at most 35" in summaries(page)["Attempts per minute"]


def test_unknown_task_has_empty_charts(operator: Client, two_tasks: None) -> None:
    page = page_of(operator, task="<b>x")
    assert "Activity of &lt;b&gt;x" in page and summaries(page) == {}
    assert page.count("No attempt ended in this period.") == 4


def test_charts_of_a_renamed_task_have_its_former_names(operator: Client, db: None) -> None:
    count(300, task="tests.app.tasks.known_before_as", succeeded=7)
    assert "at most 7," in summaries(page_of(operator, task=tasks.renamed.name))["Attempts per minute"]


def test_failure_rate_is_a_chart_and_a_column(operator: Client, two_tasks: None) -> None:
    count(600, task="app.two", succeeded=3)
    page = page_of(operator, figures="1")
    assert "failed at most 22 %" in summaries(page)["Failure rate"]
    assert [row[3] for row in cells(page)] == ["22 %", "0 %"]


@pytest.mark.parametrize("span", ["hour", "day", "week"])
def test_day_before_is_on_every_chart(operator: Client, two_tasks: None, span: str) -> None:
    page = page_of(operator, span=span)
    assert "pgqueue-before" not in page and "the day before" not in " ".join(summaries(page).values())
    count(DAY + 300, task="app.one", succeeded=90, retried=30, runs=[8.0])
    count(DAY + 600, task="app.two", succeeded=60)
    page = page_of(operator, span=span, figures="1")
    drawn = re.findall(r'class="pgqueue-before" d="(M[^"]+)"', page.partition('id="pgqueue-activity"')[2])
    assert len([path for path in drawn if path != "M0 8H8V3H16V6H24"]) == 4
    found = summaries(page)
    assert "the day before, each hour at most" in found["Attempts per minute"]
    assert "the day before, each hour at most" in found["Failure rate"]
    assert re.search(r"p95 the day before, each hour at most (7|8)\.\d s", found["Run time"])
    assert cells(page)[0][4] not in ("–", "0")


def test_day_before_is_that_of_the_task_and_the_queue(operator: Client, two_tasks: None) -> None:
    count(DAY + 300, task="app.one", succeeded=600)
    assert "the day before" in summaries(page_of(operator, task="app.one"))["Attempts per minute"]
    assert "the day before" not in summaries(page_of(operator, task="app.two"))["Attempts per minute"]


def test_day_before_without_attempts_today_is_drawn(operator: Client, db: None) -> None:
    count(DAY + 300, succeeded=600)
    assert "the day before" in summaries(page_of(operator))["Attempts per minute"]


def test_tasks_link_their_charts(operator: Client, db: None) -> None:
    count(300, task=tasks.add.name, succeeded=4)
    page = operator.get("/admin/pgqueue/job/tasks/").content.decode()
    link = re.search(rf'<a href="([^"]+task={re.escape(tasks.add.name)}[^"]*)#pgqueue-activity">4</a>', page)
    assert link
    assert f"Activity of {tasks.add.name}" in page_of(
        operator, unescape(link[1]).partition("?")[0], task=tasks.add.name
    )


def test_failure_rate_without_attempts_is_unknown() -> None:
    assert activity.failure_rate(AttemptCounts(cancelled=3)) is None
    assert activity.failure_rate(AttemptCounts(succeeded=3, retried=1, dead=1)) == 0.4
