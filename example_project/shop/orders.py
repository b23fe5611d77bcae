"""Place orders. Invariant: an order, its webhooks and all their jobs are committed together."""

import json

from django.db import transaction
from django.utils import timezone

from .models import Delivery, Endpoint, Order
from .tasks import deliver, send_confirmation


def place_order(email: str, cents: int) -> Order:
    """Add an order, and enqueue its confirmation and a webhook for each endpoint."""
    with transaction.atomic():
        order = Order.objects.create(email=email, cents=cents, placed_at=timezone.now())
        send_confirmation.enqueue(order.pk)
        publish("order.placed", {"order": order.pk, "cents": cents})
    return order


def publish(event: str, about: dict[str, int]) -> list[Delivery]:
    """Add a webhook for each active endpoint, and the jobs that send them, in the caller's transaction."""
    body = json.dumps({"event": event, **about})
    with transaction.atomic():
        deliveries = Delivery.objects.bulk_create(
            Delivery(endpoint=endpoint, body=body) for endpoint in Endpoint.objects.filter(is_active=True)
        )
        deliver.enqueue_many((delivery.pk,) for delivery in deliveries)
    return deliveries
