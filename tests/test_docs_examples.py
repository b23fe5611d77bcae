"""The examples of the documentation run: the app `shop`, and the other blocks of each page one after another."""

import ast
import importlib
import io
import itertools
import re
import sys
import unittest
import urllib.error
import urllib.request
from copy import copy
from datetime import timedelta
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.conf import settings
from django.core import mail
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections
from django.test import RequestFactory, override_settings
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.metrics import metrics_view
from django_pgqueue.models import Execution, Job
from django_pgqueue.settings import conf
from django_pgqueue.states import State
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.concurrency import limits
from tests.documents import PAGES, TUTORIAL, blocks, file_of, loose_blocks
from tests.rules import for_each

ORDER = """
from django.db import models
class Order(models.Model):
    email = models.EmailField()
"""


@pytest.fixture
def shop(tmp_path, monkeypatch, db):
    """Install the app `shop`, written from the text of the documentation. Its tables are gone after the test."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    texts = {"shop/models.py": ORDER}
    for block in itertools.chain.from_iterable(blocks(page) for page in PAGES if page != TUTORIAL):
        if name := file_of(block):
            texts[name] = texts.get(name, "") + block
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(registry, "_chunk_keys", None)
    # Projects on Django 6.1 have MAILERS. Earlier versions use EMAIL_BACKEND, which the test runner also replaces.
    mailers = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    with override_settings(
        INSTALLED_APPS=[*settings.INSTALLED_APPS, "shop"], DEFAULT_FROM_EMAIL="shop@example.com", MAILERS=mailers
    ):
        with connection.schema_editor() as editor:
            for model in apps.get_app_config("shop").get_models():
                editor.create_model(model)
        yield importlib.import_module("shop")
    apps.all_models.pop("shop", None)
    apps.clear_cache()
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def run_page(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks of a page that belong to no file, one after another, and return the names that they define."""
    for block in loose_blocks(page):
        exec(compile(block, page, "exec"), names)  # noqa: S102 -- our own text
    return names


@pytest.fixture
def reports(db):
    """Let the alias `reports` of the examples lead to the test's own session."""
    connections.settings["reports"] = connections.settings["default"]
    connections["reports"] = copy(connections["default"])
    connections["reports"].alias = "reports"
    yield
    del connections["reports"], connections.settings["reports"]


@pytest.fixture
def names(shop, reports) -> dict[str, Any]:
    """Return the names that the blocks of a page can use: the tasks of the examples, and an order."""
    tasks = importlib.import_module("shop.tasks")
    return dict(vars(tasks), order=tasks.Order.objects.create(email="ada@example.com"))


def test_examples_tasks_are_registered_by_their_app(shop):
    """The test does not import `shop.tasks`. The app does so when the apps become ready, as in any project."""
    assert registry.get("shop.tasks.send_receipt") is not None
    assert registry.get("shop.tasks.send_bill") is registry.get("shop.tasks.send_invoice")


def test_examples_on_testing_pass(shop):
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("shop.test_receipts"))
    result = suite.run(unittest.TestResult())
    assert result.testsRun == 3
    assert result.errors == result.failures == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/coming_from/")])
