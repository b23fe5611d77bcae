"""`manage.py pgqueue jobs show`: everything about one job, beginning with its state, its reason and its error.

Values of unlimited size are cut by PostgreSQL, and arguments, headers and result are read as text, because Python
cannot decode every JSON value. Sensitive values are hidden, as in the admin.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from textwrap import indent
from typing import Any, Final, NamedTuple

from django.db.models import TextField
from django.db.models.functions import Cast, Left, Right

from django_pgqueue import stats
from django_pgqueue.acts.acknowledgements import Acknowledgement, acknowledgement_of
from django_pgqueue.acts.job_retries import SHOWN, JobRetry, retries_before, retries_of
from django_pgqueue.display import Shown, duration, in_line, pretty_json, shown_arguments, shown_result, visible
from django_pgqueue.ground.attempt_ends import STACK_START, Loss, end_of
from django_pgqueue.models import Execution, ExecutionLog, Job, ScheduleRun, Worker
from django_pgqueue.models.operations_link import database_now, lease_end
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import Outcome, State

from . import shown_steps
from .job_rows import JobRow, read_rows
from .output import Column, Output, date_of
from .parsers import row_id
from .subcommand import Options, add_reading, database_alias
from .why_command import missing_job

TEXT_LIMIT: Final = 100_000
"""Characters shown of the arguments, the headers and the result."""
ERROR_LIMIT: Final = 2_000
TRACEBACK_LIMIT: Final = 20_000
"""Characters shown of an error (its start) and of a traceback (its end)."""
ATTEMPTS_SHOWN: Final = 50
"""Latest executions shown. A job that snoozes every minute has 10,000 executions a week."""
INDENT: Final = "  "
"""Each line of an error, a traceback or a log begins with it, so that it cannot look like a heading or a fact."""
FAILURES: Final = (Outcome.FAILED, Outcome.CRASHED)


class ShownAttempt(NamedTuple):
    """An attempt as the command shows it.

    Attributes:
        row: The columns of the execution.
        worker: The name of its worker.
        loss: What is known of it if it was lost.
        still_runs: Whether its code may still run although it has ended.
        after: The retry after which its number counts.
    """

    row: Any
    worker: str
    loss: Loss | None
    still_runs: bool
    after: JobRetry | None

    @property
    def is_failure(self) -> bool:
        """Whether its text is an error."""
        return self.row.outcome in FAILURES


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `jobs show`."""
    parser.add_argument("job_id", type=row_id, metavar="ID", help="Id of the job.")
    add_reading(parser)


def show(options: Options, out: Output) -> None:
    """Print one job. Raise `NotFound` if it does not exist."""
    alias, job_id = database_alias(options), options["job_id"]
    rows = read_rows(alias, [job_id])
    if not rows:
        raise missing_job(job_id, alias)
    [row] = rows
    texts, retries = _texts(alias, job_id), retries_of(alias, job_id)
    acknowledgement = acknowledgement_of(alias, row)
    attempts, retries = _attempts(row, alias, retries), retries[-SHOWN:]
    found = stats.why(job_id, alias, time_text=None if out.is_json else date_of)
    log = ExecutionLog.latest_of(alias, job_id)
    steps = shown_steps.read_steps(alias, job_id, row.task_name)
    if out.is_json:
        shown = [shown_steps.as_json(step) for step in steps]
        more = {
            "retries": list(map(_retry_as_json, retries)),
            "acknowledgement": acknowledgement and acknowledgement._asdict(),
            "steps": shown,
            "log": _log_as_json(log),
        }
        out.json({**_document(row, found, texts, attempts), **more})
    else:
        _write(row, found, texts, attempts, out)
        if acknowledgement is not None:
            _section(out, "Acknowledged", _acknowledged(acknowledgement))
        _section(out, "Retries", "\n".join(f"{date_of(each.at)}  {in_line(_retry(each))}" for each in retries))
        if steps:
            out.write("\n" + out.coloured("Steps"))
            out.table(shown_steps.COLUMNS, steps)
        if log is not None:
            _section(out, f"Log of attempt {log.execution.attempt}", indent(log.text, INDENT))


