"""Make the report of an execution from what a remote worker says about its end.

`views` calls these functions in a thread of the engine. They do what an attempt does at its end in a local worker:
encode the result, shorten texts to what PostgreSQL stores, and decide by the task's retry policy when the job runs
again.
"""

from __future__ import annotations

import time

from django_pgqueue.encoding.serialization import encode_result
from django_pgqueue.exceptions import ResultNotStored
from django_pgqueue.ground.attempt_ends import CANCELLED
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.error_text import MAX_CLASS_CHARACTERS, MAX_ERROR_CHARACTERS, class_path, storable
from django_pgqueue.worker.execution.report import Report

from .request_fields import Fields
from .transitions import unknown_here

MAX_TEXT_CHARACTERS = 1_000_000
"""Longer texts are refused. Shorter ones are cut to what an execution stores."""
THEN = ("retry", "dead", "cancel")


def succeeded(alias: str, job: Claimed, fields: Fields) -> Report:
    """Return the report of a success. A result that cannot be stored is a failure, as for a local worker."""
    task = registry.get(job.task_name)
    value = fields.json("result")
    keeps_nothing = task is not None and task.retention_for("succeeded") == (True, 0.0)
    is_discarded = keeps_nothing and not job.in_graph  # as Attempt decides it
    report = _report(job, Ending.DISCARDED if is_discarded else Ending.SUCCEEDED)
    report.task = task
    if task is not None and task.store_result and value is not None:
        try:
            report.result = encode_result(value)
        except (TypeError, ValueError) as error:
            report.ending = Ending.FAILED
            report.error = storable(
                f"the task succeeded, but its result cannot be stored: {error}", MAX_ERROR_CHARACTERS
            )
            report.exception_class = class_path(ResultNotStored())
    return report


def failed(alias: str, job: Claimed, fields: Fields) -> Report:
    """Return the report of a failure, or of a job that its task has cancelled."""
    then = fields.choice("then", THEN, "retry")
    report = _report(job, Ending.CRASHED if fields.flag("crashed") else Ending.FAILED)
    report.exception_class = _text(fields, "exception_class", MAX_CLASS_CHARACTERS)
    report.error = _text(fields, "error", MAX_ERROR_CHARACTERS)
    report.traceback = _text(fields, "traceback", get_settings().MAX_TRACEBACK_BYTES)
    if then == "cancel":
        report.ending, report.error, report.traceback = Ending.CANCELLED, report.error or CANCELLED, ""
    elif then == "retry":
        report.delay_seconds = _retry_delay(alias, job, report, fields.seconds("retry_in_seconds"))
        report.is_exhausted = retry_policy.is_exhausted(job, None, has_crashed=report.ending is Ending.CRASHED)
    return report


def _retry_delay(alias: str, job: Claimed, report: Report, wanted_seconds: float | None) -> float | None:
    """Return the seconds until the next attempt, or None to make the job dead."""
    if wanted_seconds is not None:
        return None if job.attempt >= job.max_attempts else wanted_seconds
    if report.ending is Ending.CRASHED:
        return retry_policy.delay_after_crash(job, alias=alias)
    return retry_policy.delay_after_failure(job, None, alias=alias, in_time=True)


def released(alias: str, job: Claimed, fields: Fields) -> Report:
    """Return the report of a release: at once, until later as by `Snooze`, or because the task is unknown there."""
    reason = _text(fields, "reason", MAX_ERROR_CHARACTERS)
    if fields.flag("unknown"):
        return unknown_here(job, reason or "the remote worker does not know the task")
    delay_seconds = fields.seconds("delay_seconds")
    report = _report(job, Ending.RELEASED if delay_seconds is None else Ending.SNOOZED)
    report.error, report.delay_seconds = reason, delay_seconds
    report.holds_key = fields.flag("holds_key") and delay_seconds is not None
    return report


def _text(fields: Fields, name: str, limit: int) -> str:
    """Return a text of a request, cut to what an execution stores."""
    return storable(fields.text(name, most=MAX_TEXT_CHARACTERS, default=""), limit)


def _report(job: Claimed, ending: Ending) -> Report:
    return Report(job, ending, job.claimed_at, time.monotonic(), task=registry.get(job.task_name))
