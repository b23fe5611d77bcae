"""The recipes do what they say, on the test's PostgreSQL: `tests/test_docs_examples.py` only runs their blocks."""

import importlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test import RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import Workflow, control
from django_pgqueue.models import Execution, Job, Schedule
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs
from tests.example.http_receiver import Receiver, receiving
from tests.test_docs_examples import names, reports, shop

__all__ = ["names", "reports", "shop"]
pytestmark = pytest.mark.slow


def module(name: str) -> Any:
    return importlib.import_module(f"shop.{name}")


# ------------------------------------------------------------------ backfill


@pytest.fixture
def customers(shop) -> Any:
    """Return the model of 25 customers without a domain."""
    model = module("models").Customer
    model.objects.bulk_create(model(email=f"c{number}@host{number % 3}.example") for number in range(25))
    return model


def test_backfill_fills_every_row_in_chunks(customers):
    tasks, backfill = module("tasks"), module("backfill")
    assert tasks.fill_domains.enqueue_many(backfill.chunks_to_fill(size=10), returning=False) == 3
    assert set(Job.objects.values_list("queue_name", "priority")) == {("backfill", -50)}
    run_jobs(raising=True)
    assert set(customers.objects.values_list("domain", flat=True)) == {f"host{number}.example" for number in range(3)}
    assert sorted(Job.objects.values_list("result", flat=True)) == [5, 10, 10]


def test_backfill_again_continues_with_rows_that_are_left(customers):
    tasks, backfill = module("tasks"), module("backfill")
    tasks.fill_domains.enqueue_many(backfill.chunks_to_fill(size=10), returning=False)
    run_jobs(max_jobs=1, raising=True)
    assert control.clear("backfill") == 2
    customers.objects.create(email="late@host9.example")
    assert customers.objects.filter(domain="").count() == 16
    assert tasks.fill_domains.enqueue_many(backfill.chunks_to_fill(size=10), returning=False) == 2
    run_jobs(raising=True)
    assert not customers.objects.filter(domain="").exists()
    assert list(backfill.chunks_to_fill()) == []


def test_backfill_chunk_that_runs_twice_changes_nothing(customers):
    tasks, backfill = module("tasks"), module("backfill")
    [ends] = backfill.chunks_to_fill()
    assert tasks.fill_domains(*ends) == 25
    assert tasks.fill_domains(*ends) == 0


def test_backfill_queries_read_one_chunk_each(customers):
    """One query for each chunk and one that finds the end, whatever lies before: keys, not offsets."""
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert len(list(module("backfill").chunks_to_fill(size=5))) == 5
    assert len(queries) == 6
    assert not any("OFFSET" in query["sql"] for query in queries)


# ------------------------------------------------------------------ webhooks


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def send_webhook(receiver: Receiver) -> Job:
    models = module("models")
    endpoint = models.Endpoint.objects.create(url=receiver.url, secret="s3cret")  # noqa: S106 -- made up
    delivery = models.Delivery.objects.create(endpoint=endpoint, body='{"event": "é"}')
    job: Job = module("tasks").send_webhook.enqueue(delivery.pk)
    return job


def test_webhook_is_retried_with_one_key_until_the_receiver_accepts(shop, receiver):
    receiver.answers = [(503, {}), (500, {}), (200, {})]
    job = send_webhook(receiver)
    run_jobs(until=timedelta(hours=1))
    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.SUCCEEDED, 3)
    keys = {headers["Idempotency-Key"] for headers, _ in receiver.requests}
    assert len(keys) == 1
    assert [headers["Webhook-Attempt"] for headers, _ in receiver.requests] == ["1", "2", "3"]
    assert {body for _, body in receiver.requests} == {'{"event": "é"}'.encode()}