# ---------------------------------------------------------------------------- what is read


def _texts(alias: str, job_id: int) -> dict[str, Any]:
    """Return the further columns of a job. The JSON columns are text, cut by PostgreSQL."""
    columns = ("arguments", "headers", "result")
    cut = {f"{column}_text": Left(Cast(column, TextField()), TEXT_LIMIT) for column in columns}
    jobs = Job.objects.using(alias).filter(pk=job_id).annotate(**cut)
    more = ("unique_key", "crashes", "isolated", "expires_at", "unknown_since", "progress_done", "progress_total")
    found = jobs.values(*cut, *more, "progress_message").first() or {}
    run = ScheduleRun.objects.using(alias).filter(job_id=job_id).select_related("schedule").first()
    return {**found, "schedule": run and run.schedule.name}


def _attempts(job: JobRow, alias: str, retries: Sequence[JobRetry]) -> list[ShownAttempt]:
    """Return the latest executions of a job, latest first, with their texts cut by PostgreSQL."""
    executions = Execution.objects.using(alias).filter(job_id=job.pk)
    cut = {
        "error_text": Left("error", ERROR_LIMIT),
        "traceback_text": Right("traceback", TRACEBACK_LIMIT),
        "stack_start": Left("traceback", STACK_START),
    }
    columns = ("attempt", "outcome", "worker_id", "claimed_at", "started_at", "finished_at", "exception_class")
    ordered = executions.annotate(**cut, seen_at=database_now(), lease_end=lease_end()).order_by("-job_id", "-id")
    found = list(ordered.values_list(*columns, *cut, "seen_at", "lease_end", named=True)[:ATTEMPTS_SHOWN])
    workers = Worker.objects.using(alias).in_bulk({each.worker_id for each in found})
    after = retries_before(found, retries)
    return [_attempt(job, row, workers.get(row.worker_id), retry) for row, retry in zip(found, after, strict=True)]


def _attempt(job: JobRow, row: Any, worker: Worker | None, after: JobRetry | None) -> ShownAttempt:
    end = end_of(
        row,
        row.error_text,
        row.stack_start,
        lease_end=row.lease_end,
        heartbeat_at=worker.last_heartbeat_at if worker else None,
        stopped_at=worker.stopped_at if worker else None,
        seen_at=row.seen_at,
        lease_seconds=get_settings().LEASE,
    )
    is_running = row.outcome is None and job.state == State.RUNNING
    return ShownAttempt(row, str(worker or f"#{row.worker_id}"), end.loss, end.may_still_run and not is_running, after)


# ---------------------------------------------------------------------------- JSON


def _document(row: JobRow, found: stats.Why, texts: dict[str, Any], attempts: Sequence[ShownAttempt]) -> dict[str, Any]:
    """Return the job with the documented keys. A hidden value has a note instead of a text."""
    return {
        **row.as_json(),
        "why": found,
        "arguments": _as_json(shown_arguments(row.task_name, texts["arguments_text"])),
        "headers": texts["headers_text"],
        "result": _as_json(shown_result(row.task_name, texts["result_text"])),
        "cancel_requested_at": row.cancel_requested_at,
        "expires_at": texts["expires_at"],
        "unique_key": texts["unique_key"],
        "schedule": texts["schedule"],
        "attempts": list(map(_attempt_as_json, attempts)),
    }


