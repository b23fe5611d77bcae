"""Every page of the console to which links lead: each link answers, and numbers and times have the right form.

With USE_THOUSAND_SEPARATOR, templates write 1234567 as 1,234,567 or 1.234.567. That is right in text and wrong in the
value of a form, in a URL and in a shape. Times for people have one form, and are in the current time zone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import parse_qsl, urljoin, urlsplit

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.urls import resolve
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.models import AuditEntry, ExecutionLog, Job, WorkerRequest
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition
from tests import helpers
from tests.browser import seed
from tests.browser import tasks as shop_tasks

pytestmark = pytest.mark.slow

FIRST_ID = 1_234_567
CONSOLE = "/admin/pgqueue/"
FOR_PEOPLE = {"aria-label", "title", "alt", "placeholder", "lang", "data-label"}
"""Attributes that people read."""
SHAPES = {"x", "y", "x1", "x2", "y1", "y2", "d", "points", "width", "height", "viewBox", "viewbox", "r", "cx", "cy"}
PLAIN = re.compile(r"[A-Za-z0-9.% -]*")
IDS = (
    "UPDATE pgqueue_worker SET id = id + %(first)s",
    "UPDATE pgqueue_execution SET worker_id = worker_id + %(first)s",
    "UPDATE pgqueue_batch SET id = id + %(first)s, parent_id = parent_id + %(first)s",
    "UPDATE pgqueue_job SET batch_id = batch_id + %(first)s",
)


TASKS = [task for task in vars(shop_tasks).values() if isinstance(task, TaskDefinition)]
for name in [name for name, task in registry._tasks.items() if task in TASKS]:
    del registry._tasks[name]  # known only to these tests: their limits differ from those of other tests


@pytest.fixture
def shop(db, monkeypatch) -> Iterator[None]:
    """Insert the night of a shop, with ids above a million and a bulk act. Its tasks are known."""
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **{task.name: task for task in TASKS}})
    monkeypatch.setattr(registry, "_limits", None)
    with connection.cursor() as cursor:
        cursor.execute(helpers.CLEAR)
        cursor.execute(
            "SELECT setval(oid::regclass, %s) FROM pg_class WHERE relkind = 'S' AND relname LIKE 'pgqueue%%'",
            [FIRST_ID],
        )
        monkeypatch.setattr(seed, "clear", lambda connection: None)
        seed.fill(connection)
        for statement in IDS:
            cursor.execute(statement, {"first": FIRST_ID})
    seed.beat(connection)
    yield
    registry._limits = None
    with connection.cursor() as cursor:
        cursor.execute(helpers.CLEAR)


@pytest.fixture
def anna(shop: None) -> Client:
    """Return a client that may do everything, with an unfinished bulk act."""
    client = Client()
    client.force_login(User.objects.create_superuser("anna"))
    press(client, f"{CONSOLE}job/bulk_preview/?action=cancel&state=due", "previewed_at")
    return client


def press(client: Client, url: str, field: str) -> None:
    """Post the form of a page that has this hidden field, as a browser does."""
    page = client.get(url).content.decode()
    [form] = [form for form in re.findall(r"<form\b.*?</form>", page, re.DOTALL) if f'name="{field}"' in form]
    found = re.search(r'^<form[^>]* action="([^"]*)"', form)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    path = urljoin(url, found[1].replace("&amp;", "&") if found else url)
    assert client.post(path, {name: unescape(value) for name, value in fields.items()}).status_code == 302, path


class Found(NamedTuple):
    tag: str
    name: str
    value: str


class Attributes(HTMLParser):
    """Collects what machines read in a page: attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[Found] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        given = dict(attrs)
        if given.get("name") in ("csrfmiddlewaretoken", "form_token"):
            return
        is_button = given.get("type") == "submit"
        for name, value in attrs:
            if name not in FOR_PEOPLE and not (is_button and name == "value"):
                self.found.append(Found(tag, name, value or ""))

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.found.append(Found(self._inside, "text", data))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def shape_of(text: str) -> str:
    """Return a text without the values of its numbers, which can change with the time."""
    return re.sub(r"\d+", "0", text)


def machine_readable(page: list[Found]) -> Counter[Found]:
    """Return what machines read in a page, without the values of its numbers, and how often each occurs.

    The order differs between languages, because Django sorts the apps of the admin by their names.
    """
    return Counter(each._replace(value=shape_of(each.value)) for each in page if each.name not in SHAPES)


Part = tuple[str, str, str]


