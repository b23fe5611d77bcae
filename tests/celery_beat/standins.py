"""Objects with the documented attributes of Celery's schedules, because Celery is not installed with the tests.

`test_celery_itself.py` compares them with Celery's own objects where Celery is installed.
"""

from datetime import timedelta
from typing import Any


class Crontab:
    """Like `celery.schedules.crontab`: its fields are sets of numbers. The tests pass the sets that Celery computes."""

    def __init__(self, **fields: Any) -> None:
        self.minute = fields.pop("minute", set(range(60)))
        self.hour = fields.pop("hour", set(range(24)))
        self.day_of_month = fields.pop("day_of_month", set(range(1, 32)))
        self.month_of_year = fields.pop("month_of_year", set(range(1, 13)))
        self.day_of_week = fields.pop("day_of_week", set(range(7)))
        self.nowfun = fields.pop("nowfun", None)
        assert not fields


class Every:
    """Like `celery.schedules.schedule`."""

    def __init__(self, run_every: timedelta) -> None:
        self.run_every = run_every
        self.relative = False
        self.nowfun = None


class Solar:
    """Like `celery.schedules.solar`."""

    def __init__(self, event: str, lat: float, lon: float) -> None:
        self.event, self.lat, self.lon = event, lat, lon