def test_examples_on_coming_from_page_run_now_and_later(shop, page):
    """The code of the page enqueues one job for now and one for in three days."""
    [block] = re.findall(r"^<!-- ours -->\n```python\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "shop.tasks"}
    exec(compile(block, page, "exec"), names)  # noqa: S102 -- our own text
    names["place_order"]("ada@example.com")
    assert run_jobs(raising=True) == 1
    assert run_jobs(until=timedelta(days=4), raising=True) == 1
    assert len(mail.outbox) == 2


def test_examples_coming_from_celery_dead_job_calls_its_handler(shop):
    tasks, receivers = importlib.import_module("shop.tasks"), importlib.import_module("shop.receivers")
    assert receivers.undo_uncaptured_order
    tasks.capture_payment.enqueue(7)
    run_jobs()
    assert Job.objects.get(task_name=tasks.capture_payment.name).state == State.DEAD
    assert Job.objects.get(task_name=tasks.undo_order.name).result == 7


def test_readme_example_failed_enqueue_leaves_no_order(shop):
    orders, models = importlib.import_module("shop.orders"), importlib.import_module("shop.models")
    with override_settings(PGQUEUE={"MAX_ARGUMENTS_BYTES": 1}), pytest.raises(ValueError, match="MAX_ARGUMENTS_BYTES"):
        orders.place_order("ada@example.com")
    assert not models.Order.objects.exists()
    orders.place_order("ada@example.com")
    assert (models.Order.objects.count(), Job.objects.count()) == (1, 1)


IN_TRANSACTION = [
    "docs/guides/arguments.md",
    "docs/guides/async.md",
    "docs/guides/batches.md",
    "docs/guides/workflows.md",
    "docs/guides/chunks.md",
    "docs/guides/enqueue.md",
    "docs/guides/multi_tenancy.md",
    "docs/guides/schedules.md",
    "docs/guides/polling.md",
    "docs/guides/several_databases.md",
    "docs/guides/tasks.md",
    "docs/guides/timeouts_and_cancelling.md",
    "docs/guides/unique_jobs.md",
    "docs/production/bulk_acts.md",
    "docs/production/history.md",
    "docs/production/logging.md",
    "docs/production/console.md",
    "docs/production/doctor.md",
    "docs/production/limits.md",
    "docs/production/monitoring.md",
    "docs/production/pausing_queues.md",
    "docs/production/troubleshooting.md",
    "docs/production/upgrading.md",
    "docs/project/choosing.md",
    "docs/recipes/backfill.md",
    "docs/recipes/erasure.md",
    "docs/recipes/external_api.md",
    "docs/recipes/fan_out.md",
    "docs/recipes/long_job.md",
    "docs/recipes/nightly_report.md",
    "docs/recipes/order_fulfilment.md",
    "docs/recipes/steps.md",
    "docs/recipes/tenant_schemas.md",
    "docs/recipes/webhook.md",
    "docs/reference/api.md",
    "docs/reference/models.md",
    "docs/reference/stats.md",
    "docs/start/choose_api.md",
]
"""Pages whose loose blocks run in a transaction, one after another. Their jobs run afterwards."""
ELSEWHERE = {
    "docs/guides/codecs.md": "tests/privacy/test_guides.py",
    "docs/guides/django_tasks.md": "tests/backend",
    "docs/guides/limits.md": "a test of its own below",
    "docs/guides/middleware.md": "a test of its own below",
    "docs/guides/progress.md": "a test of its own below",
    "docs/guides/results.md": "a test of its own below",
    "docs/guides/retries.md": "a test of its own below",
    "docs/guides/saga.md": "a test of its own below",
    "docs/guides/steps.md": "a test of its own below",
    "docs/guides/testing.md": "tests/kit",
    "docs/index.md": "a part of the README's",
    "docs/production/clone_guard.md": "tests/worker/test_clone_guard.py",
    "docs/production/connections.md": "addresses of servers",
    "docs/production/opentelemetry.md": "tests/contrib/test_opentelemetry.py",
    "docs/production/remote_workers.md": "tests/remote/test_operators.py",
    "docs/production/sentry.md": "tests/contrib/test_sentry_worker.py",
    "docs/production/worker.md": "logging settings",
    "docs/reference/logging.md": "a filter of records",
    "docs/reference/settings.md": "a test of its own below",
    "docs/start/install.md": "its settings are in the tests' own",
    "docs/start/tutorial.md": "tests/process/test_tutorial.py",
}
"""Pages whose loose blocks this list does not run, with the reason or with the place where they run."""


def test_loose_blocks_of_every_page_run_somewhere():
    """The blocks of the internals are parts of this package, not examples."""
    with_blocks = {
        page for page in PAGES if loose_blocks(page) and not page.startswith(("docs/coming_from/", "docs/internals/"))
    }
    assert with_blocks == {*IN_TRANSACTION, *ELSEWHERE}


@pytest.mark.parametrize("page", IN_TRANSACTION)
def test_examples_of_page_run_and_so_do_their_jobs(names, page, monkeypatch):
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", lambda *arguments, **options: io.BytesIO())
    run_page(page, names)
    Job.objects.filter(state="cancelled", task_name="shop.tasks.publish").retry()
    run_jobs()
    left = Job.objects.exclude(state__in=["succeeded", "cancelled"]).values_list("task_name", "state", "run_after")
    assert all(state == "ready" and run_after > timezone.now() for _, state, run_after in left), list(left)


def test_examples_on_limits_enqueue_jobs_with_their_limits(names):
    run_page("docs/guides/limits.md", names)
    names["summarise"].enqueue("acme", "x" * 400)
    names["export_stock"].enqueue("2026-05-06")
    stored = list(Job.objects.order_by("id").values_list("limit_key", "limit_weight"))
    assert stored[-4:] == [(None, None), ("exports", None), ("model:acme", 101), ("exports", None)]


def pauses_between_starts():
    """Return the seconds between successive starts of all jobs, by the clock of the queue."""
    starts = Execution.objects.order_by("started_at").values_list("started_at", flat=True)
    return [(after - before).total_seconds() for before, after in itertools.pairwise(starts)]


def test_recipes_for_limits_keep_to_the_rate(names):
    for number in range(4):
        names["book_payment"].enqueue(number)
    assert run_jobs(until=10) == 4
    assert min(pauses_between_starts()) > 0.59


def test_recipes_for_limits_import_in_order(names):
    broken = names["import_customer_file"].using(max_attempts=1).enqueue(7, "july.pdf")
    later = names["import_customer_file"].enqueue(7, "august.csv")
    other = names["import_customer_file"].enqueue(8, "july.csv")
    run_jobs()
    assert [Job.objects.get(pk=job.pk).state for job in (broken, later, other)] == ["dead", "ready", "succeeded"]
    Job.objects.filter(pk=broken.pk).delete()
    assert run_jobs() == 1


def test_recipes_for_limits_serve_tenants_in_turn(names):
    for tenant_id in (1, 1, 1, 1, 1, 2, 2, 2):
        names["export_tenant"].using(queue_name="default").enqueue(tenant_id, "orders")
    claimed = limits.claim(connection.connection, registry.limits()["exports-of-tenants"]).claimed
    assert [str(job.limit_key)[-1] for job in claimed] == list("12121211")


def test_recipes_for_limits_spend_a_budget(names):
    heavy = [names["answer_question"].enqueue("x" * 15_000) for _ in range(2)]
    assert [job.limit_weight for job in heavy] == [5_500, 5_500]
    assert run_jobs(until=10) == 2
    assert min(pauses_between_starts()) > 0.99
    with pytest.raises(ValueError, match="burst"):
        names["answer_question"].enqueue("x" * 30_000)


def test_recipes_for_limits_obey_a_429(names, monkeypatch):
    def refuse(url, timeout):
        raise urllib.error.HTTPError(url, 429, "too many", {"Retry-After": "7"}, None)

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    job, _ = (names["fetch_weather"].enqueue(city) for city in ("oslo", "rome"))
    assert run_jobs() == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO())
    assert [run_jobs(until=2), run_jobs(until=8)] == [0, 2]


