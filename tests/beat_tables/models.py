"""The columns of django-celery-beat 2.9, as its documentation lists them, without its validation."""

from django.db import models


class SolarSchedule(models.Model):
    """An event of the sun at a place."""

    event = models.CharField(max_length=24)
    latitude = models.DecimalField(max_digits=9, decimal_places=6)
    longitude = models.DecimalField(max_digits=9, decimal_places=6)

    def __str__(self) -> str:
        return self.event


class IntervalSchedule(models.Model):
    """A number of periods."""

    every = models.IntegerField()
    period = models.CharField(max_length=24)

    def __str__(self) -> str:
        return f"every {self.every} {self.period}"


class ClockedSchedule(models.Model):
    """One moment."""

    clocked_time = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.clocked_time)


class CrontabSchedule(models.Model):
    """The five fields of a crontab, and its zone."""

    minute = models.CharField(max_length=240, default="*")
    hour = models.CharField(max_length=96, default="*")
    day_of_month = models.CharField(max_length=124, default="*")
    month_of_year = models.CharField(max_length=64, default="*")
    day_of_week = models.CharField(max_length=64, default="*")
    timezone = models.CharField(max_length=63, default="UTC")

    def __str__(self) -> str:
        return f"{self.minute} {self.hour} {self.day_of_month} {self.month_of_year} {self.day_of_week}"


class PeriodicTask(models.Model):
    """A task with one of the four schedules."""

    name = models.CharField(max_length=200, unique=True)
    task = models.CharField(max_length=200)
    interval = models.ForeignKey(IntervalSchedule, models.CASCADE, null=True)
    crontab = models.ForeignKey(CrontabSchedule, models.CASCADE, null=True)
    solar = models.ForeignKey(SolarSchedule, models.CASCADE, null=True)
    clocked = models.ForeignKey(ClockedSchedule, models.CASCADE, null=True)
    args = models.TextField(default="[]")
    kwargs = models.TextField(default="{}")
    queue = models.CharField(max_length=200, null=True)  # noqa: DJ001 -- as the original
    exchange = models.CharField(max_length=200, null=True)  # noqa: DJ001 -- as the original
    routing_key = models.CharField(max_length=200, null=True)  # noqa: DJ001 -- as the original
    headers = models.TextField(default="{}")
    priority = models.PositiveIntegerField(null=True)
    expires = models.DateTimeField(null=True)
    expire_seconds = models.PositiveIntegerField(null=True)
    one_off = models.BooleanField(default=False)
    start_time = models.DateTimeField(null=True)
    enabled = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.name
