"""The shop's models in the admin. The jobs are in the admin of the queue."""

from typing import TYPE_CHECKING

from django.contrib import admin

from .models import DailyReport, Delivery, Endpoint, Order

if TYPE_CHECKING:
    OrderModelAdmin = admin.ModelAdmin[Order]
    EndpointModelAdmin = admin.ModelAdmin[Endpoint]
    DeliveryModelAdmin = admin.ModelAdmin[Delivery]
    DailyReportModelAdmin = admin.ModelAdmin[DailyReport]
else:
    OrderModelAdmin = EndpointModelAdmin = DeliveryModelAdmin = DailyReportModelAdmin = admin.ModelAdmin


@admin.register(Order)
class OrderAdmin(OrderModelAdmin):
    """The orders, with the times at which their jobs have done their work."""

    list_display = ["pk", "email", "cents", "placed_at", "confirmed_at", "paid_at"]


@admin.register(Endpoint)
class EndpointAdmin(EndpointModelAdmin):
    """The receivers of webhooks."""

    list_display = ["url", "is_active"]


@admin.register(Delivery)
class DeliveryAdmin(DeliveryModelAdmin):
    """The webhooks."""

    list_display = ["pk", "endpoint", "delivered_at"]
    list_select_related = ["endpoint"]


@admin.register(DailyReport)
class DailyReportAdmin(DailyReportModelAdmin):
    """The reports."""

    list_display = ["day", "orders", "cents"]