def test_examples_on_durable_steps_run(names):
    order = names["Order"].objects.create(pk=7, email="grace@example.com")
    run_page("docs/guides/steps.md", names)
    job = Job.objects.get(task_name="shop.tasks.fulfil")
    assert (job.state, job.result) == (State.SUCCEEDED, "charge of order 7, approved by anna")
    order.refresh_from_db()
    assert order.email == "shipped@example.com"
    names["send_event"]("approved", 8, {"by": "grace"})
    job = names["fulfil_async"].enqueue(8)
    assert run_jobs(until=5) == 2
    job.refresh_from_db()
    assert job.result == "charge of order 8, approved by grace"


def test_examples_on_compensation_run(names):
    run_page("docs/guides/saga.md", names)
    job = Job.objects.get(task_name="shop.tasks.buy")
    undo = Job.objects.get(task_name="shop.tasks.refund_payment")
    assert (job.state, undo.result) == (State.DEAD, "refund of the payment of order 7")


def test_examples_on_coroutines_run(names):
    run_page("docs/guides/async.md", names)
    assert async_to_sync(names["start"])()
    assert async_to_sync(names["view"])("grace@example.com")
    run_jobs(raising=True)
    assert Job.objects.get(task_name="shop.tasks.count_slowly").result == 2

    async def enqueue() -> None:
        names["count_slowly"].enqueue()

    with pytest.raises(SynchronousOnlyOperation):
        async_to_sync(enqueue)()


