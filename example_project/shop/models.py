"""Orders, the systems that are notified of them, and the report of each day."""

from django.db import models


class Order(models.Model):
    """An order. Its confirmation is mailed by a job, and its payment is reported by the payment service."""

    email = models.EmailField()
    cents = models.PositiveIntegerField()
    placed_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True)
    paid_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index("placed_at", name="shop_order_placed_at")]

    def __str__(self) -> str:
        return f"order {self.pk}"


class Endpoint(models.Model):
    """The URL of another system that receives webhooks, and the secret that signs them."""

    url = models.URLField()
    secret = models.CharField(max_length=64)
    is_active = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.url


class Delivery(models.Model):
    """A webhook for one endpoint. All its attempts send the same body and the same key, which is its id."""

    endpoint = models.ForeignKey(Endpoint, models.CASCADE, related_name="deliveries")
    body = models.TextField()
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"delivery {self.pk}"


class DailyReport(models.Model):
    """The orders of one day, in the project's time zone."""

    day = models.DateField(primary_key=True)
    orders = models.PositiveIntegerField()
    cents = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["-day"]

    def __str__(self) -> str:
        return f"report of {self.day}"