def parts_of(url: str) -> set[Part]:
    """Return the pattern of a URL with each of its parameters, without numbers."""
    split = urlsplit(url)
    route = str(resolve(split.path).route)
    given = parse_qsl(split.query, keep_blank_values=True)
    return {(route, "", ""), *((route, name, shape_of(value)) for name, value in given)}


def names_of(url: str) -> set[Part]:
    """Return the pattern of a URL with the name of each of its parameters."""
    return {(route, name, "") for route, name, _ in parts_of(url)}


class Answer(NamedTuple):
    """The answer to a link: its URL, the page that has the link, the status, and the page if it is one."""

    url: str
    before: str
    status: int
    html: str = ""


def crawl(client: Client, parts: Callable[[str], set[Part]] = parts_of) -> Iterator[Answer]:
    """Follow every link of the console that has a new part. To follow every combination of filters would take hours."""
    seen, waiting = parts(CONSOLE), [(CONSOLE, "")]
    while waiting:
        url, before = waiting.pop(0)
        response = client.get(url)
        is_page = response.status_code == 200 and "html" in response.headers["Content-Type"]
        html = response.content.decode() if is_page else ""
        yield Answer(url, before, response.status_code, html)
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"#]+)', html):
            there = urljoin(url, unescape(link))
            if there.startswith(CONSOLE) and not parts(there) <= seen:
                seen |= parts(there)
                waiting.append((there, url))


@pytest.mark.parametrize("origin", ["code", "admin"])
@pytest.mark.quick
def test_schedules_filtered_by_origin_are_listed(anna: Client, origin: str) -> None:
    page = anna.get(f"{CONSOLE}schedule/?origin={origin}")
    assert page.status_code == 200
    assert {row.origin for row in page.context["cl"].result_list} <= {origin}


def pages(answers: list[Answer]) -> Iterator[str]:
    """Yield a URL of each kind of page, but not of each filter. Each running job and workflow has a page of its own."""
    for job in Job.objects.filter(state="running").order_by("pk")[:3]:
        yield f"{CONSOLE}job/{job.pk}/change/"
    for batch_id in (9, 10):
        yield f"{CONSOLE}jobbatch/{FIRST_ID + batch_id}/change/"
    yield f"{CONSOLE}job/{Job.objects.get(steps__name='charge').pk}/change/"
    seen = set[Part]()
    for answer in answers:
        if answer.status == 200 and not names_of(answer.url) <= seen:
            seen |= names_of(answer.url)
            yield answer.url


@pytest.mark.timeout(600)
def test_every_link_answers_and_machines_read_plain_numbers(anna: Client) -> None:
    answers = list(crawl(anna))
    assert [answer[:3] for answer in answers if answer.status not in (200, 302)] == []
    assert len({resolve(urlsplit(answer.url).path).route for answer in answers}) > 25
    plain = {answer.url: answer.html for answer in answers}  # the links were followed in English
    assert [found for url in pages(answers) for found in formatted_for_people(anna, url, plain.get(url, ""))] == []


def formatted_for_people(client: Client, url: str, plain: str) -> Iterator[tuple[str, Found]]:
    """Yield what differs for machines with the separators of Italian, in which no number looks as in plain English.

    `plain` is the page in English, if it is known.
    """
    before = Attributes(plain).found if plain else read(client, url, "en")
    page = read(client, url, "it", has_separators=True)  # the console has no Italian texts
    differences = machine_readable(page) - machine_readable(before)
    if differences:  # what a job that became due since has changed is not more often in Italian than before and after
        differences &= machine_readable(page) - machine_readable(read(client, url, "en"))
    yield from ((url, each) for each in differences)
    yield from ((url, each) for each in page if each.name in SHAPES and not PLAIN.fullmatch(each.value))


def read(client: Client, url: str, language: str, *, has_separators: bool = False) -> list[Found]:
    with override_settings(LANGUAGE_CODE=language, USE_THOUSAND_SEPARATOR=has_separators):
        response = client.get(url)
    text = response.content.decode()
    return Attributes(text).found if "html" in response.headers["Content-Type"] else [Found("", "", text)]


@pytest.mark.parametrize("language", ["en", "de"])
def test_bulk_act_is_stopped_with_separators(anna: Client, language: str) -> None:
    act = AuditEntry.objects.get(next_batch_at__isnull=False)
    with override_settings(USE_THOUSAND_SEPARATOR=True, LANGUAGE_CODE=language):
        press(anna, f"{CONSOLE}job/bulk_act/?id={act.pk}", "id")
    act.refresh_from_db()
    assert act.next_batch_at is None


# ---------------------------------------------------------------------------- times

