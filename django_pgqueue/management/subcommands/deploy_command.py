"""`manage.py pgqueue check-deploy`: check from the new code whether it can run what the old code has enqueued."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError

from django_pgqueue.db.engine_connection import connect
from django_pgqueue.deploys import signature_lock, stored
from django_pgqueue.display import in_line
from django_pgqueue.tasks import registry

from .output import Output, counted
from .subcommand import ExitCode, Options, Subcommand, UsageError, add_database, add_json, database_alias

LIMIT: Final = 100_000


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database(parser)
    parser.add_argument("--strict", action="store_true", help="Exit with 1 also if there are only warnings.")
    parser.add_argument(
        "--limit", type=int, default=LIMIT, help=f"Jobs to look at, and as many dead ones. Default: {LIMIT:,}."
    )
    parser.add_argument("--lock", metavar="FILE", help="Compare the code with a lock file, without the database.")
    parser.add_argument("--write-lock", metavar="FILE", help="Write the signatures of all tasks to a lock file.")
    add_json(parser)


def _run(options: Options, out: Output) -> None:
    if options["lock"] and options["write_lock"]:
        raise UsageError("Pass either --lock or --write-lock: the written file would always equal the code.")
    if options["limit"] < 1:
        raise UsageError(f"Invalid --limit {options['limit']}: pass a number of jobs from 1 up.")
    if options["write_lock"]:
        _write_lock(Path(options["write_lock"]), out)
    elif options["lock"]:
        _check_lock(Path(options["lock"]), options, out)
    else:
        _check_database(options, out)


def _write_lock(path: Path, out: Output) -> None:
    locks = signature_lock.locks_of(registry.all_tasks())
    try:
        path.write_text(signature_lock.dump(locks), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--write-lock {path} cannot be written: {error.strerror}.") from None
    out.write(f"Wrote the signatures of {counted(len(locks), 'task')} to {path}.")


def _check_lock(path: Path, options: Options, out: Output) -> None:
    try:
        old = signature_lock.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--lock {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"--lock {path} cannot be used: {error}.") from None
    changes = signature_lock.changes(old, signature_lock.locks_of(registry.all_tasks()))
    looked_at = f"Compared {counted(len(old), 'task')} of {path} with the code."
    document = {"lock": {"file": str(path), "tasks": len(old)}, "findings": [each.as_json() for each in changes]}
    _finish(looked_at, document, options, out)


def _check_database(options: Options, out: Output) -> None:
    alias = database_alias(options)
    with closing(connect(alias, "check-deploy")) as connection:
        checked = stored.check(connection, options["limit"])
    jobs = f"{'all' if checked.is_complete else 'the first'} {counted(checked.jobs, 'waiting or running job')}"
    dead = f"{'all' if checked.is_complete_dead else 'the newest'} {counted(checked.dead_jobs, 'dead job')}"
    schedules, callbacks = counted(checked.schedules, "schedule"), counted(checked.callbacks, "callback")
    compensations = counted(checked.compensations, "compensation")
    looked_at = f"Looked at {jobs}, {dead}, {schedules}, {callbacks} and {compensations} in the database {alias!r}."
    counts: dict[str, Any] = {
        "jobs": checked.jobs,
        "jobs_complete": checked.is_complete,
        "dead_jobs": checked.dead_jobs,
        "dead_jobs_complete": checked.is_complete_dead,
        "schedules": checked.schedules,
        "callbacks": checked.callbacks,
        "compensations": checked.compensations,
    }
    document = {
        "database": alias,
        "looked_at": counts,
        "findings": [each.as_json() for each in checked.findings.sorted()],
    }
    _finish(looked_at, document, options, out)


def _finish(looked_at: str, document: dict[str, Any], options: Options, out: Output) -> None:
    """Print what was found, and exit with 1 if there is an error, or with `--strict` a warning."""
    findings = document["findings"]
    errors = sum(each["level"] == "error" for each in findings)
    is_ok = not (findings if options["strict"] else errors)
    if out.is_json:
        out.write(json.dumps({"ok": is_ok, **document}))
    else:
        out.write_lines(f"{each['level']}: {in_line(each['text'])}" for each in findings)
        out.write(looked_at)
        counts = f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}."
        out.write(counts if findings else "The new code fits.")
    if not is_ok:
        sys.exit(ExitCode.FAILED)


CHECK_DEPLOY = Subcommand(
    "check-deploy",
    "Check from the new code whether it fits the jobs and schedules that the old code has stored.",
    _add_arguments,
    _run,
)
