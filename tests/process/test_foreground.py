"""`manage.py pgqueue run` runs one job in the foreground; `runworker --reload` restarts when the code changes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_pgqueue.models import Job, Worker
from tests import helpers
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = pytest.mark.django_db(transaction=True)


def run(job_id, *arguments):
    call_command("pgqueue", "run", str(job_id), *arguments)


def test_pgqueue_run_job_not_yet_due_succeeds(capsys):
    job = tasks.add.using(run_after=3600).enqueue(1, b=2)
    run(job.pk)
    job.refresh_from_db()
    assert (job.state, job.result, job.attempt) == ("succeeded", 3, 1)
    assert "succeeded" in capsys.readouterr().out
    [worker] = Worker.objects.all()
    assert worker.stopped_at is not None
    assert job.executions.get().worker_id == worker.pk


def test_pgqueue_run_cancelled_job_is_notified(tmp_path):
    started = tmp_path / "started"
    job = tasks.look_around.enqueue(str(started))

    def cancel() -> None:
        helpers.wait_until(started.exists)
        job.cancel()
        connection.close()

    cancelling = helpers.Background(cancel)
    with contextlib.suppress(SystemExit):
        run(job.pk)
    cancelling.result()
    job.refresh_from_db()
    assert (job.state, job.executions.get().error) == ("cancelled", "stopped half-way")


def test_pgqueue_run_failing_job_prints_traceback_and_exits_1(capsys):
    result = framework.boom.enqueue("shown")
    with pytest.raises(SystemExit) as exit_:
        run(result.id)
    assert exit_.value.code == 1
    assert "ValueError: shown" in capsys.readouterr().err
    with pytest.raises(CommandError, match="is dead, but only a ready job can be run: pass --retry"):
        run(result.id)
    with pytest.raises(SystemExit):
        run(result.id, "--retry")


def test_pgqueue_run_missing_or_running_job_is_refused(engine):
    with pytest.raises(CommandError, match="Job 4711 does not exist"):
        run(4711)
    job = tasks.noop.enqueue()
    helpers.claim_all(engine)
    with pytest.raises(CommandError, match="is running, but only a ready job can be run: a worker has claimed it"):
        run(job.pk)


def test_pgqueue_run_job_leaving_transaction_keeps_success(engine):
    job = tasks.spoil.enqueue("transaction")
    run(job.pk)
    connection.close()
    assert helpers.state_of(engine, job.pk) == "succeeded"


PROJECT = {
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
execute_from_command_line(sys.argv)
""",
    "project/__init__.py": "",
    "project/settings.py": """
import json, os
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django_pgqueue", "shop"]
DATABASES = json.loads(os.environ["RELOADED_DATABASES"])
LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django_pgqueue": {"handlers": ["console"], "level": "INFO"}},
}
""",
    "shop/__init__.py": "",
    "shop/tasks.py": """
import time
from django_pgqueue import task

@task
def answer():
    return "old"

@task
def hang():
    time.sleep(60)
    return "hung"
""",
}


def test_reload_after_code_change_restarts_and_charges_nothing(engine, committing, tmp_path):
    import json

    from django.db import connections

    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    databases = {"default": dict(connections["default"].settings_dict)}
    environment = {
        **os.environ,
        "RELOADED_DATABASES": json.dumps(databases, default=str),
        "PYTHONPATH": os.getcwd(),
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    log = tmp_path / "log"
    with log.open("wb") as file:
        watcher = subprocess.Popen(
            [sys.executable, "manage.py", "runworker", "--reloa"],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        hanging = helpers.make_job(engine, task_name="shop.tasks.hang")
        helpers.wait_until(lambda: helpers.state_of(engine, hanging) == "running", 30)
        old = helpers.make_job(engine, task_name="shop.tasks.answer")
        helpers.wait_until(lambda: helpers.state_of(engine, old) == "succeeded", 30)
        code = tmp_path / "shop/tasks.py"
        code.write_text(code.read_text().replace("old", "new").replace("time.sleep(60)", "pass"))
        helpers.wait_until(lambda: helpers.state_of(engine, hanging) == "succeeded", 60)
        new = helpers.make_job(engine, task_name="shop.tasks.answer")
        helpers.wait_until(lambda: helpers.state_of(engine, new) == "succeeded", 30)
        assert [Job.objects.get(pk=pk).result for pk in (old, new)] == ["old", "new"]
        assert (Job.objects.get(pk=hanging).attempt, Job.objects.get(pk=hanging).crashes) == (1, 0)
    finally:
        watcher.send_signal(signal.SIGTERM)
        code = watcher.wait(30)
    assert code == 0, log.read_text()
    assert log.read_text().count("has changed: restarting the worker") == 1