def test_examples_on_arguments_are_stored_as_they_say(names):
    run_page("docs/guides/arguments.md", names)
    run_jobs(raising=True)
    results = {job.task_name.rpartition(".")[2]: job.result for job in Job.objects.all()}
    assert results == {
        "pay": "3.50",
        "remind_customers": ["ada@example.com"] * 2,
        "remind_by": ["mail: ada@example.com", "text: ada@example.com"],
    }


def test_examples_on_tasks_end_as_they_say(shop):
    tasks = importlib.import_module("shop.tasks")
    for call in (tasks.announce, tasks.touch, tasks.send_invoice):
        call.enqueue(1)
    tasks.export.enqueue()
    assert run_jobs(raising=True) == 4
    assert set(Job.objects.filter(task_name="shop.tasks.export").values_list("state", flat=True)) == {"succeeded"}
    assert not Job.objects.filter(task_name="shop.tasks.touch").exists()


def test_examples_on_tenants_run_for_their_tenant(names):
    with override_settings(PGQUEUE={"MIDDLEWARE": ["shop.tenants.TenantMiddleware"]}):
        run_page("docs/guides/multi_tenancy.md", names)
        names["bill_tenant"].enqueue()
        run_jobs(raising=True)
    assert Job.objects.get(task_name="shop.tasks.print_invoices").limit_key == "invoices:acme"
    results = Job.objects.filter(task_name="shop.tasks.bill_tenant").order_by("pk").values_list("queue_name", "result")
    assert list(results) == [("default", "billed acme"), ("tenant.acme", "billed acme"), ("default", "billed public")]


def test_schema_middleware_sets_the_search_path_of_its_job(shop):
    tasks, tenants = importlib.import_module("shop.tasks"), importlib.import_module("shop.tenants")

    def search_path():
        with connection.cursor() as cursor:
            cursor.execute("SHOW search_path")
            return cursor.fetchone()[0]

    tasks.bill_tenant.func.__code__ = search_path.__code__
    tasks.bill_tenant.func.__globals__["connection"] = connection
    before = search_path()
    with override_settings(PGQUEUE={"MIDDLEWARE": ["shop.tenants.SchemaMiddleware"]}):
        tasks.bill_tenant.using(headers={"tenant": 'a"b'}).enqueue()
        run_jobs(raising=True)
    assert Job.objects.get().result == '"a""b", public'
    assert search_path() == before
    assert tenants.current.get() == "public"


def test_router_of_the_example_sends_jobs_to_their_database(shop):
    router = importlib.import_module("shop.routers").QueueRouter()
    order = importlib.import_module("shop.models").Order
    assert router.db_for_write(Job) == router.db_for_read(Job) == "queue"
    assert router.db_for_write(order) is None
    assert router.allow_migrate("queue", "pgqueue")
    assert not router.allow_migrate("default", "pgqueue")
    assert router.allow_migrate("default", "shop") is None


def test_examples_on_monitoring_measure_jobs(shop):
    tasks, monitoring = importlib.import_module("shop.tasks"), importlib.import_module("shop.monitoring")
    tasks.count_orders.enqueue()
    tasks.count_orders.using(run_after=60, queue_name="later").enqueue()
    tasks.deliver.using(queue_name="dead").enqueue(tasks.Order.objects.create().pk)
    run_jobs("dead")
    *about_queues, no_worker = monitoring.problems()
    assert about_queues == ["No worker serves the queue default."]
    assert no_worker == "No worker is running."
    Job.objects.filter(queue_name="default").update(run_after=timezone.now() - timedelta(seconds=400))
    assert "A job of the queue default has been due for 40" in "".join(monitoring.problems())
    assert importlib.import_module("shop.internal_urls").urlpatterns[0].callback is metrics_view