@pytest.mark.parametrize("code", [302, 308, 400, 404, 410])
def test_webhook_refused_or_redirected_is_dead_after_one_attempt(shop, receiver, code):
    receiver.answers = [(code, {"Location": "/elsewhere"}), (200, {})]
    job = send_webhook(receiver)
    run_jobs(until=timedelta(days=1))
    job.refresh_from_db()
    assert (job.state, len(receiver.requests)) == (State.DEAD, 1)
    assert Execution.objects.get(job=job).exception_class == "shop.tasks.Refused"


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [("7", 5, 7), ("999999", 3590, 3600), ("Wed, 21 Oct 2026 07:28:00 GMT", 8, 13), ("", 8, 13)],
)
def test_webhook_429_waits_as_the_receiver_asks(shop, receiver, header, least, most):
    receiver.answers = [(429, {"Retry-After": header})]
    job = send_webhook(receiver)
    run_jobs()
    job.refresh_from_db()
    assert job.state == State.READY
    ended_at = Execution.objects.get(job=job).finished_at
    assert least < (job.run_after - ended_at).total_seconds() < most + 1


def test_webhook_receiver_that_is_down_is_retried(shop, receiver, unused_port):
    job = send_webhook(receiver)
    module("models").Endpoint.objects.update(url=f"http://127.0.0.1:{unused_port}/")
    run_jobs()
    job.refresh_from_db()
    assert job.state == State.READY


def test_webhook_sent_is_accepted_once_by_the_receiving_view(shop, receiver):
    """What `send_webhook` sends passes the check of `receive`. A second one with the same key adds no job."""
    send_webhook(receiver)
    run_jobs(raising=True)
    [(headers, body)] = receiver.requests
    receive = module("webhook_views").receive

    def post(without: str = "", **changed: str) -> int:
        kept = {name: value for name, value in {**headers, **changed}.items() if name != without}
        sent = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in kept.items()}
        request = RequestFactory().post("/hook", body, content_type="application/json", **sent)
        status: int = receive(request).status_code
        return status

    assert (post(), post()) == (202, 202)
    assert Job.objects.filter(task_name="shop.tasks.process_webhook").count() == 1
    assert post(**{"Webhook-Signature": "sha256=0"}) == 400
    assert post(**{"Webhook-Timestamp": "1"}) == 400
    old = module("webhooks").signature_of("s3cret", headers["Idempotency-Key"], "1", body)
    assert post(**{"Webhook-Timestamp": "1", "Webhook-Signature": old}) == 400
    assert post(**{"Idempotency-Key": "delivery-0"}) == 400
    assert post(**{"Webhook-Signature": "sha256=é"}) == 400
    for name in ("Idempotency-Key", "Webhook-Timestamp", "Webhook-Signature"):
        assert post(without=name) == 400
    assert Job.objects.filter(task_name="shop.tasks.process_webhook").count() == 1


# ------------------------------------------------------------------ a schema for each tenant


@pytest.fixture
def schemas(shop) -> list[str]:
    """Create a schema with a table of orders for two tenants: `acme` has one order, `beta` has two."""
    models = module("models")
    with connection.cursor() as cursor:
        for count, schema in enumerate(["acme", "beta"], 1):
            cursor.execute(f"CREATE SCHEMA {schema}")
            cursor.execute(f"CREATE TABLE {schema}.shop_order (LIKE public.shop_order INCLUDING ALL)")
            cursor.execute(
                f"INSERT INTO {schema}.shop_order (id, email) SELECT n, 'a' FROM generate_series(1, {count}) n"
            )
            models.Tenant.objects.create(schema=schema)
    return ["acme", "beta"]


def test_tenant_schemas_each_job_sees_its_tenant(schemas):
    with override_settings(PGQUEUE={"MIDDLEWARE": ["shop.tenants.SchemaMiddleware"]}):
        run_jobs(schedules=True)  # writes the schedules of the code
        assert Schedule.objects.get(name="shop.tasks.count_all_tenants").expression == "0 3 * * *"
        module("tasks").count_all_tenants.enqueue()
        run_jobs(raising=True)
    counts = Job.objects.filter(task_name="shop.tasks.count_tenant_orders").values_list("headers", "result")
    assert {headers["tenant"]: result for headers, result in counts} == {"acme": 1, "beta": 2}
    with connection.cursor() as cursor:
        cursor.execute("SHOW search_path")
        assert "acme" not in cursor.fetchone()[0]