def _attempt_as_json(attempt: ShownAttempt) -> dict[str, Any]:
    row, loss = attempt.row, attempt.loss
    return {
        "attempt": row.attempt,
        "outcome": row.outcome,
        "worker": attempt.worker,
        "claimed_at": row.claimed_at,
        "started_at": loss.started_at if loss else row.started_at,
        "finished_at": row.finished_at,
        "error_class": row.exception_class,
        "error": row.error_text,
        "traceback": row.traceback_text,
        "is_lost": loss is not None,
        "last_seen_at": loss and loss.last_seen_at,
        "may_still_run": attempt.still_runs,
        "after_retry": attempt.after and _retry_as_json(attempt.after),
    }


def _retry_as_json(retry: JobRetry) -> dict[str, Any]:
    return {"at": retry.at, "by": retry.by, "reason": retry.reason}


def _log_as_json(log: ExecutionLog | None) -> dict[str, Any] | None:
    if log is None:
        return None
    lines = [line._asdict() for line in log.lines]
    return {"attempt": log.execution.attempt, "lines": lines, "cut_lines": log.cut_lines}


def _as_json(shown: Shown | None) -> dict[str, str] | None:
    return None if shown is None else {"text": shown.text, "note": shown.note}


# ---------------------------------------------------------------------------- text


def _write(
    row: JobRow,
    found: stats.Why,
    texts: dict[str, Any],
    attempts: Sequence[ShownAttempt],
    out: Output,
) -> None:
    out.write(out.coloured(f"Job {row.pk}: {in_line(row.task_name)}"))
    out.write(out.coloured(in_line(found.sentence), row.word))
    if attempts and attempts[0].still_runs and row.state != State.RUNNING:
        out.write(in_line(f"The code of attempt {attempts[0].row.attempt} may still run on {attempts[0].worker}."))
    since = takewhile(
        lambda each: each.row.outcome != Outcome.SUCCEEDED, attempts
    )  # an earlier error is of no interest
    failure = next((each for each in since if each.is_failure), None)
    if failure is not None and row.state != State.SUCCEEDED:
        _write_failure(failure, attempts[0], out)
    arguments = shown_arguments(row.task_name, texts["arguments_text"])
    _section(out, "Arguments", _joined(arguments))
    _section(out, "Result", _joined(shown_result(row.task_name, texts["result_text"])))
    _section(out, "Headers", pretty_json(texts["headers_text"]) if texts["headers_text"] else "")
    _section(out, "Facts", "\n".join(f"{name:<17}{in_line(str(value))}" for name, value in _facts(row, texts)))
    if attempts:
        out.write("\n" + out.coloured("Attempts, latest first"))
        out.table([*ATTEMPTS, AFTER] if any(each.after for each in attempts) else ATTEMPTS, attempts)
        if len(attempts) == ATTEMPTS_SHOWN:
            out.write(f"The latest {ATTEMPTS_SHOWN} are shown.")


def _write_failure(failure: ShownAttempt, latest: ShownAttempt, out: Output) -> None:
    """Print the error of the last attempt that failed, with its number and its end. It may not be the latest one."""
    row = failure.row
    later = "" if failure is latest else f", the last that failed before attempt {latest.row.attempt}"
    later += f" (after {_after(latest)})" if later and latest.after else ""
    error = f"{row.exception_class}: {row.error_text}".strip(": ")
    _section(out, f"Error of attempt {row.attempt}{later}, at {date_of(row.finished_at)}", indent(error, INDENT))
    _section(out, f"Traceback of attempt {row.attempt}", indent(row.traceback_text, INDENT))


def _section(out: Output, heading: str, text: str) -> None:
    if text.strip():
        out.write("\n" + out.coloured(heading))
        out.write(visible(text.rstrip()))


def _joined(shown: Shown | None) -> str:
    return "" if shown is None else "\n".join(filter(None, [shown.text, shown.note]))


