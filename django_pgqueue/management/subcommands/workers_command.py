"""`manage.py pgqueue workers`: the workers that run, and on request those that have stopped."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import OutputWrapper
from django.db.models import Count, OuterRef, Subquery

from django_pgqueue.conf import get_settings
from django_pgqueue.display import duration
from django_pgqueue.models import Execution, Worker
from django_pgqueue.models.operations import database_now

from .output import Column, add_json, counted, write_json, write_summary, write_table
from .subcommand import Options, Subcommand, add_database, database_alias

COLUMNS: Final = (
    Column("id", is_number=True),
    Column("state", is_state=True),
    Column("host", is_flexible=True),
    Column("pid", is_number=True),
    Column("queues", is_flexible=True),
    Column("jobs", is_number=True),
    Column("started"),
    Column("last heartbeat"),
    Column("version"),
)
MOST: Final = 1000
"""Latest starts of workers that are listed at most."""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="Also list the workers that have stopped.")
    add_database(parser, "Database of the workers.")
    add_json(parser)


def _run(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    alias = database_alias(options)
    claimed = Execution.objects.filter(worker_id=OuterRef("pk"), finished_at__isnull=True).order_by()
    counts: Any = claimed.values("worker_id").annotate(count=Count("pk")).values("count")
    workers: Any = Worker.objects.using(alias).annotate(seen_at=database_now(), claimed=Subquery(counts))
    if not options["all"]:
        workers = workers.filter(stopped_at__isnull=True)
    found = list(workers.order_by("-pk")[:MOST])
    if options["json"]:
        write_json(stdout, {"workers": [_as_json(worker) for worker in found]})
        return
    if found:
        write_table(stdout, options, COLUMNS, [_cells(worker) for worker in found])
    write_summary(stderr, f"{counted(len(found), 'worker')}.")


def state_of(worker: Any) -> str:
    """Return `working`, `silent` (no heartbeat for two leases) or `stopped`."""
    if worker.stopped_at is not None:
        return "stopped"
    silence = worker.seen_at - worker.last_heartbeat_at
    return "silent" if silence > timedelta(seconds=2 * get_settings().LEASE) else "working"


def _as_json(worker: Any) -> dict[str, Any]:
    return {
        "id": worker.pk,
        "state": state_of(worker),
        "host": worker.hostname,
        "pid": worker.pid,
        "queues": worker.queue_names.split(",") if worker.queue_names else [],
        "concurrency": worker.concurrency,
        "claimed_jobs": worker.claimed or 0,
        "version": worker.version,
        "started_at": worker.started_at,
        "last_heartbeat_at": worker.last_heartbeat_at,
        "stopped_at": worker.stopped_at,
    }


def _cells(worker: Any) -> tuple[Any, ...]:
    def ago(at: Any) -> str:
        return f"{duration(worker.seen_at - at, brief=True)} ago"

    return (
        str(worker.pk),
        state_of(worker),
        worker.hostname,
        str(worker.pid),
        worker.queue_names or "all",
        f"{worker.claimed or 0} of {worker.concurrency}",
        ago(worker.started_at),
        ago(worker.last_heartbeat_at),
        worker.version,
    )


WORKERS: Final = Subcommand("workers", "List workers, with the jobs that they have claimed.", _add_arguments, _run)
