"""`pgqueue batch list`, `pgqueue batch show` and `pgqueue batch close`."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from django_pgqueue import Batch
from django_pgqueue.management.subcommands import batch_command
from django_pgqueue.management.subcommands.subcommand import NotFound, UsageError
from django_pgqueue.models import Job
from django_pgqueue.models.batch_states import CONDITIONS
from django_pgqueue.testing import run_jobs
from tests.app import tasks
from tests.documents import table

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


def test_batch_show_says_that_an_open_batch_has_to_be_closed():
    batch = Batch().open()
    tasks.add.using(batch=batch).enqueue(1)
    assert "batch close" not in run("show", batch.id)
    run_jobs()
    assert f"`manage.py pgqueue batch close {batch.id}` completes the batch." in run("show", batch.id)
    batch.close()
    assert "batch close" not in run("show", batch.id)


@pytest.fixture
def batches():
    """Return the ids of an open, a running, a failed and a succeeded batch."""
    opened = Batch(description="open\x1b[31m").open()
    with Batch(description="x" * 300) as running:
        tasks.add.using(batch=running, run_after=3600).enqueue(1)
    with Batch(parent=opened) as failed:
        tasks.fail.using(batch=failed, max_attempts=1).enqueue("error")
    with Batch() as succeeded:
        tasks.add.using(batch=succeeded).enqueue_many([(1,), (2,)])
    run_jobs()
    return {"open": opened.id, "running": running.id, "failed": failed.id, "succeeded": succeeded.id}


def test_batch_list_filters_by_state(batches):
    def ids(*arguments):
        return [batch["batch_id"] for batch in json.loads(run("list", "--json", *arguments))["batches"]]

    assert ids() == sorted(batches.values(), reverse=True)
    assert ids("--state", "running") == [batches["running"]]
    assert ids("--state", "succeeded") == [batches["succeeded"]]
    assert ids("--state", "complete") == [batches["succeeded"], batches["failed"]]
    assert ids("--state", "failed") == [batches["failed"], batches["open"]]
    assert ids("--state", "open") == [batches["open"]]
    assert [row[0].strip("`") for row in table("docs/reference/cli.md", "state of a batch")] == list(CONDITIONS)


def test_batch_list_prints_states_and_figures(batches, capsys):
    lines = run("list").splitlines()
    assert lines[0].split() == ["batch", "state", "created", "jobs", "description"]
    by_id = {int(line.split()[0]): line for line in lines[1:]}
    assert "failed, complete" in by_id[batches["failed"]] and "1 dead" in by_id[batches["failed"]]
    assert "failed, open" in by_id[batches["open"]] and "\\x1b" in by_id[batches["open"]]
    assert "1 ready" in by_id[batches["running"]] and by_id[batches["running"]].endswith(" " + "x" * 200)
    assert "2 succeeded" in by_id[batches["succeeded"]]
    assert "4 batches." in capsys.readouterr().err


def test_batch_list_says_whether_its_numbers_are_exact(batches, monkeypatch):
    def exact():
        return {each["batch_id"]: each["is_exact"] for each in json.loads(run("list", "--json"))["batches"]}

    assert set(exact().values()) == {True}
    monkeypatch.setattr(batch_command, "COUNTED", 2)
    assert exact() == {batch_id: batch_id != batches["succeeded"] for batch_id in batches.values()}
    assert "2+ succeeded" in run("list")


def test_batch_list_stops_at_the_limit(batches, capsys):
    document = json.loads(run("list", "--limit", 1, "--json"))
    assert document["has_more"] and len(document["batches"]) == 1
    assert document["batches"][0]["succeeded"] == 2
    run("list", "--limit", 1)
    assert "1 batch. There are more: pass --limit." in capsys.readouterr().err
    with pytest.raises(UsageError, match="Invalid --limit 0: use a number from 1 to 1,000"):
        run("list", "--limit", 0)


def test_batch_close_completes_a_batch_without_unfinished_jobs():
    batch = Batch(on_complete=tasks.noop.s()).open()
    assert "Closed" in run("close", batch.id)
    assert "Nothing to do" in run("close", batch.id)
    assert Job.objects.get().task_name == tasks.noop.name


@pytest.mark.parametrize("action", ["show", "close"])
def test_batch_unknown_id_exits_with_not_found(action):
    with pytest.raises(NotFound, match="Batch 4711 does not exist in the database 'default'"):
        run(action, 4711)
