"""Tests of the fixtures and the marker of the pytest plugin, and of a real worker in a test."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgqueue.models import Job
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.testing import live_worker as module
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = pytest.mark.slow


@pytest.mark.quick
def test_pgqueue_fixture_provides_tools_and_database(pgqueue):
    tasks.noop.enqueue()
    pgqueue.assert_enqueued(tasks.noop)
    assert pgqueue.run_jobs() == 1


@pytest.mark.quick
@pytest.mark.pgqueue(MAX_ATTEMPTS=3)
def test_pgqueue_marker_changes_setting():
    assert get_settings().MAX_ATTEMPTS == 3


def test_pgqueue_marker_absent_keeps_default():
    assert get_settings().MAX_ATTEMPTS == 10


# ------------------------------------------------------------------ IMMEDIATE

immediate = pytest.mark.pgqueue(IMMEDIATE=True)


@pytest.mark.quick
@immediate
@pytest.mark.django_db
def test_immediate_enqueue_runs_job_with_json_values():
    job = tasks.add.enqueue(1, b=2)
    assert (job.state, job.result, job.attempt) == ("succeeded", 3, 1)
    assert tasks.plus.enqueue((1,), b=[2]).result == [1, 2]


@immediate
@pytest.mark.django_db(transaction=True)
def test_immediate_without_transaction_runs_job():
    assert tasks.add.enqueue(1, b=2).state == "succeeded"


@pytest.mark.quick
@immediate
@pytest.mark.django_db
def test_immediate_bulk_and_django_tasks_run_jobs():
    ids = tasks.add.enqueue_many([((n,), {"b": n}) for n in range(3)])
    assert [job.result for job in Job.objects.filter(pk__in=ids).order_by("pk")] == [0, 2, 4]
    assert framework.add.enqueue(1, b=2).return_value == 3


@immediate
@pytest.mark.django_db
def test_immediate_invalid_call_raises_same_errors():
    with pytest.raises(TypeError, match="cannot be called"):
        tasks.add.enqueue()
    with pytest.raises(TypeError, match="JSON cannot represent"):
        tasks.plus.enqueue(object(), b=1)


@immediate
@pytest.mark.django_db
def test_immediate_failing_task_is_logged_not_raised(caplog):
    result = framework.boom.enqueue("logged")
    assert result.status == "FAILED"
    assert "ValueError: logged" in caplog.text


@immediate
@pytest.mark.django_db
def test_immediate_delayed_job_stays_ready():
    assert tasks.noop.using(run_after=60).enqueue().state == "ready"


@pytest.mark.django_db
def test_immediate_off_job_stays_ready():
    assert tasks.noop.enqueue().state == "ready"


# ------------------------------------------------------------------ a real worker


@pytest.mark.pgqueue(POLL_INTERVAL_WITHOUT_LISTEN=0.5, LEASE=timedelta(seconds=30))
def test_live_worker_runs_committed_jobs(live_worker):
    job = tasks.add.enqueue(1, b=2)
    result = framework.third_time.enqueue()
    live_worker.wait_until_idle()
    job.refresh_from_db()
    result.refresh()
    assert (job.state, job.result) == ("succeeded", 3)
    assert (result.return_value, result.attempts, len(set(result.worker_ids))) == (3, 3, 1)
    live_worker.stop()
    assert "LookupError" in live_worker.log
    live_worker.start("--queues", "other")
    tasks.noop.using(queue_name="other").enqueue()
    live_worker.wait_until_idle()


@pytest.mark.promise("defect-live-worker-of-channels")
def test_live_worker_behind_channels_uses_our_runworker(transactional_db, tmp_path, monkeypatch):
    """Channels has a command `runworker` too, and its app can come first in INSTALLED_APPS."""
    commands = tmp_path / "fake_channels" / "management" / "commands"
    commands.mkdir(parents=True)
    for package in (commands, commands.parent, commands.parent.parent):
        (package / "__init__.py").touch()
    (commands / "runworker.py").write_text("raise SystemExit('the worker of Channels')")
    (tmp_path / "channels_settings.py").write_text(
        "from tests import settings\n"
        "globals().update({name: value for name, value in vars(settings).items() if name.isupper()})\n"
        "INSTALLED_APPS = ['fake_channels', *settings.INSTALLED_APPS]"
    )
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "channels_settings")
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = module.LiveWorker(tmp_path).start()
    job = tasks.add.enqueue(1, b=2)
    worker.wait_until_idle()
    worker.stop()
    job.refresh_from_db()
    assert job.result == 3


def test_live_worker_start_fails_shows_reason(transactional_db, tmp_path):
    with pytest.raises(RuntimeError, match="unrecognized arguments: --nonsense"):
        module.LiveWorker(tmp_path).start("--nonsense")


def test_live_worker_not_ready_in_time_is_ended(transactional_db, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 0.01)
    worker = module.LiveWorker(tmp_path)
    with pytest.raises(RuntimeError, match="not ready"):
        worker.start()
    assert worker._process is None


@pytest.mark.parametrize("tasks_setting", [{"default": {"BACKEND": "x", "OPTIONS": {"BACKOFF": print}}}])
def test_live_worker_option_not_serializable_is_named(transactional_db, tmp_path, settings, tasks_setting):
    settings.TASKS = tasks_setting
    with pytest.raises(RuntimeError, match="built-in function print"):
        module.LiveWorker(tmp_path).start()
