"""`manage.py pgqueue jobs show`: everything about one job, beginning with its state, its reason and its error.

Values of unlimited size are cut by PostgreSQL, and arguments, headers and result are read as text, because Python
cannot decode every JSON value. Sensitive values are hidden, as in the admin.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import itemgetter
from textwrap import indent
from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast, Left, Right

from django_pgqueue import stats
from django_pgqueue.display import Shown, duration, in_line, pretty_json, shown_arguments, shown_result, visible
from django_pgqueue.models import Execution, ExecutionLog, Job, ScheduleRun, Worker
from django_pgqueue.models.operations_link import database_now
from django_pgqueue.states import Outcome, State

from . import shown_steps
from .job_rows import JobRow, read_rows
from .output import Column, Output, date_of
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


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `jobs show`."""
    parser.add_argument("job_id", type=int, metavar="ID", help="Id of the job.")
    add_reading(parser)


def show(options: Options, out: Output) -> None:
    """Print one job. Raise `NotFound` if it does not exist."""
    alias, job_id = database_alias(options), options["job_id"]
    rows = read_rows(alias, [job_id])
    if not rows:
        raise missing_job(job_id, alias)
    [row] = rows
    texts, attempts = _texts(alias, job_id), _attempts(alias, job_id)
    found = stats.why(job_id, alias)
    log = ExecutionLog.latest_of(alias, job_id)
    steps = shown_steps.read_steps(alias, job_id, row.task_name)
    if out.is_json:
        shown = [shown_steps.as_json(step) for step in steps]
        out.json({**_document(row, found, texts, attempts), "steps": shown, "log": _log_as_json(log)})
    else:
        _write(row, found, texts, attempts, out)
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


def _attempts(alias: str, job_id: int) -> list[dict[str, Any]]:
    """Return the latest executions of a job, latest first, with their texts cut by PostgreSQL."""
    executions = Execution.objects.using(alias).filter(job_id=job_id)
    cut = {"error_text": Left("error", ERROR_LIMIT), "traceback_text": Right("traceback", TRACEBACK_LIMIT)}
    columns = ("attempt", "outcome", "worker_id", "claimed_at", "started_at", "finished_at", "exception_class")
    ordered = executions.annotate(**cut, seen_at=database_now()).order_by("-job_id", "-id")
    found = list(ordered.values(*columns, *cut, "seen_at")[:ATTEMPTS_SHOWN])
    workers = Worker.objects.using(alias).in_bulk({each["worker_id"] for each in found})
    return [{**each, "worker": str(workers.get(each["worker_id"], f"#{each['worker_id']}"))} for each in found]


# ---------------------------------------------------------------------------- JSON


def _document(
    row: JobRow, found: stats.Why, texts: dict[str, Any], attempts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
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
        "attempts": [
            {
                "attempt": each["attempt"],
                "outcome": each["outcome"],
                "worker": each["worker"],
                "claimed_at": each["claimed_at"],
                "started_at": each["started_at"],
                "finished_at": each["finished_at"],
                "error_class": each["exception_class"],
                "error": each["error_text"],
                "traceback": each["traceback_text"],
            }
            for each in attempts
        ],
    }


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
    attempts: Sequence[dict[str, Any]],
    out: Output,
) -> None:
    out.write(out.coloured(f"Job {row.pk}: {in_line(row.task_name)}"))
    out.write(out.coloured(in_line(found.sentence), row.word))
    failure = next((each for each in attempts if each["outcome"] in FAILURES), None)
    if failure is not None and row.state != State.SUCCEEDED:
        error = f"{failure['exception_class']}: {failure['error_text']}".strip(": ")
        _section(out, "Error", indent(error, INDENT))
        _section(out, "Traceback", indent(failure["traceback_text"], INDENT))
    arguments = shown_arguments(row.task_name, texts["arguments_text"])
    _section(out, "Arguments", _joined(arguments))
    _section(out, "Result", _joined(shown_result(row.task_name, texts["result_text"])))
    _section(out, "Headers", pretty_json(texts["headers_text"]) if texts["headers_text"] else "")
    _section(out, "Facts", "\n".join(f"{name:<17}{in_line(str(value))}" for name, value in _facts(row, texts)))
    if attempts:
        out.write("\n" + out.coloured("Attempts, latest first"))
        out.table(ATTEMPTS, attempts)
        if len(attempts) == ATTEMPTS_SHOWN:
            out.write(f"The latest {ATTEMPTS_SHOWN} are shown.")


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


def _waited(attempt: dict[str, Any]) -> str:
    started = attempt["started_at"]
    return duration(started - attempt["claimed_at"], brief=True) if started else ""


def _ran(attempt: dict[str, Any]) -> str:
    started, ended = attempt["started_at"], attempt["finished_at"] or attempt["seen_at"]
    return duration(ended - started, brief=True) if started else ""


def _error(attempt: dict[str, Any]) -> str:
    name = attempt["exception_class"].rpartition(".")[2]
    return ": ".join(filter(None, [name, attempt["error_text"].partition("\n")[0]]))


ATTEMPTS: Final = (
    Column("attempt", itemgetter("attempt"), is_number=True),
    Column("outcome", lambda attempt: attempt["outcome"] or "running", is_state=True),
    Column("claimed", lambda attempt: date_of(attempt["claimed_at"])),
    Column("waited", _waited, is_number=True),
    Column("ran", _ran, is_number=True),
    Column("worker", itemgetter("worker"), is_flexible=True),
    Column("error", _error, is_flexible=True),
)
