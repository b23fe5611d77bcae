"""The shop: its mail, webhooks, payments and nightly report in one process, and with a real worker."""

import importlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.core import mail
from django.db import connection
from django.test import RequestFactory, override_settings
from django.utils import timezone

from django_pgqueue.models import Job, Schedule
from django_pgqueue.states import State
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from example_project.shop.webhooks import is_genuine, signature_of

from .conftest import Start, end
from .http_receiver import Receiver, receiving

SECRET = "s3cret"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def shop(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Install the app with its tables, and return its modules."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    mailers = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    with override_settings(
        INSTALLED_APPS=[*settings.INSTALLED_APPS, "example_project.shop"],
        MAILERS=mailers,
        SHOP_PAYMENT_SECRET=SECRET,
    ):
        with connection.schema_editor() as editor:
            for model in apps.get_app_config("shop").get_models():
                editor.create_model(model)
        names = ("models", "tasks", "orders", "views")
        yield SimpleNamespace(**{name: importlib.import_module(f"example_project.shop.{name}") for name in names})
    for model in apps.all_models.pop("shop", {}).values():
        if admin.site.is_registered(model):  # by the admin's search for apps with an admin module
            admin.site.unregister(model)
    apps.clear_cache()
    for name in ("models", "tasks", "orders", "views", "admin"):
        sys.modules.pop(f"example_project.shop.{name}", None)


def job_of(task: Any) -> Job:
    return Job.objects.filter(task_name=task.name).latest("pk")


# ------------------------------------------------------------------ workflows


def test_order_whose_invoice_fails_is_delivered_without_it(shop: SimpleNamespace) -> None:
    small, large = (shop.orders.place_order("ada@example.com", cents) for cents in (1999, shop.tasks.LARGE_CENTS))
    batch = shop.orders.fulfil_orders([small, large])
    run_jobs()
    delivered = Job.objects.filter(task_name=shop.tasks.hand_over.name).order_by("pk")
    assert [job.return_value for job in delivered] == [
        f"parcel of R-{small.pk}, invoice of C-{small.pk}",
        f"parcel of R-{large.pk}, without invoice",
    ]
    progress = batch.progress()
    assert (progress.total, progress.succeeded, progress.dead) == (12, 10, 1)
    assert Job.objects.waiting().get().task_name == shop.tasks.file_invoice.name
    large.cents = 1
    large.save()
    job_of(shop.tasks.print_invoice).retry()
    run_jobs()
    assert batch.record.succeeded_at is not None


# ------------------------------------------------------------------ mail


@pytest.mark.quick
def test_order_is_confirmed_by_one_mail(shop: SimpleNamespace) -> None:
    order = shop.orders.place_order("ada@example.com", 1999)
    run_jobs(raising=True)
    [message] = mail.outbox
    assert (message.to, message.body) == (["ada@example.com"], f"Thank you for order {order.pk}: 19.99 EUR.")
    assert message.extra_headers["Message-ID"] == f"<order-{order.pk}@shop.example.com>"
    order.refresh_from_db()
    assert order.confirmed_at is not None
    job_of(shop.tasks.send_confirmation).retry()
    run_jobs(raising=True)
    assert len(mail.outbox) == 1, "a second job of a confirmed order sends nothing"