def test_tenant_schemas_job_of_a_job_keeps_the_tenant(schemas, monkeypatch):
    tasks = module("tasks")

    def enqueue_count() -> None:
        count_tenant_orders.enqueue()  # type: ignore[name-defined]  # noqa: F821 -- a global of the task that it replaces

    monkeypatch.setattr(tasks.count_orders.func, "__code__", enqueue_count.__code__)
    with override_settings(PGQUEUE={"MIDDLEWARE": ["shop.tenants.SchemaMiddleware"]}):
        tasks.count_orders.using(headers={"tenant": "beta"}).enqueue()
        run_jobs(raising=True)
    job = Job.objects.get(task_name="shop.tasks.count_tenant_orders")
    assert (job.headers, job.result) == ({"tenant": "beta"}, 2)


def test_tenant_schemas_cancels_the_jobs_of_one_tenant_only(schemas):
    tasks = module("tasks")
    acme, beta = (tasks.count_tenant_orders.using(headers={"tenant": name}) for name in schemas)
    waiting, running, finished, other = acme.enqueue(), acme.enqueue(), acme.enqueue(), beta.enqueue()
    Job.objects.filter(pk=running.pk).update(state=State.RUNNING)
    run_job_into(finished.pk, State.DEAD)
    assert module("tenant_jobs").cancel_jobs("acme") == 1
    states = {job.pk: job.state for job in Job.objects.all()}
    assert states == {waiting.pk: "cancelled", running.pk: "running", finished.pk: "dead", other.pk: "ready"}
    running.refresh_from_db()
    assert running.cancel_requested_at is not None


def test_tenant_schemas_cancels_a_job_that_waits_for_a_dead_one(schemas):
    acme = module("tasks").count_tenant_orders.using(headers={"tenant": "acme"})
    workflow = Workflow()
    first = workflow.add(acme.s())
    second = workflow.add(acme.s(), after=[first], if_dependency_fails="block")
    workflow.enqueue()
    run_job_into(first.job.pk, State.DEAD)
    assert module("tenant_jobs").cancel_jobs("acme") == 0
    assert Job.objects.get(pk=second.job.pk).state == "cancelled"


# ------------------------------------------------------------------ erasure


def test_erasure_deletes_the_jobs_of_one_person_only(shop):
    tasks, erasure = module("tasks"), module("erasure")
    ada, grace = (tasks.send_letter.using(headers={"customer": number}) for number in (7, 70))
    waiting, dead, other = ada.enqueue("Ada", "1"), ada.enqueue("Ada", "2"), grace.enqueue("Grace", "3")
    unmarked = tasks.send_letter.enqueue("Eve", "4")
    run_job_into(dead.pk, State.DEAD)
    assert erasure.erase(7) == 0
    assert set(Job.objects.values_list("pk", flat=True)) == {other.pk, unmarked.pk}
    assert not Execution.objects.filter(job_id__in=[waiting.pk, dead.pk]).exists()


def run_job_into(job_id: int, state: State) -> None:
    """Close a job with an execution, without calling its task: only the rows matter here."""
    Job.objects.filter(pk=job_id).update(state=state, finished_at=F("enqueued_at"))
    Execution.objects.create(
        job_id=job_id,
        attempt=1,
        worker_id=1,
        outcome="failed",
        finished_at=timezone.now(),
        lease_expires_at=timezone.now(),
        error="no such street: Ada, 1 Main Street",
    )


def test_erasure_of_values_keeps_the_rows(shop):
    tasks, erasure = module("tasks"), module("erasure")
    marked = tasks.send_letter.using(headers={"customer": 7})
    waiting, dead = marked.enqueue("Ada", "1"), marked.enqueue("Ada", "2")
    run_job_into(dead.pk, State.DEAD)
    assert erasure.erase_values(7) == 2
    assert set(Job.objects.values_list("pk", "state")) == {(waiting.pk, "cancelled"), (dead.pk, "dead")}
    assert not erasure.jobs_that_mention("Ada").exists()
    assert erasure.erase_values(7) == 0


def test_erasure_counts_jobs_that_still_run(shop):
    tasks, erasure = module("tasks"), module("erasure")
    job = tasks.send_letter.using(headers={"customer": 7}).enqueue("Ada", "1")
    Job.objects.filter(pk=job.pk).update(state=State.RUNNING)
    assert erasure.erase(7) == 1
    job.refresh_from_db()
    assert job.cancel_requested_at is not None


