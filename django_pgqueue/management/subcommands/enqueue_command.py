"""`manage.py pgqueue enqueue TASK`: add a job for a call that is typed as JSON.

The values are those that a job stores. If the task has annotations, they are read by these, as a worker reads them, and
`enqueue()` checks them again.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.core.management.base import CommandError

from django_pgqueue.exceptions import Cancel, Dead, DuplicateJob, InvalidTask
from django_pgqueue.ground.similar_names import meant
from django_pgqueue.options.validation import name_problems
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.stored_values import DoesNotFit, decoded

from .known_names import check_target_queue
from .output import Output, date_of
from .subcommand import NotFound, Options, Subcommand, UsageError, acting, add_database, database_alias
from .times import time_of


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="Name of the task, as `pgqueue tasks` prints it.")
    parser.add_argument(
        "--args", dest="call_args", metavar="JSON", default="[]", help="Positional arguments: a JSON array."
    )
    parser.add_argument(
        "--kwargs", dest="call_kwargs", metavar="JSON", default="{}", help="Keyword arguments: a JSON object."
    )
    parser.add_argument("--queue", metavar="NAME", help="Queue, instead of the task's own.")
    parser.add_argument("--force", action="store_true", help="Accept a name for --queue that looks misspelled.")
    parser.add_argument("--priority", type=int, metavar="N", help="Priority, instead of the task's own.")
    parser.add_argument("--run-after", metavar="TIME", help="When it is due: 30m, 2h, 1d, or an ISO 8601 time.")
    parser.add_argument("--dry-run", action="store_true", help="Check the call, and add no job.")
    add_database(parser, "Database of the job. Default: the task's, or chosen by the routers.")


def _run(options: Options, out: Output) -> None:
    for problem in () if options["queue"] is None else name_problems("--queue", options["queue"]):
        raise UsageError(f"{problem}.")
    args, kwargs = _parsed("--args", options["call_args"], list), _parsed("--kwargs", options["call_kwargs"], dict)
    try:
        task = _task(options)
        alias = task.fixed_database or database_alias(options)
        _check_queue(options, alias)
        if task.plan is not None:
            args, kwargs = decoded(task, task.plan, args, kwargs, alias)
        if options["dry_run"]:
            task.prepare_insert(args, kwargs)
            out.write(f"The call fits {task.name}. No job was added.")
            return
        job = task.enqueue(*args, **kwargs)
        if task.adapter is not None and not job.is_duplicate:
            task.adapter.enqueued(job.pk, alias, job.queue_name)
    except (TypeError, ValueError, InvalidTask, DoesNotFit, Dead, Cancel, ObjectDoesNotExist) as error:
        raise UsageError(str(error)) from None
    except DuplicateJob as error:
        raise CommandError(str(error)) from None
    if job.is_duplicate:
        out.write(f"No job was added: job {job.pk} has the unique key.")
    else:
        due = f"due at {date_of(job.run_after)}" if options["run_after"] else "due now"
        out.write(f"Enqueued job {job.pk} ({job.task_name}) in the queue {job.queue_name}, {due}.")


def _check_queue(options: Options, alias: str) -> None:
    """Raise `NotFound` if `--queue` looks misspelled and `--force` is missing."""
    if options["queue"] and not options["force"]:
        check_target_queue(options["queue"], alias)


def _task(options: Options) -> Task[..., Any]:
    """Return the task with the options that were typed.

    Raise `NotFound` if there is no such task, and `UsageError`, `TypeError`, `ValueError` or `InvalidTask` for an
    invalid option.
    """
    task = registry.get(options["task"])
    if not isinstance(task, Task):
        known = [each.name for each in registry.all_tasks() if isinstance(each, Task)]
        raise NotFound(f"No task is named {options['task']!r}{meant(options['task'], known, 'pgqueue tasks')}")
    if options["queue"] and task.adapter is not None:
        task.adapter.check_queue(options["queue"])
    run_after = None if options["run_after"] is None else time_of("--run-after", options["run_after"])
    of_framework = None if task.adapter is None else task.adapter.database
    database = database_alias(options) if options["database"] else of_framework
    given = {"queue_name": options["queue"], "priority": options["priority"], "run_after": run_after}
    changes: dict[str, Any] = {**given, "database": database}
    return task.using(**{name: value for name, value in changes.items() if value is not None})


def _parsed(option: str, text: str, kind: type) -> Any:
    """Return the value of a JSON option. Raise `UsageError` if it is not JSON, or of another type."""
    example = "an array such as '[1]'" if kind is list else "an object such as '{\"to\": 1}'"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"Invalid {option}: {error}. Pass JSON: {example}.") from None
    if not isinstance(value, kind):
        raise UsageError(f"Invalid {option} {text[:50]!r}: pass {example}.")
    return value


ENQUEUE = Subcommand("enqueue", "Add a job for a call that is typed as JSON.", _add_arguments, acting(_run))
