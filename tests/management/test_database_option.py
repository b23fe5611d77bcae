"""`--database` of every subcommand that reads or changes rows: no statement goes to another database."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from django_pgqueue.models import Job
from tests import helpers
from tests.app import tasks
from tests.management.conftest import die

COMMANDS = (
    ["jobs", "list"],
    ["batch", "list"],
    ["jobs", "list", "--state", "dead", "--queue", "default", "--error", "ValueError", "--since", "1h"],
    ["jobs", "list", "--state", "running"],
    ["jobs", "list", "--state", "due"],
    ["jobs", "show", "{dead}"],
    ["why", "{dead}"],
    ["dead", "list"],
    ["dead", "retry", "--error", "ValueError", "--stop-on-failure", "--yes"],
    ["jobs", "move", "{dead}", "--to-queue", "mail"],
    ["jobs", "set-max-attempts", "--queue", "mail", "--max-attempts", "77", "--yes"],
    ["jobs", "cancel", "--queue", "mail", "--yes"],
    ["jobs", "retry", "{dead}", "--finished"],
    ["jobs", "cancel", "{dead}"],
    ["jobs", "delete", "--state", "cancelled", "--yes"],
    ["enqueue", tasks.add.name, "--args", "[1]"],
    ["queues"],
    ["schedules", "list"],
    ["schedules", "run", "nightly"],
    ["schedules", "pause", "nightly"],
    ["schedules", "resume", "nightly"],
    ["workers"],
    ["workers", "--all"],
    ["tasks"],
    ["status"],
)


def refuse(execute, sql, params, many, context):
    pytest.fail(f"a statement on the wrong database: {sql}")


def test_database_option_reaches_every_statement(other):
    dead = die()
    helpers.make_schedule(connection)
    with connection.execute_wrapper(refuse):
        for arguments in COMMANDS:
            filled = [argument.format(dead=dead) for argument in arguments]
            call_command("pgqueue", *filled, "--database", "other", stdout=StringIO(), stderr=StringIO())
    assert sorted(Job.objects.values_list("task_name", "state")) == [
        (tasks.add.name, "ready"),
        (helpers.NOOP, "ready"),
    ]
