"""Cron monitors: the check-ins of the jobs that a schedule enqueues.

The process that fires a schedule puts the monitor into a header of the job. All processes that run the job, or that
find it dead, read the header, so that all check-ins of one job have the same id. A schedule that Sentry cannot
represent, such as one every 30 seconds, has no monitor.
"""

from __future__ import annotations

import json
import math
import re
import uuid
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sentry_sdk.crons import capture_checkin

from django_pgqueue.exceptions import Cancel
from django_pgqueue.schedules import next_ticks

if TYPE_CHECKING:
    from sentry_sdk.types import MonitorConfig

    from django_pgqueue.lifecycle.schedules import Scheduled
    from django_pgqueue.tasks.context import TaskContext

HEADER: Final = "sentry-monitor"
MAX_SLUG: Final = 50
"""The length of a monitor's name in Sentry."""


class CheckIn(NamedTuple):
    """The check-in of one job at the monitor of its schedule."""

    slug: str
    check_in_id: str
    config: MonitorConfig

    def send(self, status: Literal["in_progress", "ok", "error"], seconds: float | None = None) -> None:
        """Send the state of the job, with the seconds that its last attempt took. Sentry creates the monitor."""
        capture_checkin(
            monitor_slug=self.slug,
            check_in_id=self.check_in_id,
            status=status,
            duration=seconds,
            monitor_config=self.config,
        )


def add_header(headers: dict[str, Any], schedule: Scheduled) -> None:
    """Add the monitor of a schedule to the headers of its next job, if Sentry can represent the schedule."""
    config = config_of(schedule.expression, schedule.time_zone, schedule.jitter_seconds)
    if config is not None:
        headers[HEADER] = json.dumps({"slug": slug_of(schedule.name), "id": uuid.uuid4().hex, "config": config})


def check_in_of(headers: Mapping[str, Any]) -> CheckIn | None:
    """Return the check-in of a job from its headers, or None without a readable one."""
    try:
        monitor = json.loads(headers[HEADER])
        return CheckIn(monitor["slug"], monitor["id"], monitor["config"])
    except (KeyError, TypeError, ValueError):
        return None


def check_ins_of(context: TaskContext) -> dict[int | None, CheckIn]:
    """Return the check-in of an attempt, or those of the jobs of a chunk, by their executions."""
    found = {job.execution_id: check_in_of(job.headers) for job in context.chunk or (context,)}
    return {execution_id: check_in for execution_id, check_in in found.items() if check_in is not None}


def send_ends(
    check_ins: Mapping[int | None, CheckIn], context: TaskContext, raised: BaseException | None, seconds: float
) -> None:
    """Send "ok" for each job that has succeeded, and "error" for each that was cancelled. Others may be retried."""
    if not check_ins:
        return
    for job in context.chunk or (context,):
        error = job.chunk_error() or raised
        if job.execution_id in check_ins and isinstance(error, Cancel | None):
            check_ins[job.execution_id].send("ok" if error is None else "error", seconds)


def config_of(expression: str, time_zone: str, jitter_seconds: float = 0.0) -> MonitorConfig | None:
    """Return a schedule in Sentry's form, or None if that has no such schedule."""
    config: dict[str, Any] = {"timezone": time_zone}
    if match := next_ticks.EVERY.fullmatch(expression):
        if match[2] == "second":
            return None
        config["schedule"] = {"type": "interval", "value": int(match[1]), "unit": match[2]}
    else:
        config["schedule"] = {"type": "crontab", "value": next_ticks.NAMED.get(expression, expression)}
    if jitter_seconds:
        config["checkin_margin"] = math.ceil(jitter_seconds / 60) + 1  # minutes; Sentry's default is one
    return config  # type: ignore[return-value]  # a typed dict, made in steps


def slug_of(name: str) -> str:
    """Return the name of a schedule in the characters that Sentry accepts, cut with a checksum if it is too long."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-") or "schedule"
    return slug if len(slug) <= MAX_SLUG else f"{slug[: MAX_SLUG - 9]}-{zlib.crc32(name.encode()):08x}"
