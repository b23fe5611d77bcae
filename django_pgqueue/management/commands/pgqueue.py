"""`manage.py pgqueue worker|run|pause|…`: all subcommands under one name that no other app's command can hide."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Final

import psycopg
from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, InterfaceError, OperationalError
from django.utils import translation
from psycopg.errors import UndefinedColumn, UndefinedTable

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.display import visible
from django_pgqueue.management.celery_beat import IMPORT_CELERY_BEAT
from django_pgqueue.management.standard_streams import has_lost_reader, open_missing_streams
from django_pgqueue.management.subcommands.adopt_command import ADOPT
from django_pgqueue.management.subcommands.batch_command import BATCH
from django_pgqueue.management.subcommands.completion_command import completion
from django_pgqueue.management.subcommands.dead_command import DEAD
from django_pgqueue.management.subcommands.deploy_command import CHECK_DEPLOY
from django_pgqueue.management.subcommands.doctor_command import DOCTOR
from django_pgqueue.management.subcommands.enqueue_command import ENQUEUE
from django_pgqueue.management.subcommands.history_commands import ARCHIVE, ERASE, PRUNE
from django_pgqueue.management.subcommands.jobs_command import JOBS
from django_pgqueue.management.subcommands.limits_command import LIMITS
from django_pgqueue.management.subcommands.output import Output
from django_pgqueue.management.subcommands.permissions_command import PERMISSIONS
from django_pgqueue.management.subcommands.queue_commands import CLEAR, DRAIN, PAUSE, RESUME
from django_pgqueue.management.subcommands.run_commands import HEALTH, RUN, WORKER
from django_pgqueue.management.subcommands.schedules_command import SCHEDULES
from django_pgqueue.management.subcommands.status_command import QUEUES, STATUS
from django_pgqueue.management.subcommands.subcommand import ExitCode, Subcommand, add_subcommands
from django_pgqueue.management.subcommands.tasks_command import TASKS
from django_pgqueue.management.subcommands.top_command import TOP
from django_pgqueue.management.subcommands.why_command import WHY
from django_pgqueue.management.subcommands.workers_command import WORKERS
from django_pgqueue.management.subcommands.workflow_command import WORKFLOW
from django_pgqueue.stats.unread import unreadable

SUBCOMMANDS: Final[tuple[Subcommand, ...]] = (
    *(WORKER, RUN, ENQUEUE),
    *(STATUS, TOP, WHY, JOBS, DEAD, BATCH, WORKFLOW, QUEUES, LIMITS, SCHEDULES, WORKERS, TASKS),
    *(PAUSE, RESUME, DRAIN, CLEAR),
    *(PRUNE, ARCHIVE, ERASE),
    *(CHECK_DEPLOY, HEALTH, ADOPT, DOCTOR, PERMISSIONS, IMPORT_CELERY_BEAT),
    completion(lambda: _all_subcommands()),
)
"""To run jobs, to look at them, to stop queues, to remove old jobs, for deploys and for setup, in this order."""


class Command(BaseCommand):
    """Operate the queue from a shell."""

    help = "Run workers, and operate the job queue. `pgqueue COMMAND --help` shows the options of a command."

    def __init__(self, *args: Any, **options: Any) -> None:
        """Open missing standard streams before anything is printed."""
        open_missing_streams()
        super().__init__(*args, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        add_subcommands(parser, _all_subcommands())

    def handle(self, *args: Any, **options: Any) -> None:
        run, runs_tasks = options.pop("run"), options.pop("runs_tasks")
        try:
            with nullcontext() if runs_tasks else translation.override("en"):
                run(options, Output(options, self.stdout, self.stderr))
        except BrokenPipeError:
            if not has_lost_reader():
                raise  # it comes from another pipe
            sys.exit(ExitCode.FAILED)
        except (InterfaceError, OperationalError, psycopg.OperationalError) as error:
            text = visible(" ".join(str(error).split()))
            raise CommandError(f"The database failed: {text} (`manage.py pgqueue doctor` examines it.)") from error
        except (Error, psycopg.Error) as error:
            if (missing := _missing_schema(error, options)) is not None:
                raise CommandError(missing) from error
            if (reason := unreadable(error)) is None:
                raise
            raise CommandError(f"The values of a row cannot be read: {visible(reason)}") from error
        has_lost_reader()  # discards what is in the buffer: its flush at exit would fail


def _missing_schema(error: Exception, options: dict[str, Any]) -> str | None:
    """Return what to do if a table or a column of the queue is missing. None: it is another error."""
    cause: BaseException | None = error
    while isinstance(cause, Error):  # `db.statements` adds an error of its own
        cause = cause.__cause__
    if not isinstance(cause, UndefinedTable | UndefinedColumn):
        return None
    alias = options.get("database")
    migrate = f"manage.py migrate{f' --database={alias}' if alias else ''}"
    text = visible(message_without_detail(cause).partition("\n")[0])
    return f"The database lacks migrations of this package: run `{migrate}`. The server says: {text}."


def _all_subcommands() -> list[Subcommand]:
    return [*SUBCOMMANDS, *_subcommands_of_apps()]


def _subcommands_of_apps() -> list[Subcommand]:
    """Return the subcommands of installed apps, such as `django_pgqueue.contrib.remote`."""
    return [
        subcommand
        for config in apps.get_app_configs()
        for subcommand in getattr(config, "pgqueue_subcommands", tuple)()
    ]
