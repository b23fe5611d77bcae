"""`manage.py pgqueue batch show|close`: print one batch with its progress, and close it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import OutputWrapper

from django_pgqueue.batches import Batch
from django_pgqueue.display import visible
from django_pgqueue.models import JobBatch

from .output import add_json, write_json
from .subcommand import NotFound, Options, Subcommand, add_database, database_alias

TIMES: Final = ("created_at", "closed_at", "failed_at", "completed_at", "succeeded_at")
CALLBACKS: Final = ("on_success", "on_complete", "on_failure")


def _add_close_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("batch_id", type=int, metavar="ID", help="Id of the batch.")
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


def _show(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    document = _document(_batch(options))
    if options["json"]:
        write_json(stdout, document)
        return
    for name, value in document.items():
        if value not in (None, "", []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            stdout.write(f"{name:<13} {visible(text)}")


def _close(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    closed = _batch(options).close()
    stdout.write("Closed: it completes when its last job has ended." if closed else "Nothing to do: it is closed.")


BATCH: Final = Subcommand(
    "batch",
    "Show and close batches of jobs.",
    actions=(
        Subcommand("show", "Print one batch: its times, its callbacks and its progress.", _add_show_arguments, _show),
        Subcommand("close", "Close one batch, so that it can complete.", _add_close_arguments, _close),
    ),
)