def test_order_that_fails_leaves_no_job(shop: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(event: str, about: dict[str, int]) -> None:
        assert Job.objects.exists()
        raise ZeroDivisionError

    monkeypatch.setattr(shop.orders, "publish", fail)
    with pytest.raises(ZeroDivisionError):
        shop.orders.place_order("ada@example.com", 1999)
    assert not Job.objects.exists()
    assert not shop.models.Order.objects.exists()


def test_confirmation_of_a_deleted_order_is_cancelled(shop: SimpleNamespace) -> None:
    shop.orders.place_order("ada@example.com", 1999).delete()
    run_jobs()
    assert job_of(shop.tasks.send_confirmation).state == State.CANCELLED
    assert mail.outbox == []


def test_confirmation_is_retried_after_an_error(shop: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    send = mail.EmailMessage.send
    outcomes = [ConnectionError("no mail server")]

    def fail_once(message: mail.EmailMessage, *args: Any, **options: Any) -> int:
        if outcomes:
            raise outcomes.pop()
        return send(message, *args, **options)

    monkeypatch.setattr(mail.EmailMessage, "send", fail_once)
    shop.orders.place_order("ada@example.com", 1999)
    run_jobs(until=timedelta(hours=1))
    assert len(mail.outbox) == 1
    assert job_of(shop.tasks.send_confirmation).attempt == 2


# ------------------------------------------------------------------ webhooks


def order_with_endpoint(shop: SimpleNamespace, url: str) -> Job:
    shop.models.Endpoint.objects.create(url=url, secret=SECRET)
    shop.models.Endpoint.objects.create(url="http://127.0.0.1:1/", secret=SECRET, is_active=False)
    shop.orders.place_order("ada@example.com", 1999)
    return job_of(shop.tasks.deliver)


def test_webhook_is_signed_and_repeated_with_one_key(shop: SimpleNamespace, receiver: Receiver) -> None:
    receiver.answers = [(503, {}), (429, {"Retry-After": "5"}), (200, {})]
    job = order_with_endpoint(shop, receiver.url)
    run_jobs(until=timedelta(hours=1))
    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.SUCCEEDED, 3)
    assert shop.models.Delivery.objects.get().delivered_at is not None
    assert len({headers["Idempotency-Key"] for headers, _ in receiver.requests}) == 1
    assert all(is_genuine(headers, body, SECRET) for headers, body in receiver.requests)
    assert {json.loads(body)["event"] for _, body in receiver.requests} == {"order.placed"}


def test_webhook_that_is_refused_is_a_dead_letter(shop: SimpleNamespace, receiver: Receiver) -> None:
    receiver.answers = [(410, {})]
    job = order_with_endpoint(shop, receiver.url)
    run_jobs(until=timedelta(days=1))
    job.refresh_from_db()
    assert (job.state, len(receiver.requests)) == (State.DEAD, 1)
    assert shop.models.Delivery.objects.get().delivered_at is None


# ------------------------------------------------------------------ payments


def pay(shop: SimpleNamespace, order_id: int, *, age: int = 0, secret: str = SECRET, **changed: str) -> tuple[int, str]:
    body = json.dumps({"id": f"event-{order_id}", "order": order_id}).encode()
    now = int(time.time())
    timestamp = str(now - age)
    headers = {
        "HTTP_IDEMPOTENCY_KEY": "event",
        "HTTP_WEBHOOK_TIMESTAMP": timestamp,
        "HTTP_WEBHOOK_SIGNATURE": signature_of(secret, "event", timestamp, body),
    } | changed
    request = RequestFactory().post("/shop/payment/", body, content_type="application/json", **headers)  # type: ignore[arg-type]  # headers are strings
    with patch("time.time", return_value=float(now)):  # an age stays on its side of the limit
        response = shop.views.payment(request)
    return response.status_code, response.content.decode()


def test_payment_is_recorded_once(shop: SimpleNamespace) -> None:
    order = shop.orders.place_order("ada@example.com", 1999)
    assert pay(shop, order.pk) == (202, "accepted")
    assert pay(shop, order.pk) == (202, "known")
    run_jobs(raising=True)
    assert pay(shop, order.pk) == (202, "known")
    order.refresh_from_db()
    assert order.paid_at is not None
    assert Job.objects.filter(task_name=shop.tasks.record_payment.name).count() == 1


WRONG = [
    {"secret": "other"},
    {"age": 301},
    {"age": -301},
    {"HTTP_IDEMPOTENCY_KEY": "another event"},
    {"HTTP_WEBHOOK_SIGNATURE": "sha256=\N{LATIN SMALL LETTER E WITH ACUTE}"},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_payment_with_wrong_signature_or_old_is_refused(shop: SimpleNamespace, wrong: dict[str, Any]) -> None:
    status, text = pay(shop, 1, **wrong)
    assert (status, text) == (400, "the signature is wrong, or the request is too old")
    assert not Job.objects.exists()


# ------------------------------------------------------------------ the nightly report


def test_nightly_report_counts_the_orders_of_yesterday(shop: SimpleNamespace) -> None:
    noon = timezone.now().replace(hour=12, minute=0)
    for days, cents in ((0, 1), (1, 10), (1, 20), (2, 100)):
        shop.models.Order.objects.create(email="a@example.com", cents=cents, placed_at=noon - timedelta(days=days))
    run_jobs(schedules=True)  # from now on there is a schedule
    assert Schedule.objects.get(name=shop.tasks.report_yesterday.name).expression == "30 2 * * *"
    run_jobs(until=timedelta(days=1), schedules=True, raising=True)
    report = shop.models.DailyReport.objects.get()
    assert (report.orders, report.cents) == (2, 30)
    assert report.day == (noon - timedelta(days=1)).date()
    shop.tasks.report_day.enqueue(report.day.isoformat())
    run_jobs(raising=True)
    assert shop.models.DailyReport.objects.count() == 1, "a report that is written again replaces the first one"


# ------------------------------------------------------------------ with a real worker

CHECK = """
from django_pgqueue.models import Job
from example_project.shop.models import Delivery, Order
states = set(Job.objects.values_list("task_name", "state"))
print(sorted(states))
assert {state for _, state in states} == {"succeeded"}, states
assert Order.objects.filter(confirmed_at__isnull=False).count() == 5
assert Delivery.objects.filter(delivered_at__isnull=False).count() == 5
"""


@pytest.mark.process
def test_worker_confirms_orders_and_delivers_webhooks(start: Start, receiver: Receiver) -> None:
    receiver.answers = [(503, {})] * 2
    for command in (("migrate", "--verbosity", 0), ("place_orders", 5, "--endpoint", receiver.url)):
        code, output = end(start(*command))
        assert code == 0, output
    assert "5 orders placed" in output
    worker = start("runworker", "--processes", 1)
    deadline = time.monotonic() + 60
    while len({headers["Idempotency-Key"] for headers, _ in receiver.requests}) < 5 or receiver.answers:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    retry = "from django_pgqueue.models import Job\nJob.objects.filter(state='ready').run_now()"
    while len(receiver.requests) < 7:
        assert time.monotonic() < deadline
        code, output = end(start("shell", "-c", retry))
        assert code == 0, output
        time.sleep(0.5)
    worker.terminate()
    code, output = end(worker)
    assert code == 0, output
    assert output.count("Subject: Your order") == 5
    code, output = end(start("shell", "-c", CHECK))
    assert code == 0, output
