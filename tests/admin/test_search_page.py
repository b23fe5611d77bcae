"""The search box above every page of the console: what a text means, what it may not find, and its suggestions."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import Batch, Limit
from django_pgqueue.admin.console import search as search_page
from django_pgqueue.admin.navigation import PLACES
from django_pgqueue.job_search import search as job_search
from django_pgqueue.models import Job, Rollup, Worker
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.admin.conftest import JobMaker, add_execution
from tests.app import tasks

pytestmark = pytest.mark.slow

PAGE, SUGGESTIONS = "/admin/pgqueue/job/search/", "/admin/pgqueue/job/search.json"
SECTIONS = ["Search key", "Tasks", "Queues", "Workers", "Error messages"]
BOX = re.compile(r'<form class="pgqueue-search".*?</form>', re.DOTALL)


@pytest.fixture
def bill(monkeypatch: pytest.MonkeyPatch) -> Task[..., Any]:
    """Register a task with the search key `customer`, and `card`, which is sensitive."""

    def charge(customer: str, card: str = "") -> None: ...

    charge.__qualname__, charge.__module__ = "charge", tasks.__name__
    made: Task[..., Any] = Task(func=charge, name="shop.charge", queue_name="billing", search=("customer",))
    monkeypatch.setattr(registry, "_tasks", {made.name: made})  # other tests register tasks with search keys
    return made


def results(client: Client, typed: str) -> dict[str, list[str]]:
    """Return the texts of the results by the titles of their sections."""
    context = client.get(PAGE, {"q": typed}).context
    return {str(section.title): [str(each.text) for each in section.results] for section in context["sections"]}


def suggested(client: Client, typed: str) -> list[str]:
    found: list[str] = client.get(SUGGESTIONS, {"q": typed}).json()["completions"]
    return found


def listed(client: Client, url: str) -> list[int]:
    return sorted(job.pk for job in client.get(url).context["cl"].result_list)


@pytest.mark.quick
def test_number_of_a_job_leads_to_its_page(operator: Client, make_job: JobMaker) -> None:
    job = make_job()
    for typed in (str(job.pk), f"#{job.pk}", f"  {job.pk} "):
        assert operator.get(PAGE, {"q": typed})["Location"] == f"/admin/pgqueue/job/{job.pk}/change/"
    page = operator.get(PAGE, {"q": "#999999999"})
    assert page.status_code == 200 and "Nothing was found for “#999999999”" in page.content.decode()


def test_number_that_is_a_value_too_shows_both(operator: Client, bill: Any, make_job: JobMaker) -> None:
    job = make_job()
    keyed = [bill.enqueue(str(job.pk)).pk for _ in range(2)]
    found = results(operator, str(job.pk))
    assert found["Jobs"] == [f"#{job.pk} app.add (ready)"]
    assert found["Search key"] == ["2 jobs with this value of customer"]
    context = operator.get(PAGE, {"q": f"customer:{job.pk}"}).context
    [section] = [each for each in context["sections"] if each.title == "Search key"]
    assert section.results[0].text == "2 jobs with this search key"
    assert listed(operator, section.results[0].url) == keyed
    assert operator.get(PAGE, {"q": f"#{job.pk}"}).status_code == 302
    [section] = [
        each for each in operator.get(PAGE, {"q": str(job.pk)}).context["sections"] if each.title == "Search key"
    ]
    assert listed(operator, section.results[0].url) == keyed, "the job that has this number is not among them"


def test_parts_of_names_find_tasks_queues_and_workers(operator: Client, bill: Any, make_job: JobMaker) -> None:
    job = make_job(task_name="shop.gone", queue_name="Billing-old")
    worker = Worker.objects.create(hostname="bill-7.example.com", pid=4711, version="1", concurrency=1)
    found = operator.get(PAGE, {"q": "BILL"}).context["sections"]
    texts = {str(section.title): [each.text for each in section.results] for section in found}
    assert texts == {"Queues": ["Billing-old", "billing"], "Workers": ["bill-7.example.com, process 4711"]}
    queues, workers = found
    assert listed(operator, queues.results[0].url) == [job.pk]
    assert all(operator.get(url).status_code == 200 for each in queues.results for _, url in each.links)
    assert workers.results[0].url == f"/admin/pgqueue/worker/{worker.pk}/change/"
    assert results(operator, "shop.")["Tasks"] == ["shop.charge", "shop.gone"]
    numbered = make_job(id=4711)
    for typed in ("4711", f"#{worker.pk}"):
        assert results(operator, typed)["Workers"] == ["bill-7.example.com, process 4711"]
    assert results(operator, "4711")["Jobs"] == [f"#{numbered.pk} app.add (ready)"]


def test_text_of_an_error_finds_dead_letters(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [make_job("dead") for _ in range(3)]
    for number, job in enumerate(jobs):
        add_execution(job, error=f"Order {number} not found" if number else "no such shop")
    acknowledged = make_job("dead")
    add_execution(acknowledged, error="order 9 not found")
    acknowledged.acknowledge()
    context = operator.get(PAGE, {"q": "order"}).context
    [section] = context["sections"]
    assert (section.title, section.results[0].text) == ("Error messages", "2 dead letters")
    assert listed(operator, section.results[0].url) == [jobs[1].pk, jobs[2].pk]
    assert results(operator, "=Order # not found") == {"Error messages": ["2 dead letters"]}
    assert "at least 3 characters" in operator.get(PAGE, {"q": "or"}).content.decode()
    monkeypatch.setattr(job_search, "CLASSES_SEARCHED", 1)
    monkeypatch.setattr(job_search, "SEARCHED", 1)
    page = operator.get(PAGE, {"q": "order"})
    assert results(operator, "order") == {"Error messages": ["1+ dead letters"]}
    assert "only the newest 1 dead letters were searched" in page.content.decode()


def test_search_finds_no_more_than_the_user_may_see(
    client_of: Callable[..., Client], bill: Any, make_job: JobMaker
) -> None:
    """A user of support finds a whole key, and neither values, messages nor workers."""
    job = bill.enqueue("4711")
    dead = make_job("dead")
    add_execution(dead, error="card of 4711 declined")
    Worker.objects.create(hostname="host-4711", pid=1, version="1", concurrency=1)
    support = client_of("view_job")
    page = support.get(PAGE, {"q": "4711"})
    assert page.context["sections"] == []
    text = unescape(page.content.decode())
    assert "type a key in full, such as customer:4711" in text and "Error messages were not searched" in text
    assert results(support, "customer:4711") == {"Search key": ["1 job with this search key"]}
    assert suggested(support, "customer:") == [] and suggested(support, "cust") == ["customer:"]
    user = User.objects.get()
    user.user_permissions.set(Permission.objects.filter(codename="view_worker"))
    nobody = Client()
    nobody.force_login(user)
    assert [nobody.get(url, {"q": str(job.pk)}).status_code for url in (PAGE, SUGGESTIONS)] == [403, 403]
    assert not BOX.search(nobody.get("/admin/pgqueue/worker/").content.decode())


def test_suggestions_are_names_keys_and_values(operator: Client, bill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bill.enqueue_many([(value,) for value in ("47", "4711", "4711", "4712", "48", "5", "é1", "\N{GRINNING FACE}")])
    assert suggested(operator, "customer:47") == ["customer:47", "customer:4711", "customer:4712"]
    assert suggested(operator, "customer:é") == ["customer:é1"]
    assert len(suggested(operator, "customer:")) == 7 and suggested(operator, "customer:6") == []
    assert "shop.charge" in suggested(operator, "CHAR") and "billing" in suggested(operator, "bil")
    bill.enqueue("gone")
    Job.objects.filter(search_keys__value="gone").update(task_name="shop.unknown")
    assert suggested(operator, "customer:g") == [], "nobody knows what is sensitive in this task"
    assert suggested(operator, "") == suggested(operator, "other:4") == suggested(operator, "a\0") == []
    monkeypatch.setattr(search_page, "COMPLETIONS", 2)
    assert suggested(operator, "customer:") == ["customer:47", "customer:4711"]
    hiding: Task[..., Any] = Task(func=bill.func, name="shop.refund", sensitive=frozenset({"customer"}))
    monkeypatch.setitem(registry._tasks, hiding.name, hiding)
    assert suggested(operator, "customer:") == [], "a value of another task may be a secret of this one"


def test_every_page_has_the_box(db: None) -> None:
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    paths = {
        place.name: f"/admin/pgqueue/{place.name.removesuffix('_changelist')}/"
        if "changelist" in place.name
        else f"/admin/pgqueue/job/{place.name}/"
        for place in PLACES
    }
    without = [name for name, path in paths.items() if not BOX.search(root.get(path).content.decode())]
    assert without == []
    box = BOX.search(root.get(f"{PAGE}?q=x%22y").content.decode())
    assert box is not None and 'value="x&quot;y"' in box[0] and "database" not in box[0]


@pytest.mark.parametrize("typed", ["a\0b", "\0", "%", "x" * 5000, "=", ":", "#", "9" * 30, "' OR 1=1", "<b>"])
def test_any_text_is_answered(operator: Client, bill: Any, typed: str) -> None:
    for url in (PAGE, SUGGESTIONS):
        assert operator.get(url, {"q": typed}).status_code == 200
    assert "<b>" not in operator.get(PAGE, {"q": "<b>"}).content.decode()


def test_number_of_queries_does_not_grow_with_the_results(operator: Client, bill: Any, make_job: JobMaker) -> None:
    counts = []
    for number in range(2):
        for each in range(number * 8 + 1):
            add_execution(make_job("dead", task_name=f"order.{number}.{each}"), error="order 1 not found")
            make_job(queue_name=f"order{each}")
            bill.enqueue("order")
            Worker.objects.create(hostname=f"order-{number}-{each}", pid=1, version="1", concurrency=1)
        with CaptureQueriesContext(connection) as queries:
            sections = operator.get(PAGE, {"q": "order"}).context["sections"]
        counts.append(len(queries))
        assert [str(section.title) for section in sections] == SECTIONS
    assert counts[0] == counts[1] <= 14


def test_exception_classes_are_found(operator: Client, make_job: JobMaker) -> None:
    starts_at = timezone.now().replace(second=0, microsecond=0)
    of_minute = {"span": "minute", "starts_at": starts_at, "queue_name": "q", "task_name": "t"}
    empty: dict[str, Any] = {f"{kind}_{part}": [] for kind in ("wait", "run") for part in ("buckets", "counts")}
    Rollup.objects.create(**of_minute, **empty, exception_class="shop.CarrierDown", dead=1)
    job = make_job("dead")
    add_execution(job, exception_class="shop.CarrierDown")
    assert results(operator, "carrierdown")["Exception classes"] == ["shop.CarrierDown"]
    [section] = operator.get(PAGE, {"q": "CarrierDown"}).context["sections"]
    [found] = section.results
    assert listed(operator, found.url) == [job.pk]
    assert all(operator.get(url).status_code == 200 for _, url in found.links)


def test_limits_and_keys_are_found(
    operator: Client, client_of: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key leads to its row, if the user may see it."""
    limited: Any = Task(func=tasks.add.func, name="shop.call", limit=Limit("payments", key="{a}", concurrency=1))
    monkeypatch.setattr(registry, "_tasks", {limited.name: limited})
    monkeypatch.setattr(registry, "_limits", None)
    limited.enqueue(7)
    assert results(operator, "PAY") == {"Limits": ["payments"]}
    [section] = operator.get(PAGE, {"q": "payments:7"}).context["sections"]
    assert [each.text for each in section.results] == ["payments:7"]
    assert "payments:7" in unescape(operator.get(section.results[0].url).content.decode())
    User.objects.update(username="before")
    assert results(client_of("view_job"), "payments:7") == {}
    assert "payments" in suggested(operator, "pay")
    registry._limits = None


