"""`pgqueue batch show` and `pgqueue batch close`."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from django_pgqueue import Batch
from django_pgqueue.management.subcommands.subcommand import NotFound
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.app import tasks

pytestmark = pytest.mark.django_db


def run(*arguments: object) -> str:
    output = StringIO()
    call_command("pgqueue", "batch", *map(str, arguments), stdout=output)
    return output.getvalue()


def test_batch_show_prints_times_callbacks_and_progress():
    with Batch(on_complete=tasks.noop.s("secret"), description="import\x1b[31m") as batch:
        inner = Batch(parent=batch).open()
        tasks.add.using(batch=inner).enqueue_many([(1,), (2,)])
    run_jobs(max_jobs=1)
    shown = run("show", batch.id)
    assert "secret" not in shown
    assert "\x1b" not in shown
    assert f"nested        {inner.id}\n" in shown
    assert f"on_complete   {tasks.noop.name}\n" in shown
    document = json.loads(run("show", batch.id, "--json"))
    assert (document["ready"], document["succeeded"], document["total"]) == (1, 1, 2)
    assert (document["parent_id"], document["completed_at"], document["on_success"]) == (None, None, None)
    assert document["closed_at"]


def test_batch_close_completes_a_batch_without_unfinished_jobs():
    batch = Batch(on_complete=tasks.noop.s()).open()
    assert "Closed" in run("close", batch.id)
    assert "Nothing to do" in run("close", batch.id)
    assert Job.objects.get().task_name == tasks.noop.name


@pytest.mark.parametrize("action", ["show", "close"])
def test_batch_unknown_id_exits_with_not_found(action):
    with pytest.raises(NotFound, match="Batch 4711 does not exist in the database 'default'"):
        run(action, 4711)