@pytest.mark.parametrize("text", ["Zoë Müller", "no such street", "half of Zoë"])
def test_erasure_finds_text_in_arguments_errors_and_progress(shop, text):
    tasks, erasure = module("tasks"), module("erasure")
    job = tasks.send_letter.enqueue("Zoë Müller", "1 Main Street")
    tasks.send_letter.enqueue("Grace", "2 Main Street")
    Job.objects.filter(pk=job.pk).update(progress_done=1, progress_message="half of Zoë", progress_at=timezone.now())
    run_job_into(job.pk, State.DEAD)
    assert [found.pk for found in erasure.jobs_that_mention(text)] == [job.pk]
    assert erasure.jobs_that_mention("Main Street").count() == 2
    with connection.cursor() as cursor:
        cursor.execute(r"""UPDATE pgqueue_job SET arguments = '{"args": ["Zo\u00eb"]}' WHERE id = %s""", [job.pk])
    assert [found.pk for found in erasure.jobs_that_mention("Zoë")] == [job.pk]


# ------------------------------------------------------------------ a long job with checkpoints


def test_long_job_with_checkpoint_credits_each_account_once(names, monkeypatch):
    models, tasks = module("models"), module("tasks")
    models.Account.objects.bulk_create(models.Account(cents=10_000) for _ in range(250))
    saves = []
    save = models.Checkpoint.save

    def fail_in_third_step(checkpoint: Any, **options: Any) -> None:
        saves.extend([] if options else [checkpoint.last_key])  # get_or_create() has options
        if len(saves) == 3 and not options:
            raise ConnectionError("the worker is gone after it has credited the accounts")
        save(checkpoint, **options)

    monkeypatch.setattr(models.Checkpoint, "save", fail_in_third_step)
    job = tasks.add_interest.enqueue()
    run_jobs(until=timedelta(hours=1))
    job.refresh_from_db()
    assert (job.state, job.attempt, job.result) == (State.SUCCEEDED, 2, 250)
    assert set(models.Account.objects.values_list("cents", flat=True)) == {10_100}
    assert not models.Checkpoint.objects.exists()


# ------------------------------------------------------------------ order fulfilment


def order_of_one_item(names: dict[str, Any]) -> tuple[Job, Any]:
    """Return a job of `fulfil_order` that waits for the payment, and the item that it has taken."""
    item = module("models").StockItem.objects.create(count=1)
    job = names["fulfil_order"].enqueue(names["order"].pk, item.pk)
    run_jobs(raising=True)
    item.refresh_from_db()
    assert item.count == 0
    return job, item


def test_order_fulfilment_paid_order_is_shipped(names):
    job, item = order_of_one_item(names)
    names["send_event"]("paid", names["order"].pk, {"method": "card"})
    run_jobs(raising=True)
    for row in (job, item, names["order"]):
        row.refresh_from_db()
    assert (job.result, item.count, names["order"].email) == ("paid by card", 0, "shipped@example.com")
    assert Job.objects.count() == 1


@pytest.mark.parametrize("end", ["timeout", "cancel"])
def test_order_fulfilment_unpaid_order_is_undone(names, end):
    job, item = order_of_one_item(names)
    if end == "cancel":
        job.refresh_from_db()
        assert job.cancel()
    run_jobs(until=timedelta(days=4))
    for row in (job, item):
        row.refresh_from_db()
    assert (job.state, item.count) == ("dead" if end == "timeout" else "cancelled", 1)
    undone = Job.objects.exclude(pk=job.pk).order_by("pk").values_list("task_name", "result")
    assert list(undone) == [("shop.tasks.put_back", None), ("shop.tasks.refund_order", f"refund of charge {job.pk}")]


def test_order_fulfilment_out_of_stock_refunds_the_charge(names):
    item = module("models").StockItem.objects.create(count=0)
    job = names["fulfil_order"].enqueue(names["order"].pk, item.pk)
    run_jobs(until=timedelta(hours=1))
    job.refresh_from_db()
    assert job.state == "dead"
    assert list(Job.objects.exclude(pk=job.pk).values_list("task_name", flat=True)) == ["shop.tasks.refund_order"]
