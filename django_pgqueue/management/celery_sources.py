"""Read the entries of a Celery beat schedule: from the settings, a loaded Celery app, and django-celery-beat's tables.

Called by `celery_beat`. It imports nothing of Celery, and writes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.conf import settings
from django.db import connections, router

from django_pgqueue.schedules import next_ticks

BUILT_IN: Final = "celery.backend_cleanup"
"""Celery's own entry, which cleans its result backend."""
TABLES: Final = "django_celery_beat"
OPTIONS: Final = ("queue", "exchange", "routing_key", "priority")


class Entry(NamedTuple):
    """An entry of a beat schedule, as its source has it. A `schedule` of None has no times that can be read."""

    name: str
    task: str
    schedule: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    time_zone: str | None = None
    """The zone of this entry's crontab; None: the zone of the whole beat schedule."""
    is_enabled: bool = True
    is_once: bool = False
    starts_at: datetime | None = None
    ends_at: datetime | None = None


def read_entries() -> list[Entry]:
    """Return all entries, in order of their names.

    Beat copies the entries of the settings into django-celery-beat's tables. If both have a name, the row counts, as it
    does for beat.
    """
    entries = {each.name: each for each in (*_of_settings(), *_of_tables())}
    return [entries[name] for name in sorted(entries) if entries[name].task != BUILT_IN]


def read_time_zone(given: str | None) -> str | None:
    """Return the time zone of the crontabs: the given one, or Celery's. None means that it cannot be known.

    Raises `ValueError` if it is invalid.
    """
    zone = given or _setting("CELERY_TIMEZONE") or getattr(_app_settings(), "timezone", None)
    if not zone:
        is_utc = _setting("CELERY_ENABLE_UTC", default=getattr(_app_settings(), "enable_utc", True))
        return "UTC" if is_utc else None
    next_ticks.check("@daily", str(zone))
    return str(zone)


def _setting(*names: str, default: Any = None) -> Any:
    return next((getattr(settings, name) for name in names if hasattr(settings, name)), default)


def _app_settings() -> Any:
    """Return the configuration of the Celery app that the project has loaded, or None."""
    celery = sys.modules.get("celery")
    app = getattr(celery, "current_app", None)
    if app is None:
        return None
    app.finalize()  # calls the handlers that add periodic tasks
    return app.conf


def _of_settings() -> Iterator[Entry]:
    """Yield the entries of the settings and of the loaded Celery app."""
    entries = dict(_setting("CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE", default=None) or {})
    entries |= dict(getattr(_app_settings(), "beat_schedule", None) or {})
    for name, entry in entries.items():
        yield Entry(
            name=str(name),
            task=str(entry.get("task", "")),
            schedule=entry.get("schedule"),
            args=list(entry.get("args") or ()),
            kwargs=dict(entry.get("kwargs") or {}),
            options=dict(entry.get("options") or {}),
        )


def _of_tables() -> Iterator[Entry]:
    """Yield the rows of django-celery-beat, if that app is installed and migrated."""
    try:
        model: Any = apps.get_model(TABLES, "PeriodicTask")
    except LookupError:
        return
    alias = router.db_for_read(model)
    if model._meta.db_table not in connections[alias].introspection.table_names():
        return
    rows = model._base_manager.using(alias).select_related("crontab", "interval")
    for row in rows.order_by("name"):
        yield _of_row(row)


def _of_row(row: Any) -> Entry:
    options = {name: getattr(row, name, None) for name in OPTIONS}
    options |= {"expires": getattr(row, "expire_seconds", None), "headers": _json(getattr(row, "headers", ""))}
    zone = row.crontab and getattr(row.crontab, "timezone", None)
    return Entry(
        name=row.name,
        task=row.task,
        schedule=_schedule_of(row),
        args=_json(row.args) or [],
        kwargs=_json(row.kwargs) or {},
        options={name: value for name, value in options.items() if value not in (None, "", {})},
        time_zone=str(zone) if zone else None,
        is_enabled=row.enabled,
        is_once=getattr(row, "one_off", False),
        starts_at=getattr(row, "start_time", None),
        ends_at=row.expires,
    )


def _schedule_of(row: Any) -> Any:
    """Return the times of a row: its crontab, the length of its interval, or the row of another kind of schedule."""
    if row.crontab is not None:
        return row.crontab
    if row.interval is not None:
        return timedelta(**{row.interval.period: row.interval.every})
    return getattr(row, "solar", None) or getattr(row, "clocked", None)


def _json(text: str) -> Any:
    """Return a JSON column's value, or its text if it cannot be read: then the check of the arguments refuses it."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