def _facts(row: JobRow, texts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the facts that the job has."""
    progress = texts["progress_done"]
    total = "" if texts["progress_total"] is None else f" of {texts['progress_total']:g}"
    facts = [
        ("Queue", row.queue_name),
        ("Priority", row.priority),
        ("Limit key", row.own_limit_key),
        ("Attempt", f"{row.attempt} of {row.max_attempts}"),
        ("Crashes", texts["crashes"] or None),
        ("Runs", "in an isolated process" if texts["isolated"] else None),
        ("Enqueued", row.enqueued_at),
        ("Due", _due(row)),
        ("Expires", texts["expires_at"]),
        ("Finished", row.finished_at),
        ("Cancel requested", row.cancel_requested_at),
        ("Task unknown since", texts["unknown_since"]),
        ("Unique key", texts["unique_key"]),
        ("Schedule", texts["schedule"]),
        ("Progress", None if progress is None else f"{progress:g}{total} {texts['progress_message'] or ''}".strip()),
    ]
    for name, value in facts:
        if value is not None:
            yield name, date_of(value) if isinstance(value, datetime) else value


def _due(row: JobRow) -> datetime | str | None:
    """Return when the job is due. None for a job of a workflow that waits and is not delayed."""
    if row.waits_for_event:
        return "when its event comes"
    return row.run_after if row.state != State.WAITING or row.run_after > row.seen_at else None


def _waited(attempt: ShownAttempt) -> str:
    started = attempt.loss.started_at if attempt.loss else attempt.row.started_at
    return duration(started - attempt.row.claimed_at, brief=True) if started else ""


def _ran(attempt: ShownAttempt) -> str:
    started, ended = attempt.row.started_at, attempt.row.finished_at or attempt.row.seen_at
    if attempt.loss is not None:
        return "not known"
    return duration(ended - started, brief=True) if started else ""


def _outcome(attempt: ShownAttempt) -> str:
    return attempt.row.outcome or ("lost" if attempt.loss else "running")


def _error(attempt: ShownAttempt) -> str:
    name = attempt.row.exception_class.rpartition(".")[2]
    error = ": ".join(filter(None, [name, attempt.row.error_text.partition("\n")[0]]))
    return "; ".join(filter(None, [_loss(attempt), error]))


def _loss(attempt: ShownAttempt) -> str:
    """Return what is known of a lost attempt: its start, its last heartbeat, and when the loss was found."""
    loss = attempt.loss
    if loss is None:
        return ""
    parts = {"started at": loss.started_at, "last seen": loss.last_seen_at, "found lost at": loss.found_at}
    return ", ".join(f"{name} {date_of(at)}" for name, at in parts.items() if at is not None)


def _retry(retry: JobRetry) -> str:
    """Return who has retried the job. A retry that the audit does not have has no name."""
    if not retry.is_read:
        return "an earlier retry"
    if retry.at is None:
        return "a retry that the audit does not have"
    by = retry.by or "an operator"
    text = f"{by} began to retry several jobs, this one included" if retry.is_bulk else f"retried by {by}"
    return f"{text}: {retry.reason}" if retry.reason else text


def _acknowledged(acknowledgement: Acknowledgement) -> str:
    by = acknowledgement.by or "a program that wrote no audit"
    return in_line(f"{date_of(acknowledgement.at)}  by {by}: {acknowledgement.reason}".rstrip(": "))


def _after(attempt: ShownAttempt) -> str:
    retry = attempt.after
    return "" if retry is None else _retry(retry) if retry.at is None else f"the retry of {retry.by or 'an operator'}"


ATTEMPTS: Final = (
    Column("attempt", lambda attempt: attempt.row.attempt, is_number=True),
    Column("outcome", _outcome, is_state=True),
    Column("claimed", lambda attempt: date_of(attempt.row.claimed_at)),
    Column("waited", _waited, is_number=True),
    Column("ran", _ran, is_number=True),
    Column("worker", lambda attempt: attempt.worker, is_flexible=True),
    Column("error", _error, is_flexible=True),
)
AFTER: Final = Column("after", _after, is_flexible=True)
"""The retry after which the number of an attempt counts. Only a job that was retried has this column."""
