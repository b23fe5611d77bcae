"""The commands of the runbooks and of the other pages for operators: each one runs, and finds something to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue import Batch, chain, control
from django_pgqueue.management.subcommands.subcommand import ExitCode
from django_pgqueue.models import Job, JobBatch, Pause, Schedule
from tests import helpers
from tests.app import tasks
from tests.documents import CODE, commands, prose
from tests.management.conftest import Run, claim, die, succeed
from tests.test_docs import own_options, parser_of, subcommands

PAGES = [f"docs/production/{name}.md" for name in ("runbooks", "troubleshooting", "shell", "monitoring")]
COMMANDS = sorted({tuple(words) for page in PAGES for command, *words in commands(page) if command == "pgqueue"})
CHANGING = {
    "pause",
    "resume",
    "clear",
    "prune",
    "erase",
    "retry",
    "cancel",
    "move",
    "delete",
    "run",
    "close",
    "set-max-attempts",
}
NOT_RUN = {
    "run": "its own connection does not see the jobs of an open transaction; tests/test_commands.py runs it",
    "prune": "its own connection does not see the jobs of an open transaction; tests/test_commands.py runs it",
    "adopt": "it opens a connection of its own; tests/test_adopt.py runs it",
    "health": "it reads the health file of a worker; tests/test_commands.py runs it",
}
TASKS = ("shop.tasks.send_newsletter", "shop.tasks.export", "shop.tasks.send_telegram", "shop.charge")


@pytest.fixture
def incident(pgqueue: Run) -> None:
    """Add what the commands look for: jobs of each task in each state, a pause of each, and a paused schedule."""
    for task_name in TASKS:
        helpers.make_job(connection, task_name=task_name, queue_name="mail")
        claim(helpers.make_job(connection, task_name=task_name, queue_name="mail"))
        succeed(helpers.make_job(connection, task_name=task_name, queue_name="mail"))
        die(task_name=task_name, error="shop.errors.Declined")
        control.pause(task=task_name)
    die(task_name="shop.tasks.send_receipt", error="builtins.ConnectionError")
    die(error="django_pgqueue.exceptions.DoesNotFit")
    die(error="django_pgqueue.declared.steps.StepsChanged")
    Job.objects.filter(pk=helpers.make_job(connection, queue_name="exports")).update(limit_key="exports")
    control.pause("mail")
    helpers.make_schedule(connection, due_in=3600.0)
    pgqueue("schedules", "pause", "nightly")


def contents() -> list[Any]:
    """Return what a command can change."""
    jobs = Job.objects.values_list("pk", "state", "queue_name", "cancel_requested_at", "arguments")
    closed = JobBatch.objects.exclude(closed_at=None).values_list("pk", "closed_at")
    found = (jobs, closed, Pause.objects.values_list(), Schedule.objects.values_list())
    return [list(rows.order_by("pk")) for rows in found]


def with_real_ids(words: tuple[str, ...]) -> list[str]:
    """Return the words with the id of a job in the place of each id, and without a question to the operator."""
    if words[0] in ("batch", "workflow"):
        return [str(new_workflow(is_open="close" in words)) if word == "12" else word for word in words]
    make = helpers.make_job if "cancel" in words else lambda _: die()
    found = [str(make(connection)) if re.fullmatch(r"\d{4}", word) else word for word in words]
    return [*found, "--yes"] if "--yes" in own_options("pgqueue", *subcommand_of(words)) else found


def new_workflow(*, is_open: bool) -> int:
    """Return the id of a workflow of one job, or of an open batch."""
    if is_open:
        return Batch().open().id or 0
    return chain(tasks.noop.s()).enqueue().id


def subcommand_of(words: tuple[str, ...]) -> tuple[str, ...]:
    [found] = [known for known in subcommands() if words[: len(known)] == known]
    return found


@contextmanager
def may_find_errors() -> Iterator[None]:
    """Accept that the doctor finds an error on the server, which the tests of other processes share."""
    try:
        yield
    except SystemExit as end:
        assert end.code == ExitCode.FAILED


def test_commands_of_pages_for_operators_run_and_change_something(pgqueue: Run, incident: None) -> None:
    assert len(COMMANDS) > 40
    for command in [command for command in COMMANDS if command[0] not in NOT_RUN]:
        words = with_real_ids(command)
        before = contents()
        with transaction.atomic(), may_find_errors() if words[0] == "doctor" else nullcontext():
            pgqueue(*words)
            is_to_change = subcommand_of(command)[-1] in CHANGING and "--dry-run" not in command
            assert (contents() != before) is is_to_change, command
            transaction.set_rollback(True)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_of_page_are_valid(page: str) -> None:
    """`pgqueue jobs list --since 1h` must be complete. `pgqueue jobs list` may also name a command alone."""
    text = re.sub(r"^( *)```.*?^\1```$", "", prose(page), flags=re.MULTILINE | re.DOTALL)
    found = [code.removeprefix("manage.py ") for code in CODE.findall(" ".join(text.split()))]
    calls = [code.split() for code in found if re.match(r"pgqueue [a-z]", code)]
    assert calls
    for _, *words in calls:
        if tuple(words) not in subcommands():
            parser_of("pgqueue").parse_args(words)
