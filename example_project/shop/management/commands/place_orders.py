"""`manage.py place_orders`: place orders, so that a worker has something to do."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from example_project.shop.models import Endpoint
from example_project.shop.orders import place_order


class Command(BaseCommand):
    """Place orders."""

    help = "Place orders. Each one is committed together with the jobs for its confirmation and its webhooks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the number of orders, and a receiver of webhooks."""
        parser.add_argument("count", type=int, nargs="?", default=10, help="number of orders")
        parser.add_argument("--endpoint", help="URL that receives a webhook for each order")
        parser.add_argument("--secret", default="secret", help="secret that signs the webhooks of a new endpoint")

    def handle(self, *args: Any, **options: Any) -> None:
        """Place the orders."""
        if options["endpoint"]:
            Endpoint.objects.get_or_create(url=options["endpoint"], defaults={"secret": options["secret"]})
        for number in range(options["count"]):
            place_order(f"customer-{number}@example.com", cents=1000 + number)
        self.stdout.write(f"{options['count']} orders placed. Start a worker (`runworker`) to confirm them.")