def test_several_databases_calls_go_to_their_shards(names):
    run_page("docs/guides/several_databases.md", names)
    tasks = importlib.import_module("shop.tasks")
    moved = Job.objects.filter(task_name="shop.tasks.bill_customer").exclude(state="cancelled")
    assert sorted(job.arguments["args"][0] for job in moved) == [7, 40, 40, 104]
    assert run_jobs(database="reports", raising=True)
    later = tasks.bill_customer.using(run_after=3600).enqueue(40, "2026-12")
    names["move_waiting"](tasks.bill_customer, "reports", "default")
    later.refresh_from_db()
    assert later.state == "cancelled"
    [copy] = Job.objects.filter(task_name="shop.tasks.bill_customer", state="ready")
    assert (copy.arguments, copy.run_after) == (later.arguments, later.run_after)
    tasks.bill_all_shards.enqueue()
    run_jobs(database="default", raising=True)
    assert Job.objects.filter(task_name="shop.tasks.bill_shard", state="succeeded").count() == 2


def test_recipe_fan_out_reports_once_after_the_last_item(names):
    for name in ("grace", "mary"):
        names["Order"].objects.create(email=f"{name}@example.com")
    run_page("docs/recipes/fan_out.md", names)
    run_jobs(raising=True)
    assert Job.objects.filter(task_name="shop.tasks.send_newsletter", state="succeeded").count() == 3
    assert Job.objects.get(task_name="shop.tasks.report_newsletter").state == "succeeded"
    report = Job.objects.get(task_name="shop.tasks.report_import")
    assert report.result == "customers.csv: 5000 rows imported, 4 refused"


def test_recipe_fan_out_without_items_reports_too(names):
    names["Order"].objects.all().delete()
    run_page("docs/recipes/fan_out.md", names)
    run_jobs(raising=True)
    assert not Job.objects.filter(task_name="shop.tasks.send_newsletter").exists()
    assert Job.objects.get(task_name="shop.tasks.report_newsletter").state == "succeeded"


def test_recipe_approval_pays_after_the_decision_and_ends_without_one(names):
    run_page("docs/recipes/approval.md", names)
    views = importlib.import_module("shop.views")
    approved, refused, forgotten = (names["refund"].enqueue(order_id) for order_id in (1, 2, 3))
    run_jobs(raising=True)
    assert stats.why(approved.pk).reason == stats.Reason.SUSPENDED
    for order_id, decision in ((1, "approve"), (2, "refuse")):
        request = RequestFactory().post("/", {"decision": decision})
        request.user = "anna"
        views.decide(request, order_id)
    run_jobs(until=8 * 86_400, raising=True)
    assert [Job.objects.get(pk=job.pk).result for job in (approved, refused, forgotten)] == [
        "refund of order 1",
        "refused by anna",
        "nobody has decided",
    ]


def test_recipe_steps_runs_each_step(names):
    run_page("docs/recipes/steps.md", names)
    run_jobs(raising=True)
    assert [name.rpartition(".")[2] for name in Job.objects.order_by("pk").values_list("task_name", flat=True)] == [
        "reserve_stock",
        "print_label",
        "send_label",
    ]
    names["Order"].objects.update(email="")
    waiting = names["collect_document"].enqueue(names["order"].pk)
    run_jobs(until=3700)
    waiting.refresh_from_db()
    assert waiting.state == "cancelled"
    assert set(waiting.executions.values_list("outcome", flat=True)) == {"snoozed", "cancelled"}


@pytest.mark.parametrize(
    ("code", "retry_after", "state", "seconds"),
    [
        (400, "7", "dead", None),
        (429, "7", "ready", 7),
        (429, "Wed, 21 Oct 2015 07:28:00 GMT", "ready", 60),
        (503, "7", "ready", None),
    ],
)
def test_recipe_external_api_answers_errors_as_it_says(names, monkeypatch, code, retry_after, state, seconds):
    def refuse(request, timeout):
        assert request.headers["Idempotency-key"].startswith("job-")
        raise urllib.error.HTTPError(request.full_url, code, "refused", {"Retry-After": retry_after}, None)

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    job = names["charge_order"].enqueue(names["order"].pk)
    run_jobs()
    job.refresh_from_db()
    assert job.state == state
    if seconds is not None:
        ended_at = job.executions.get().finished_at
        assert seconds <= (job.run_after - ended_at).total_seconds() < seconds + 1


