"""A worker on a database whose rows were loaded by `loaddata`."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from django_pgqueue.models import Installation, Job
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.process


def load_again(engine, path, **changes):
    """Dump the tables, empty them and load the dump. Change the recorded installation before the dump."""
    Installation.objects.update(**changes)
    call_command("dumpdata", "pgqueue", output=str(path), verbosity=0)
    helpers.empty_tables(engine)
    call_command("loaddata", str(path), verbosity=0)


def test_worker_runs_jobs_loaded_into_their_own_database(start, engine, tmp_path):
    """The dump has the record of this installation, so the worker needs no `adopt`."""
    before = tasks.add.enqueue(1, 2)
    assert start("--until-empty").has_drained()
    waiting = tasks.add.enqueue(3, 4)
    load_again(engine, tmp_path / "dump.json")
    assert Installation.objects.count() == 1
    assert start("--until-empty").has_drained()
    assert dict(Job.objects.values_list("pk", "result")) == {before.pk: 3, waiting.pk: 7}


def test_worker_waits_after_loading_jobs_of_another_database(start, engine, tmp_path):
    assert start("--until-empty").has_drained()
    waiting = tasks.add.enqueue(3, 4)
    load_again(engine, tmp_path / "dump.json", system_identifier="7")
    worker = start("--until-empty")
    worker.wait_until(lambda: "pgqueue adopt" in worker.said)
    assert Job.objects.get(pk=waiting.pk).state == "ready"