def test_number_that_the_user_may_not_look_up_as_a_value_leads_to_no_page(
    client_of: Callable[..., Client], bill: Any, make_job: JobMaker
) -> None:
    """The job with this number is hardly the one that a user means who types the number of a customer."""
    job = make_job()
    page = client_of("view_job").get(PAGE, {"q": str(job.pk)})
    assert [str(section.title) for section in page.context["sections"]] == ["Jobs"]
    assert "type a key in full" in unescape(page.content.decode())


def test_batches_are_found_by_number_and_description(
    operator: Client, client_of: Callable[..., Client], make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Batch(description=f"Import {number} of Acme").open() for number in (17, 18))
    Job.objects.filter(pk=make_job(in_graph=True).pk).update(batch_id=first.id)
    assert results(operator, "import 17") == {}, "the user may not view batches"
    User.objects.update(username="before")
    viewer = client_of("view_job", "view_jobbatch")
    title = "Batches and workflows"
    assert results(viewer, "ACME")[title] == [
        f"#{each.id} Import {n} of Acme (open)" for each, n in ((second, 18), (first, 17))
    ]
    assert results(viewer, str(first.id))[title] == [f"#{first.id} Import 17 of Acme (open)"]
    [section] = [each for each in viewer.get(PAGE, {"q": "import 17"}).context["sections"] if each.title == title]
    [result] = section.results
    assert result.url == f"/admin/pgqueue/jobbatch/{first.id}/change/"
    assert len(listed(viewer, result.links[0][1])) == 1
    monkeypatch.setattr(search_page, "BATCHES_SEARCHED", 1)
    page = viewer.get(PAGE, {"q": "acme"})
    assert results(viewer, "acme")[title] == [f"#{second.id} Import 18 of Acme (open)"]
    assert "only the descriptions of the newest 1 were searched" in page.content.decode()


def test_worker_is_found_by_its_release(operator: Client) -> None:
    Worker.objects.create(hostname="web-1", pid=7, version="1", concurrency=1, release="2026.11-rc1")
    assert results(operator, "11-RC") == {"Workers": ["web-1, process 7"]}
