"""Place orders. Invariant: an order, its webhooks and all their jobs are committed together."""

import json

from django.db import transaction
from django.utils import timezone

from django_pgqueue import Batch, Workflow

from .models import Delivery, Endpoint, Order
from .tasks import (
    charge_card,
    deliver,
    file_invoice,
    hand_over,
    pack_parcel,
    print_invoice,
    reserve_stock,
    send_confirmation,
)


def place_order(email: str, cents: int) -> Order:
    """Add an order, and enqueue its confirmation and a webhook for each endpoint."""
    with transaction.atomic():
        order = Order.objects.create(email=email, cents=cents, placed_at=timezone.now())
        send_confirmation.enqueue(order.pk)
        publish("order.placed", {"order": order.pk, "cents": cents})
    return order


def fulfil_orders(orders: list[Order]) -> Batch:
    """Enqueue a workflow for each order, nested in one batch, and return the batch."""
    with Batch(description=f"Fulfilment of {len(orders)} orders") as batch:
        for order in orders:
            fulfil_order(order, batch)
    return batch


def fulfil_order(order: Order, parent: Batch | None = None) -> Workflow:
    """Enqueue the workflow of an order. The parcel does not wait for a retry of the invoice, but the archive does."""
    workflow = Workflow(description=f"Order {order.pk}", parent=parent)
    reservation = workflow.add(reserve_stock.s(order.pk))
    charge = workflow.add(charge_card.s(order.pk), after=[reservation])
    invoice = workflow.add(print_invoice.s(charge.result, order.pk))
    parcel = workflow.add(pack_parcel.s(reservation.result), after=[charge])
    workflow.add(hand_over.s(parcel.result_or_none, invoice.result_or_none), if_dependency_fails="ignore")
    workflow.add(file_invoice.s(invoice.result), if_dependency_fails="block")
    return workflow.enqueue()


def publish(event: str, about: dict[str, int]) -> list[Delivery]:
    """Add a webhook for each active endpoint, and the jobs that send them, in the caller's transaction."""
    body = json.dumps({"event": event, **about})
    with transaction.atomic():
        deliveries = Delivery.objects.bulk_create(
            Delivery(endpoint=endpoint, body=body) for endpoint in Endpoint.objects.filter(is_active=True)
        )
        deliver.enqueue_many((delivery.pk,) for delivery in deliveries)
    return deliveries
