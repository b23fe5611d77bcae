"""`manage.py pgqueue workers`: the workers that run, and on request those that have stopped.

`workers stop ID` and `workers stack ID` request something of one worker process, and print its answer.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.core.management.base import CommandError

from django_pgqueue import stats
from django_pgqueue.control import workers as worker_control
from django_pgqueue.db.fields import MOST_ID
from django_pgqueue.display import duration, visible
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.models import Worker, WorkerRequest
from django_pgqueue.models.operations_link import database_now
from django_pgqueue.states import RequestKind

from .output import Column, Output, counted
from .parsers import row_id
from .subcommand import NotFound, Options, Subcommand, UsageError, add_reading, database_alias, user_name

MOST: Final = 1000
"""Stopped workers that are listed at most."""
ANSWER_SECONDS: Final = 10.0
"""How long the command waits for the answer of a worker."""
POLL_SECONDS: Final = 0.1


class ListedWorker(NamedTuple):
    """A worker of the list, and when it has stopped."""

    worker: stats.WorkerStats
    stopped_at: datetime | None = None

    @property
    def state(self) -> str:
        """`working`, `silent` (no heartbeat for a lease) or `stopped`."""
        if self.stopped_at is not None:
            return "stopped"
        return "working" if self.worker.is_live else "silent"


def _queues(worker: stats.WorkerStats) -> str:
    return ", ".join(ServedQueues(worker.queues, worker.queue_concurrency).texts()) or "all"


def _memory(worker: stats.WorkerStats) -> str | None:
    return None if worker.resident_mib is None else f"{worker.resident_mib} MiB"


def _ago(worker: stats.WorkerStats, at: datetime) -> str:
    """Return how long ago a time was, by the clock of the database."""
    silence = timedelta(seconds=worker.heartbeat_age_seconds)
    return f"{duration(worker.last_heartbeat_at + silence - at, brief=True)} ago"


COLUMNS: Final = (
    Column("id", lambda each: str(each.worker.id), is_number=True),
    Column("state", lambda each: each.state, is_state=True),
    Column("host", lambda each: each.worker.host, is_flexible=True),
    Column("pid", lambda each: str(each.worker.pid), is_number=True),
    Column("queues", lambda each: _queues(each.worker), is_flexible=True),
    Column("slots", lambda each: f"{each.worker.slots_busy} of {each.worker.slots_total}", is_number=True),
    Column("prefetched", lambda each: each.worker.prefetched, is_number=True),
    Column("memory", lambda each: _memory(each.worker), is_number=True),
    Column("started", lambda each: _ago(each.worker, each.worker.started_at)),
    Column("last heartbeat", lambda each: _ago(each.worker, each.worker.last_heartbeat_at)),
    Column("version", lambda each: each.worker.version),
    Column("release", lambda each: each.worker.release or None, is_flexible=True),
)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=[kind.value for kind in RequestKind],
        help="Stop the worker after its current jobs, or print the stacks of its jobs.",
    )
    parser.add_argument("worker_id", nargs="?", type=row_id, metavar="ID", help="Id of the worker process.")
    parser.add_argument("--all", action="store_true", help="Also list the workers that have stopped.")
    add_reading(parser, "Database of the workers.")


def _run(options: Options, out: Output) -> None:
    alias = database_alias(options)
    if options["action"] and (options["all"] or out.is_json):
        raise UsageError(f"Pass --all and --json without {options['action']!r}: they are for the list of workers.")
    if options["action"]:
        _request(RequestKind(options["action"]), options["worker_id"], alias, out)
        return
    found = [ListedWorker(worker) for worker in stats.workers(alias)]
    found += _stopped(alias) if options["all"] else ()
    out.listing("workers", COLUMNS, found, f"{counted(len(found), 'worker')}.", _as_json)


def _request(kind: RequestKind, worker_id: int | None, alias: str, out: Output) -> None:
    """Request something of a worker and print the answer. Raise `CommandError` if it does not answer in time."""
    if worker_id is None:
        raise UsageError(f"Pass the id of a worker: pgqueue workers {kind} ID. `pgqueue workers` lists the ids.")
    requested = None if worker_id > MOST_ID else worker_control.request(worker_id, kind, alias, by=user_name())
    if requested is None:
        raise NotFound(f"No worker with a supervisor runs under the id {worker_id}. `pgqueue workers` lists the ids.")
    answered = WorkerRequest.objects.using(alias).filter(pk=requested.request_id, answered_at__isnull=False)
    until = time.monotonic() + ANSWER_SECONDS
    while (found := answered.first()) is None:
        if time.monotonic() > until:
            raise CommandError(
                f"The worker has not answered within {ANSWER_SECONDS:g} s. It may be dead, or C code may block it. "
                "A later answer is shown on its page in the admin."
            )
        time.sleep(POLL_SECONDS)
    out.write(visible(found.answer))


def _stopped(alias: str) -> list[ListedWorker]:
    """Return the workers that have stopped, the latest start first."""
    stopped: Any = Worker.objects.using(alias).filter(stopped_at__isnull=False).annotate(seen_at=database_now())
    return [
        ListedWorker(
            stats.WorkerStats(
                id=worker.pk,
                host=worker.hostname,
                pid=worker.pid,
                version=worker.version,
                release=worker.release,
                queues=ServedQueues.from_text(worker.queue_names).names,
                queue_concurrency=ServedQueues.from_text(worker.queue_names).concurrency,
                slots_total=worker.concurrency,
                slots_busy=0,
                prefetched=0,
                claimed=0,
                started_at=worker.started_at,
                last_heartbeat_at=worker.last_heartbeat_at,
                heartbeat_age_seconds=(worker.seen_at - worker.last_heartbeat_at).total_seconds(),
                is_live=False,
                resident_mib=worker.resident_mib,
            ),
            worker.stopped_at,
        )
        for worker in stopped.order_by("-pk")[:MOST]
    ]


def _as_json(listed: ListedWorker) -> dict[str, Any]:
    worker = listed.worker
    return {
        "id": worker.id,
        "state": listed.state,
        "host": worker.host,
        "pid": worker.pid,
        "queues": list(worker.queues),
        "queue_concurrency": dict(worker.queue_concurrency),
        "slots_total": worker.slots_total,
        "slots_busy": worker.slots_busy,
        "prefetched": worker.prefetched,
        "claimed": worker.claimed,
        "resident_mib": worker.resident_mib,
        "version": worker.version,
        "release": worker.release,
        "started_at": worker.started_at,
        "last_heartbeat_at": worker.last_heartbeat_at,
        "stopped_at": listed.stopped_at,
    }


WORKERS: Final = Subcommand("workers", "List workers, with their busy slots.", _add_arguments, _run)
