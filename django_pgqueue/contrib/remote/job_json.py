"""Turn a claimed job from JSON into what an attempt needs, and its report into a request.

`remote_worker` calls this on the remote machine. Arguments and results travel as plain JSON: the server applies the
project's codecs, so the machine needs none of their keys.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

from django_pgqueue.encoding import codecs
from django_pgqueue.ground.endings import SUCCESSES, Ending
from django_pgqueue.ground.envelope import is_envelope
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.execution.report import Report

from .client import Execution


def claimed_job(execution: Execution) -> Claimed:
    """Return the claimed job that the server describes."""
    within_seconds = execution["start_within_seconds"]
    return Claimed(
        job_id=execution["job_id"],
        execution_id=execution["execution_id"],
        task_name=execution["task"],
        queue_name=execution["queue"],
        priority=execution["priority"],
        run_after=datetime.fromisoformat(execution["run_after"]),
        arguments=json.dumps({"args": execution["args"], "kwargs": execution["kwargs"]}),
        attempt=execution["attempt"],
        max_attempts=execution["max_attempts"],
        crashes=execution["crashes"],
        isolated=execution["isolated"],
        unknown_seconds=None,
        claimed_ms=0.0,
        headers=json.dumps(execution["headers"]) if execution["headers"] else None,
        start_by=None if within_seconds is None else time.monotonic() + within_seconds,
        claimed_at=time.monotonic(),
    )


def request_of(report: Report) -> tuple[str, dict[str, Any]]:
    """Return the operation that writes a report, and its item without the handle."""
    ending = report.ending
    if ending in SUCCESSES:
        return "complete", {"result": _plain_result(report.result)}
    if ending is Ending.CANCELLED:
        return "fail", {"then": "cancel", "error": report.error}
    if ending is Ending.UNKNOWN:
        return "release", {"unknown": True, "reason": report.error}
    if ending in (Ending.SNOOZED, Ending.RELEASED, Ending.POSTPONED):
        return "release", {
            "delay_seconds": report.delay_seconds,
            "reason": report.error,
            "holds_key": report.holds_key,
        }
    return "fail", {
        "exception_class": report.exception_class,
        "error": report.error,
        "traceback": report.traceback,
        "crashed": ending is Ending.CRASHED,
        "then": "dead" if report.delay_seconds is None else "retry",
        "retry_in_seconds": report.delay_seconds,
    }


def _plain_result(text: str | None) -> Any:
    """Return a result as JSON without the codec that this machine may have."""
    value: Any = None if text is None else json.loads(text)
    return codecs.decode(value) if is_envelope(value) else value
