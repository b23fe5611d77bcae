"""`manage.py pgqueue adopt`: take over a database whose jobs belong to another installation, such as a restored dump.

Workers wait until this command has run (see `worker.runtime.clone_guard`). It writes the new installation last, so that
no worker claims a job that is still to be cancelled or paused. If it is interrupted, the workers wait, and the command
can be repeated.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Collection
from contextlib import closing
from datetime import timedelta
from typing import Final

from django.core.management.base import CommandError
from django.db import connections

from django_pgqueue.acts import CANCEL
from django_pgqueue.acts.job_changes import ActAudit
from django_pgqueue.control.queues import pause_named
from django_pgqueue.db.engine_connection import EngineConnection, connect
from django_pgqueue.display import in_line
from django_pgqueue.ends import job_operations
from django_pgqueue.ground.identity import Identity
from django_pgqueue.job_search import Filters
from django_pgqueue.lifecycle import batches as lifecycle_batches
from django_pgqueue.lifecycle import installations, sagas, stored_calls
from django_pgqueue.lifecycle.installations import Adopted
from django_pgqueue.models import BATCH_SIZE, Job, JobBatch, JobQuerySet, JobStep, Schedule, Worker
from django_pgqueue.models.operations_link import JobsToChange, database_now
from django_pgqueue.options.validation import NAME
from django_pgqueue.schedules import run_and_resume
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import Pausable, State
from django_pgqueue.tasks import registry
from django_pgqueue.worker.runtime.clone_guard import description

from .consent import add_consent, ask, progress
from .filter_options import described
from .output import Output, counted
from .subcommand import Options, Subcommand, UsageError, add_database, database_alias, user_name

REASON: Final = "paused by pgqueue adopt"
UNFINISHED: Final = [State.READY.value, State.WAITING.value, State.RUNNING.value]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--cancel-waiting",
        action="store_true",
        help="First cancel all waiting and running jobs, remove the callbacks of batches and the compensations of "
        "steps, and pause all schedules.",
    )
    choice.add_argument("--pause", action="store_true", help="First pause all queues and all schedules.")
    parser.add_argument(
        "--environment", metavar="NAME", help="The environment to record. Default: PGQUEUE['ENVIRONMENT']."
    )
    parser.add_argument("--force", action="store_true", help="Adopt although workers seem to work on this database.")
    add_consent(parser)
    add_database(parser)


def _run(options: Options, out: Output) -> None:
    alias, environment = database_alias(options), _environment(options, out)
    with closing(connect(alias, "adopt")) as connection:
        own, recorded = installations.read_installations(connection, environment)
        foreign = [adopted for adopted in recorded if adopted.identity != own]
        _describe(alias, own, recorded, out)
        if recorded and not foreign:
            out.write("This database belongs to this installation already. Nothing was changed.")
        elif options["dry_run"]:
            out.write("Nothing was changed, because of --dry-run.")
        else:
            _refuse_live_database(alias, force=options["force"])
            if options["cancel_waiting"] and (count := _unfinished(alias).count()):
                ask(f"Cancel {counted(count)}?", options)
            _adopt(connection, own, options, out)


def _environment(options: Options, out: Output) -> str:
    configured = get_settings().ENVIRONMENT
    environment = options["environment"]
    if environment is None or environment == configured:
        return configured
    if environment and not NAME.fullmatch(environment):
        raise UsageError(
            f"Invalid --environment {environment!r}: use at most 100 of the characters A-Z a-z 0-9 _ . : -"
        )
    out.stderr.write(
        f"Warning: PGQUEUE['ENVIRONMENT'] is {configured!r}, so workers with these settings will not work on an "
        f"environment {environment!r}."
    )
    return str(environment)


def _describe(alias: str, own: Identity, recorded: list[Adopted], out: Output) -> None:
    """Print whose the database is, and what it contains."""
    if not recorded:
        out.write(f"Database {alias!r}: no worker has worked on it.")
    for adopted in recorded:
        if adopted.identity != own:
            out.write(f"Database {alias!r} belongs to another installation: {in_line(description(adopted, own))}.")
    jobs = Job.objects.using(alias)
    batches, steps = JobBatch.objects.using(alias), JobStep.objects.using(alias)
    due = jobs.due().count()
    out.write(f"{due:>10,}  jobs that are due")
    out.write(f"{jobs.ready().count() - due:>10,}  jobs that are due later")
    out.write(f"{jobs.waiting().count():>10,}  jobs of workflows that wait for other jobs")
    out.write(f"{jobs.running().count():>10,}  running jobs")
    out.write(f"{batches.filter(succeeded_at__isnull=True).count():>10,}  batches that have not succeeded")
    out.write(f"{steps.filter(compensation__isnull=False).count():>10,}  steps that can be undone")
    out.write(f"{Schedule.objects.using(alias).filter(enabled=True).count():>10,}  schedules")
    out.write(f"{_workers_alive(alias):>10,}  workers with a recent heartbeat")


def _workers_alive(alias: str) -> int:
    """Return how many workers have sent a heartbeat in the last two leases, in which they record at least one."""
    since = database_now(timedelta(seconds=2 * get_settings().LEASE))
    return Worker.objects.using(alias).filter(stopped_at__isnull=True, last_heartbeat_at__gt=since).count()


def _refuse_live_database(alias: str, *, force: bool) -> None:
    """Raise `CommandError` if workers seem to work on the database: it may be the other installation's own."""
    if not force and (alive := _workers_alive(alias)):
        raise CommandError(
            f"{counted(alive, 'worker')} {'has' if alive == 1 else 'have'} sent a heartbeat to the database {alias!r} "
            f"in the last {2 * get_settings().LEASE:g} s. Nothing was changed. If it is a copy that was just made, "
            "repeat the command later or with --force. Otherwise check DATABASES: this is the database of another "
            "installation."
        )


