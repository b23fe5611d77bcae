"""`manage.py pgqueue queues`: the queues that are used, how many of their jobs wait and run, and their pauses."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.management.base import OutputWrapper
from django.db import connections
from django.db.models import Count, Min, Q, QuerySet

from django_pgqueue import lifecycle, registry
from django_pgqueue.conf import known_queues
from django_pgqueue.display import duration
from django_pgqueue.models import Execution, Job, Pause
from django_pgqueue.models.operations import database_now
from django_pgqueue.states import Pausable

from .output import Column, add_json, counted, date_of, write_json, write_summary, write_table
from .subcommand import Options, Subcommand, add_database, database_alias

COUNTED: Final = 10_000
"""Jobs of each queue and priority that are counted at most. A higher number is shown as "10,000+"."""
COLUMNS: Final = (
    Column("queue", is_flexible=True),
    Column("state", is_state=True),
    Column("due", is_number=True),
    Column("oldest due"),
    Column("later", is_number=True),
    Column("running", is_number=True),
    Column("pause", is_flexible=True),
)


@dataclass
class Queue:
    """A queue with its numbers. `is_capped`: `due` and `later` are lower bounds."""

    name: str
    due: int = 0
    later: int = 0
    is_capped: bool = False
    running: int = 0
    oldest_due_at: datetime | None = None
    seen_at: datetime | None = None
    pause: Pause | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the queue with the documented keys."""
        pause = self.pause
        return {
            "name": self.name,
            "due": self.due,
            "later": self.later,
            "is_exact": not self.is_capped,
            "running": self.running,
            "oldest_due_at": self.oldest_due_at,
            "paused": pause is not None,
            "paused_by": pause and pause.paused_by,
            "paused_until": pause and pause.paused_until,
            "pause_reason": pause and pause.reason,
        }

    def cells(self) -> tuple[Any, ...]:
        """Return the row of the table."""
        more = "+" if self.is_capped else ""
        age = "" if self.oldest_due_at is None or self.seen_at is None else duration(self.seen_at - self.oldest_due_at)
        state = "on" if self.pause is None else "paused"
        return (self.name, state, f"{self.due:,}{more}", age, f"{self.later:,}{more}", self.running, self._pause())

    def _pause(self) -> str:
        if self.pause is None:
            return ""
        until = f"until {date_of(self.pause.paused_until)}" if self.pause.paused_until else ""
        by = f"by {self.pause.paused_by}" if self.pause.paused_by else ""
        return " ".join(filter(None, [by, until, self.pause.reason]))


def _add_arguments(parser: ArgumentParser) -> None:
    add_database(parser)
    add_json(parser)


def _run(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    queues = read_queues(database_alias(options))
    if options["json"]:
        write_json(stdout, {"queues": [queue.as_json() for queue in queues]})
        return
    write_table(stdout, options, COLUMNS, [queue.cells() for queue in queues])
    write_summary(stderr, f"{counted(len(queues), 'queue')}.")


def read_queues(alias: str) -> list[Queue]:
    """Return the queues of tasks, waiting jobs, running jobs and pauses, by name. Runs two queries for each lane."""
    scan = lifecycle.scan_lanes(connections[alias])
    pauses = {pause.name: pause for pause in Pause.objects.using(alias).filter(kind=Pausable.QUEUE)}
    open_executions = Execution.objects.using(alias).filter(finished_at__isnull=True).order_by()
    by_queue = open_executions.values_list("job__queue_name").annotate(count=Count("pk"))
    running = {name: count for name, count in by_queue if name is not None}
    of_tasks = {task.queue_name for task in registry.all_tasks()} | set(known_queues() or ())
    names = {*of_tasks, *running, *scan.paused_queues, *(lane.queue_name for lane in scan.due_in)}
    queues = {name: Queue(name, running=running.get(name, 0), seen_at=scan.seen_at) for name in sorted(names)}
    for name in scan.paused_queues:
        queues[name].pause = pauses.get(name)
    for lane in scan.due_in:
        jobs = Job.objects.using(alias).ready().filter(queue_name=lane.queue_name, priority=lane.priority).order_by()
        _add(queues[lane.queue_name], jobs)
    return list(queues.values())


def _add(queue: Queue, jobs: QuerySet[Any]) -> None:
    """Add the numbers of one lane to its queue."""
    due = _capped(jobs, Q(run_after__lte=database_now()))
    later = _capped(jobs, Q(run_after__gt=database_now()))
    queue.due += due["count"]
    queue.later += later["count"]
    queue.is_capped |= max(due["count"], later["count"]) >= COUNTED
    queue.oldest_due_at = _earliest(filter(None, [queue.oldest_due_at, due["first"]]))


def _capped(jobs: QuerySet[Any], condition: Q) -> dict[str, Any]:
    """Return how many jobs meet a condition, `COUNTED` at most, and the first time at which one of them was due."""
    window = jobs.filter(condition).order_by("run_after")[:COUNTED]
    return window.values("run_after").aggregate(count=Count("*"), first=Min("run_after"))


def _earliest(instants: Iterable[datetime]) -> datetime | None:
    return min(instants, default=None)


QUEUES: Final = Subcommand("queues", "List queues: jobs that are due, wait or run, and pauses.", _add_arguments, _run)
