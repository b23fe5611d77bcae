"""`manage.py place_orders`: place orders, so that a worker has something to do."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from example_project.shop.models import Endpoint
from example_project.shop.orders import fulfil_orders, place_order
from example_project.shop.tasks import LARGE_CENTS


class Command(BaseCommand):
    """Place orders."""

    help = "Place orders. Each one is committed together with the jobs for its confirmation and its webhooks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the number of orders, and a receiver of webhooks."""
        parser.add_argument("count", type=int, nargs="?", default=10, help="number of orders")
        parser.add_argument("--endpoint", help="URL that receives a webhook for each order")
        parser.add_argument("--secret", default="secret", help="secret that signs the webhooks of a new endpoint")

        parser.add_argument(
            "--fulfil", action="store_true", help="enqueue a workflow for each order; the last one fails"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Place the orders."""
        if options["endpoint"]:
            Endpoint.objects.get_or_create(url=options["endpoint"], defaults={"secret": options["secret"]})
        orders = [
            place_order(f"customer-{number}@example.com", cents=1000 + number) for number in range(options["count"])
        ]
        if options["fulfil"]:
            orders.append(place_order("large@example.com", cents=LARGE_CENTS))
            self.stdout.write(f"Their workflows are in batch {fulfil_orders(orders).id}: see *Batches* in the admin.")
        self.stdout.write(f"{options['count']} orders placed. Start a worker (`runworker`) to confirm them.")