def _adopt(connection: EngineConnection, own: Identity, options: Options, out: Output) -> None:
    by = f"{user_name() or 'unknown'} on {socket.gethostname()}"[:150]
    if options["cancel_waiting"]:
        _forget_calls(connection, out)  # first, because the ends of the cancelled jobs would enqueue them
        out.write(f"Cancelled {counted(_cancel_jobs(connection.alias, by, out))}.")
    if options["pause"]:
        out.write(f"Paused the queues {in_line(', '.join(_pause_queues(connection, by)))}.")
    if options["cancel_waiting"] or options["pause"]:
        out.write(f"Paused {counted(_pause_schedules(connection.alias, by), 'schedule')}.")
    installations.adopt(connection, own, by)
    out.write(
        f"Adopted the database {connection.alias!r} for the environment {own.environment!r}. "
        f"Workers that wait for this begin within a few seconds."
    )


def _forget_calls(connection: EngineConnection, out: Output) -> None:
    """Remove the callbacks of batches and the compensations of steps that could still be enqueued.

    Without any, no privilege to change them is needed.
    """
    if stored_calls.queues_of_calls(connection):
        callbacks = lifecycle_batches.forget_callbacks(connection)
        compensations = sagas.forget_compensations(connection)
        removed = f"{counted(callbacks, 'callback')} of batches and {counted(compensations, 'compensation')} of steps"
        out.write(f"Removed {removed}.")


def _unfinished(alias: str) -> JobQuerySet:
    return Job.objects.using(alias).filter(state__in=UNFINISHED)


def _cancel_jobs(alias: str, by: str, out: Output) -> int:
    """Cancel all waiting jobs, and request the cancellation of running ones, whose rescue then ends them.

    Each batch adds its jobs to one entry of the audit.
    """
    connection, jobs = connections[alias], _unfinished(alias).order_by("pk")
    total, cancelled, last_id = jobs.count(), 0, 0
    audit = ActAudit(
        connection, CANCEL.name, described(Filters(alias, tuple(UNFINISHED))), done_by=by, reason="pgqueue adopt"
    )
    show = progress(out, total)

    def record(changed: Collection[int]) -> None:
        nonlocal cancelled
        audit.record(sorted(changed))
        cancelled += len(changed)

    while batch := dict(jobs.filter(pk__gt=last_id).values_list("pk", "task_name")[:BATCH_SIZE]):
        last_id = max(batch)
        job_operations.cancel(JobsToChange(connection, batch, record=record))
        show(cancelled)
    audit.end()
    return cancelled


def _pause_queues(connection: EngineConnection, by: str) -> list[str]:
    """Pause every queue that has unfinished jobs, or that a stored call, a task or the settings name; return the names.

    Callbacks of batches and compensations of steps name queues too: their jobs are enqueued later.
    A queue that appears later has only jobs that this installation has enqueued.
    """
    alias = connection.alias
    unfinished = _unfinished(alias)
    names = set(unfinished.values_list("queue_name", flat=True).distinct())
    names.update(stored_calls.queues_of_calls(connection))
    names.update(Schedule.objects.using(alias).values_list("queue_name", flat=True))
    names.update(task.queue_name for task in registry.all_tasks())
    names.update(get_settings().QUEUES or ())
    for name in sorted(names):
        pause_named(Pausable.QUEUE, name, alias, until=None, reason=REASON, by=by)
    return sorted(names)


def _pause_schedules(alias: str, by: str) -> int:
    """Pause every schedule, because each would otherwise fire at once for the ticks since the dump."""
    enabled = Schedule.objects.using(alias).filter(enabled=True).values_list("pk", "name")
    return sum(run_and_resume.pause(connections[alias], schedule_id, name, by=by) for schedule_id, name in enabled)


ADOPT = Subcommand(
    "adopt", "Take over a database that belongs to another installation, such as a restored dump.", _add_arguments, _run
)