def test_recipe_long_job_continues_where_it_stopped(names):
    for name in ("Grace", "Mary"):
        names["Order"].objects.create(email=f"{name}@example.com")
    run_page("docs/recipes/long_job.md", names)
    run_jobs(raising=True)
    job = Job.objects.get()
    assert (job.result, job.progress.done) == (3, 3)
    assert set(names["Order"].objects.values_list("email", flat=True)) == {
        f"{name}@example.com" for name in ("ada", "grace", "mary")
    }


@pytest.mark.parametrize(("email", "state"), [(None, State.CANCELLED), ("", State.DEAD)])
def test_examples_on_directives_end_as_they_say(shop, email, state):
    tasks = importlib.import_module("shop.tasks")
    order_id = 0 if email is None else tasks.Order.objects.create(email=email).pk
    job = tasks.deliver.enqueue(order_id)
    run_jobs()
    job.refresh_from_db()
    assert job.state == state


def test_examples_on_retries_count_and_retry_dead_jobs(shop, capsys):
    tasks, receivers = importlib.import_module("shop.tasks"), importlib.import_module("shop.receivers")
    retry_dead, count, acknowledge = loose_blocks("docs/guides/retries.md")

    def fail(order_id):
        raise ConnectionError

    tasks.charge.func.__code__ = fail.__code__  # the function on the page is empty, and a task is immutable
    tasks.charge.using(max_attempts=1).enqueue(1)
    with override_settings(ADMINS=["ada@example.com"] if django.VERSION >= (6, 0) else [("Ada", "ada@example.com")]):
        run_jobs()
    assert receivers.mail_dead_job
    assert [message.subject for message in mail.outbox][-1].endswith("shop.tasks.charge is dead")
    exec(count, {})  # noqa: S102 -- our own text
    assert capsys.readouterr().out == "shop.tasks.charge builtins.ConnectionError 1\n"
    exec(retry_dead, {})  # noqa: S102 -- our own text
    assert Job.objects.get(task_name="shop.tasks.charge").state == State.READY
    Job.objects.update(state="dead", finished_at="2026-01-01T00:00Z")
    exec(acknowledge, {})  # noqa: S102 -- our own text
    assert capsys.readouterr().out == "1\n" and Job.objects.acknowledged().exists()


def test_examples_on_progress_show_it(names, capsys):
    names["Order"].objects.create(email="grace@example.com")
    with override_settings(PGQUEUE={"IMMEDIATE": True}):
        run_page("docs/guides/progress.md", names)
        assert capsys.readouterr().out.startswith("2.0 2.0 grace@example.com 20")
        assert names["number_orders"].enqueue().progress.done == 2


def test_examples_on_results_read_and_wait(names, capsys):
    with override_settings(PGQUEUE={"IMMEDIATE": True}):
        run_page("docs/guides/results.md", names)
        assert names["report"]() == 1
    assert capsys.readouterr().out.splitlines() == ["1", "succeeded 1 1", "1 succeeded  "]


def test_examples_on_middleware_carry_tenant_and_trace(shop):
    tasks, middleware = importlib.import_module("shop.tasks"), importlib.import_module("shop.middleware")
    call, *_ = loose_blocks("docs/guides/middleware.md")
    names = dict(vars(tasks))
    with override_settings(PGQUEUE={"MIDDLEWARE": ["shop.middleware.Tenancy", "shop.middleware.Tracing"]}):
        exec(compile(call, "docs/guides/middleware.md", "exec"), names)  # noqa: S102 -- our own text
        token = middleware.tenant.set("grace")
        spans = middleware.traceparent.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        second = tasks.whose.enqueue()
        middleware.traceparent.reset(spans)
        middleware.tenant.reset(token)
        assert second.headers["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert len(names["job"].headers["traceparent"]) == 55
        run_jobs(raising=True)
    assert list(Job.objects.order_by("pk").values_list("result", flat=True)) == ["acme", "grace"]
    child = middleware.child_of(second.headers["traceparent"])
    assert child.startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert child != second.headers["traceparent"]


@for_each(PAGES)
def test_python_blocks_of_page_parse(page):
    for block in blocks(page):
        ast.parse(block)


def test_examples_on_settings_are_valid():
    for block in blocks("docs/reference/settings.md"):
        names: dict[str, object] = {}
        exec(compile(block, "docs/reference/settings.md", "exec"), names)  # noqa: S102 -- our own text
        assert conf.problems(names["PGQUEUE"]) == []