ZONE, OFFSET = "Asia/Kathmandu", timedelta(hours=5, minutes=45)
"""A time zone with an offset that no distance between two times of a page is likely to equal."""
SHORT = re.compile(r'<svg class="pgqueue-x".*?</svg>|As of \d\d:\d\d:\d\d<', re.S)
"""The ticks of charts and the time of the page itself. They are short on purpose, and the page names their zone."""
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
OF_SCHEDULE = re.compile(rf"{TIME.pattern}\s+[+-]\d\d:\d\d|\bAt \d\d:\d\d")
"""A time in the zone of a schedule, which has its offset beside it, and an expression in words."""
OTHER_FORMS = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d|\b\d\d?:\d\d\b|\b[ap]\.m\.|\bnoon\b|\bmidnight\b"
    r"|\b(Jan|Feb|March|April|May|June|July|Aug|Sept|Oct|Nov|Dec)[a-z]*\.? \d"
)


class Words(HTMLParser):
    """Collects what people read in a page: the text, tooltips and labels."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._words: list[str] = []
        self._inside = ""
        self.feed(page)
        self.text = "\n".join(self._words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self._words += [value or "" for name, value in attrs if name in FOR_PEOPLE]

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self._words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


@pytest.fixture
def with_times(anna: Client) -> list[str]:
    """Add the kinds of times that the night of the shop lacks, and return the URLs of the pages that show them."""
    tomorrow = timezone.now() + timedelta(days=1)
    control.override_limit("payments", rate="50/m", until=tomorrow, by="ben")
    control.pause("imports", until=tomorrow, by="ben")
    dead = Job.objects.filter(state="dead", queue_name="mail").earliest("pk")
    LogEntry.objects.log_actions(User.objects.get().pk, [dead], CHANGE, "Retry.")
    line = [timezone.now().timestamp(), "INFO", "shop", "sent"]
    ExecutionLog.objects.create(execution=dead.executions.get(), first_lines=[line], last_lines=[], cut_lines=0)
    worker_id = Job.objects.get(state="running", queue_name="webhooks").executions.get().worker_id
    WorkerRequest.objects.create(worker_id=worker_id, kind="stack", requested_at=timezone.now() - timedelta(hours=1))
    ready = Job.objects.filter(state="ready")
    jobs = [
        dead,
        *(ready.filter(queue_name=name).earliest("pk") for name in ("mail", "webhooks", "reports", "imports")),
        *(ready.filter(limit_key=key).earliest("pk") for key in ("catalogue:supplier:9", "carriers:ups")),
        ready.filter(attempt=2).earliest("pk"),
        Job.objects.get(state="cancelled", in_graph=True),
    ]
    changes = [f"{CONSOLE}job/{job.pk}/change/" for job in jobs]
    others = (f"job/{dead.pk}/history/", f"worker/{worker_id}/change/", "job/overview/", "job/bulk_acts/", "pause/")
    return [*changes, *(CONSOLE + each for each in others)]


def words_of(client: Client, url: str, zone: str) -> str:
    """Return what people read in a page in this time zone, without the times in the zones of schedules."""
    with timezone.override(zone):
        response = client.get(url)
    is_page = "html" in response.headers["Content-Type"]
    return OF_SCHEDULE.sub("", Words(SHORT.sub("<", response.content.decode())).text) if is_page else ""


def wrong_times(client: Client, url: str) -> list[str]:
    """Return the times of a page that have another form, or that do not follow the time zone."""
    here, there = words_of(client, url, "UTC"), words_of(client, url, ZONE)
    before, after = (list(map(datetime.fromisoformat, TIME.findall(text))) for text in (here, there))
    shifts = zip(before, after, strict=False)
    return [
        *(f"{url}: {found[0]}" for found in OTHER_FORMS.finditer(TIME.sub(" ", there))),
        *(f"{url}: {at}" for at, later in shifts if abs(later - at - OFFSET) > timedelta(minutes=2)),
        *([f"{url}: {len(before)} times, and {len(after)}"] if len(before) != len(after) else []),
    ]


@pytest.mark.timeout(600)
def test_every_page_has_times_in_one_form_and_zone(anna: Client, with_times: list[str]) -> None:
    urls = [*with_times, *pages(list(crawl(anna, names_of)))]
    # A minute can end between two reads, which moves the bars of charts.
    found = [wrong_times(anna, url) and wrong_times(anna, url) for url in urls]
    assert [each for each in found if each] == []
    shown = {url: words_of(anna, url, "UTC") for url in with_times}
    assert [url for url, words in shown.items() if not TIME.search(words) or "Times in UTC" not in words] == []
