"""`manage.py pgqueue batch list|show|close`: list batches, print one with its progress, and close it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final, NamedTuple

from django.db.models.functions import Left

from django_pgqueue.acts.batch_closing import close_batch
from django_pgqueue.composed.batches import Batch
from django_pgqueue.display import in_line
from django_pgqueue.models import JobBatch
from django_pgqueue.models.batch_states import CONDITIONS, FAILED, stage_of, word_of
from django_pgqueue.stats.batch_counts import BatchCounts, batch_counts

from .output import Column, Output, date_of
from .parsers import row_id
from .subcommand import (
    NotFound,
    Options,
    Subcommand,
    UsageError,
    add_database,
    add_json,
    add_reading,
    database_alias,
    user_name,
)

BLOCKED: Final = "No job is ready or running. Waiting jobs depend on failed ones: retry those, or cancel the rest."


TIMES: Final = ("created_at", "closed_at", "failed_at", "completed_at", "succeeded_at")
CALLBACKS: Final = ("on_success", "on_complete", "on_failure")
COUNTED: Final = 10_000
"""Jobs of each batch and state that the list counts at most."""
MOST: Final = 1_000
DESCRIPTION_SHOWN: Final = 200
STATE_COUNTS: Final = ("succeeded", "dead", "cancelled", "running", "ready", "waiting")


class ListedBatch(NamedTuple):
    """A batch of the list, with the number of its jobs."""

    batch: Any
    counts: BatchCounts

    def jobs(self) -> str:
        """Return how many jobs are in each state."""
        counts = {state: getattr(self.counts, state) for state in STATE_COUNTS}
        return ", ".join(f"{count} {state}" for state, count in counts.items() if count.value) or "no jobs"


COLUMNS: Final = (
    Column("batch", lambda each: str(each.batch.pk), is_number=True),
    Column("state", lambda each: state_of(each.batch), is_state=True),
    Column("created", lambda each: date_of(each.batch.created_at)),
    Column("jobs", ListedBatch.jobs),
    Column("description", lambda each: each.batch.text, is_flexible=True),
)


def _add_list_arguments(parser: ArgumentParser) -> None:
    states = ", ".join(CONDITIONS)
    parser.add_argument("--state", choices=CONDITIONS, metavar="STATE", help=f"Batches in this state: {states}.")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="Batches to print at most. Default: 50.")
    add_reading(parser)


def _list(options: Options, out: Output) -> None:
    alias, limit = database_alias(options), options["limit"]
    if not 1 <= limit <= MOST:
        raise UsageError(f"Invalid --limit {limit}: use a number from 1 to {MOST:,}.")
    chosen = CONDITIONS[options["state"]] if options["state"] else {}
    rows = JobBatch.objects.using(alias).filter(**chosen).defer("description", *CALLBACKS)
    found = list(rows.annotate(text=Left("description", DESCRIPTION_SHOWN)).order_by("-pk")[: limit + 1])
    batches = found[:limit]
    counts = batch_counts([batch.pk for batch in batches], COUNTED, alias) if batches else {}
    listed = [ListedBatch(batch, counts[batch.pk]) for batch in batches]
    has_more = len(found) > limit
    number = f"{len(batches):,} {'batch' if len(batches) == 1 else 'batches'}"
    summary = f"{number}.{' There are more: pass --limit.' if has_more else ''}"
    out.listing("batches", COLUMNS, listed, summary, _as_json, has_more=has_more)


def state_of(batch: JobBatch) -> str:
    """Return the word for the state, and for a failed batch whether it is open, running or complete."""
    word = word_of(batch)
    return f"{word}, {stage_of(batch)}" if word == FAILED else word


def _as_json(listed: ListedBatch) -> dict[str, Any]:
    """Return a batch with the documented keys."""
    batch, counts = listed
    return {
        "batch_id": batch.pk,
        "description": batch.text,
        "parent_id": batch.parent_id,
        "state": word_of(batch),
        **{name: getattr(batch, name) for name in TIMES},
        **{state: getattr(counts, state).value for state in STATE_COUNTS},
        "is_exact": counts.total.is_exact,
    }


def _add_close_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("batch_id", type=row_id, metavar="ID", help="Id of the batch.")
    add_database(parser)


def _add_show_arguments(parser: ArgumentParser) -> None:
    _add_close_arguments(parser)
    add_json(parser)


def _batch(options: Options) -> Batch:
    alias = database_alias(options)
    try:
        return Batch.get(options["batch_id"], database=alias)
    except JobBatch.DoesNotExist:
        raise NotFound(
            f"Batch {options['batch_id']} does not exist in the database {alias!r}: its transaction has not committed, "
            "or it was removed. Pass --database to look in another."
        ) from None


def _document(batch: Batch) -> dict[str, Any]:
    """Return what the command prints. The arguments of callbacks are left out: they can be sensitive."""
    record, progress = batch.record, batch.progress()
    nested = record.nested.using(batch.database).order_by("pk").values_list("pk", flat=True)
    return {
        "batch_id": batch.id,
        "description": record.description,
        "parent_id": record.parent_id,
        **{name: getattr(record, name) for name in TIMES},
        **{name: (getattr(record, name) or {}).get("task_name") for name in CALLBACKS},
        "nested": list(nested),
        **progress._asdict(),
        "total": progress.total,
    }


def _note(batch: Batch) -> str:
    """Return what the operator has to do so that the batch goes on; "" if its jobs run, or if it is complete."""
    record, counts = batch.record, batch_counts([batch.id or 0], COUNTED, batch.database)[batch.id or 0]
    if record.completed_at is None and counts.is_blocked:
        return BLOCKED
    if record.closed_at is None and not counts.unfinished.value:
        return f"No job is unfinished. `manage.py pgqueue batch close {batch.id}` completes the batch."
    return ""


def _show(options: Options, out: Output) -> None:
    batch = _batch(options)
    document = _document(batch)
    if out.is_json:
        out.json(document)
        return
    for name, value in document.items():
        if value not in (None, "", []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            out.write(f"{name:<13} {in_line(text)}")
    if note := _note(batch):
        out.write(note)


def _close(options: Options, out: Output) -> None:
    closed = close_batch(_batch(options), by=user_name())
    out.write("Closed: it completes when its last job has ended." if closed else "Nothing to do: it is closed.")


BATCH: Final = Subcommand(
    "batch",
    "List, show and close batches of jobs.",
    actions=(
        Subcommand("list", "List batches, the newest first.", _add_list_arguments, _list),
        Subcommand("show", "Print one batch: its times, its callbacks and its progress.", _add_show_arguments, _show),
        Subcommand("close", "Close one batch, so that it can complete.", _add_close_arguments, _close),
    ),
)
