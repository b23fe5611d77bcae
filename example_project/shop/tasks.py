"""The tasks of the shop: mail, webhooks, and the nightly report."""

from datetime import date, datetime, time, timedelta

from django.core.mail import EmailMessage
from django.db.models import Count, Sum
from django.utils import timezone

from django_pgqueue import Cancel, Dead, Retry, TaskContext, cron, exponential, task

from . import webhooks
from .models import DailyReport, Delivery, Order

LARGE_CENTS = 100_000
"""Invoices from this amount on are not printed."""


@task(queue_name="mail", max_attempts=8, timeout=60, backoff=exponential(30, cap=3600), search=("order_id",))
def send_confirmation(order_id: int) -> str:
    """Mail the confirmation of an order, and return the address.

    If the worker dies after the mail and before `confirmed_at` is written, the next attempt sends the mail again. Both
    have the same Message-ID, so mail programs show one.
    """
    order = Order.objects.filter(pk=order_id).first()
    if order is None:
        raise Cancel("the order is gone")
    if order.confirmed_at is None:
        mail = EmailMessage(
            "Your order", f"Thank you for order {order.pk}: {order.cents / 100:.2f} EUR.", to=[order.email]
        )
        mail.extra_headers["Message-ID"] = f"<order-{order.pk}@shop.example.com>"
        mail.send()
        Order.objects.filter(pk=order.pk).update(confirmed_at=timezone.now())
    return order.email


@task(
    queue_name="webhooks",
    max_attempts=12,
    timeout=30,
    backoff=exponential(10, cap=6 * 3600),
    no_retry_for=webhooks.Refused,
)
def deliver(delivery_id: int) -> None:
    """Send a webhook. The job of a receiver that refuses it is a dead letter, which an operator can retry."""
    delivery = Delivery.objects.select_related("endpoint").get(pk=delivery_id)
    try:
        webhooks.send(
            delivery.endpoint.url,
            delivery.body.encode(),
            secret=delivery.endpoint.secret,
            key=f"delivery-{delivery.pk}",
        )
    except webhooks.Busy as busy:
        raise Retry(str(busy), after=busy.after_seconds) from busy
    Delivery.objects.filter(pk=delivery.pk).update(delivered_at=timezone.now())


@task(unique_key=lambda event_id, order_id: event_id, unique_while=timedelta(days=1), atomic=True)
def record_payment(event_id: str, order_id: int) -> bool:
    """Record a payment, and return whether it was new. One job for each event, however often the service sends it."""
    unpaid = Order.objects.filter(pk=order_id, paid_at__isnull=True)
    return bool(unpaid.update(paid_at=timezone.now()))


@task
def reserve_stock(order_id: int) -> str:
    """Reserve the goods of an order, and return the number of the reservation. Begins the workflow of an order."""
    return f"R-{order_id}"


@task
def charge_card(order_id: int) -> str:
    """Charge the card, and return the number of the charge. The key of the payment is that of the order."""
    return f"C-{order_id}"


@task(max_attempts=1)
def print_invoice(charge: str, order_id: int) -> str:
    """Print the invoice of a charge. A person has to write large ones, so such a job is a dead letter."""
    if Order.objects.get(pk=order_id).cents >= LARGE_CENTS:
        raise Dead("an invoice above 1,000 EUR needs a signature")
    return f"invoice of {charge}"


@task
def pack_parcel(reservation: str) -> str:
    """Pack the goods of a reservation, and return the number of the parcel."""
    return f"parcel of {reservation}"


@task
def hand_over(parcel: str | None, invoice: str | None) -> str:
    """Hand a parcel to the carrier, with its invoice if there is one."""
    return f"{parcel or 'no parcel'}, {invoice or 'without invoice'}"


@task
def file_invoice(invoice: str) -> str:
    """File an invoice. If it was not printed, this job waits for an operator's retry."""
    return f"filed: {invoice}"


@task(schedule=cron("30 2 * * *"), expires=timedelta(hours=12))
def report_yesterday() -> str:
    """Enqueue the report of the day that has ended, and return that day."""
    day = (timezone.localdate() - timedelta(days=1)).isoformat()
    report_day.enqueue(day)
    return day


@task(atomic=True, unique_key=lambda day: day, takes_context=True)
def report_day(context: TaskContext, day: str) -> dict[str, int]:
    """Write the report of a day, again if there is one. Also enqueued by hand, for an earlier day."""
    start = datetime.combine(date.fromisoformat(day), time.min, tzinfo=timezone.get_default_timezone())
    orders = Order.objects.filter(placed_at__gte=start, placed_at__lt=start + timedelta(days=1))
    figures = orders.aggregate(orders=Count("pk"), cents=Sum("cents", default=0))
    DailyReport.objects.update_or_create(day=start.date(), defaults=figures)
    context.progress(1, 1, f"{figures['orders']} orders")
    return figures
