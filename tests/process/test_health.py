"""The worker writes a health file, from which `pgqueue health` judges whether the worker is alive and ready."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from django_pgqueue import health
from tests.app import tasks
from tests.helpers import scalar

from .harness import django, environment

HEALTHY = {"status": "ok", "since": "2026-01-01T00:00:00+00:00", "pid": 1, "errors": 0, "processes": [{"running": 2}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "health.json"


@pytest.mark.parametrize(
    ("status", "age_seconds", "alive", "ready"),
    [
        ("ok", 0, True, True),
        ("ok", 29.5, True, True),
        ("ok", 30.5, False, False),
        ("waiting", 0, True, False),
        ("database away", 0, True, False),
        ("database away", 31, False, False),
        ("foreign database", 0, True, False),
        ("stopping", 0, True, False),
    ],
)
def test_health_by_status_and_age_is_alive_or_ready(path, status, age_seconds, alive, ready, monkeypatch):
    path.write_text(json.dumps(HEALTHY | {"status": status}))
    now = path.stat().st_mtime + age_seconds
    monkeypatch.setattr(health, "time", SimpleNamespace(time=lambda: now))
    assert health.judge(str(path))[0] is alive
    assert health.judge(str(path), ready=True)[0] is ready


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"status": "ok", "since": "", "processes": 7}'])
def test_health_of_invalid_file_is_not_alive(path, text):
    path.write_text(text)
    is_alive, message = health.judge(str(path))
    assert not is_alive
    assert str(path) in message


def test_health_without_file_reports_worker_not_running(path):
    assert health.judge(str(path)) == (False, f"worker not running: health file {path} does not exist")


def test_health_command_without_django_settings_works(path):
    path.write_text(json.dumps(HEALTHY))
    command = [sys.executable, "-m", "django_pgqueue.health", str(path)]
    bare = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([*command, "--ready"], env=bare, capture_output=True, text=True, check=False)
    output = "ok since 2026-01-01T00:00:00+00:00: 1 process, 2 jobs running\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    path.unlink()
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.process
def test_health_file_in_missing_folder_ends_worker_at_start(start, tmp_path):
    worker = start("--health-file", str(tmp_path / "nowhere" / "health.json"))
    assert worker.exit_code() == 1
    assert "--health-file cannot be written" in worker.said


@pytest.mark.process
def test_health_file_follows_worker_from_start_to_end(start, path, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    worker = start("--health-file", str(path), "--processes", "2", "--concurrency", "3")
    worker.wait_until(lambda: path.exists() and read(path)["status"] == "ok" and len(read(path)["processes"]) == 2)
    worker.wait_until(lambda: all(process["schedules_age_seconds"] is not None for process in read(path)["processes"]))
    tasks.wait_for_file.enqueue(str(done), started=str(started))
    worker.wait_until(started.exists)  # a stop would release a claimed job that has not started
    worker.wait_until(lambda: sum(process["running"] for process in read(path)["processes"]) == 1)
    about = read(path)
    assert about["pid"] == worker.process.pid
    assert [process["pid"] for process in about["processes"]] == worker.children
    for process in about["processes"]:
        assert process["worker_id"] > 0
        assert process["lease_left_seconds"] > 0
        for activity in ("claim", "rescue", "schedules"):
            assert (process[f"{activity}_age_seconds"] or 0.0) >= 0
        assert process["errors"] == 0
    assert "1 job running" in django("pgqueue", "health", str(path), "--ready")
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: read(path)["status"] == "stopping")
    done.touch()
    worker.exit_code()
    assert list(tmp_path.glob("health*")) == []


def read(path):
    return json.loads(path.read_text())


@pytest.mark.process
def test_health_while_waiting_for_database_is_not_ready(start, path, unused_port):
    nowhere = {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1", "PORT": str(unused_port)}
    worker = start("--health-file", str(path), database=nowhere)
    worker.wait_until(lambda: "waiting" in worker.said)
    assert read(path)["status"] == "waiting"
    command = [sys.executable, "-m", "django", "pgqueue", "health", str(path)]
    done = subprocess.run([*command, "--ready"], env=environment(nowhere), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:7], done.stderr) == (1, "waiting", "")


@pytest.mark.process
def test_health_file_of_killed_worker_becomes_stale(start, path):
    worker = start("--health-file", str(path))
    worker.wait_until(lambda: path.exists() and read(path)["status"] == "ok")
    worker.send(signal.SIGKILL)
    worker.exit_code()
    worker.wait_until(lambda: not health.judge(str(path), max_age_seconds=1.5)[0])


@pytest.mark.process
def test_health_file_update_sends_no_statement(start, path, watcher):
    worker = start("--health-file", str(path), "--no-listen", LEASE=600.0, POLL_INTERVAL_WITHOUT_LISTEN=60.0)
    worker.wait_until(lambda: path.exists() and read(path)["status"] == "ok")
    query = (
        "SELECT max(query_start) FROM pg_stat_activity "
        "WHERE application_name = 'pgqueue:supervisor' AND datname = current_database()"
    )
    before, written = scalar(watcher, query), path.stat().st_mtime
    worker.wait_until(lambda: path.stat().st_mtime > written + 2)
    assert scalar(watcher, query) == before
