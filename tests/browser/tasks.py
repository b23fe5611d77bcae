"""Tasks with limits for the browser tests and the screenshots. No worker runs them."""

from __future__ import annotations

from django_pgqueue import Breaker, Limit, task

SUPPLIERS = Limit("catalogue", key="supplier:{supplier_id}", ordered=True, on_dead="block")
PAYMENTS = Limit("payments", rate="100/m", burst=10)
TENANTS = Limit("tenants", key="{tenant}", concurrency=2)
BREAKER = Breaker(failures=0.5, attempts=20, seconds=60, pause=300)
CARRIERS = Limit("carriers", key="{carrier}", concurrency=6, breaker=BREAKER)
TAX = Limit("tax", concurrency=8, breaker=BREAKER)


@task(name="shop.catalogue.import_file", limit=SUPPLIERS)
def import_file(supplier_id: int, path: str = "") -> None:
    """Import the catalogue of a supplier."""


@task(name="shop.payments.charge_card", limit=PAYMENTS)
def charge_card(order_id: int) -> None:
    """Charge the card of an order."""


@task(name="shop.reports.rebuild_report", limit=TENANTS)
def rebuild_report(tenant: str) -> None:
    """Rebuild the report of a tenant."""


@task(name="shop.parcels.book_parcel", limit=CARRIERS)
def book_parcel(carrier: str) -> None:
    """Book a parcel at a carrier."""


@task(name="shop.tax.report_tax", limit=TAX)
def report_tax(order_id: int) -> None:
    """Report the tax of an order."""
