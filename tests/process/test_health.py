"""The health file, and what it is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from django_pgqueue import health
from tests.app import tasks
from tests.helpers import scalar

from .harness import django, environment

WELL = {"status": "ok", "since": "2026-01-01T00:00:00+00:00", "pid": 1, "errors": 0, "processes": [{"running": 2}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "health.json"


@pytest.mark.parametrize(
    ("status", "age_seconds", "alive", "ready"),
    [
        ("ok", 0, True, True),
        ("ok", 29, True, True),
        ("ok", 31, False, False),
        ("waiting", 0, True, False),
        ("database away", 0, True, False),
        ("database away", 31, False, False),
        ("stopping", 0, True, False),
    ],
)
def test_alive_is_who_gives_a_sign_and_ready_is_who_can_work_too(path, status, age_seconds, alive, ready):
    path.write_text(json.dumps(WELL | {"status": status}))
    os.utime(path, (path.stat().st_mtime - age_seconds,) * 2)
    assert health.judge(str(path))[0] is alive
    assert health.judge(str(path), ready=True)[0] is ready


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"status": "ok", "since": "", "processes": 7}'])
def test_what_is_no_health_file_is_not_well(path, text):
    path.write_text(text)
    assert health.judge(str(path)) == (False, health.judge(str(path))[1])
    assert str(path) in health.judge(str(path))[1]


def test_without_a_file_there_is_no_worker(path):
    assert health.judge(str(path)) == (False, f"worker not running: health file {path} does not exist")


def test_it_is_asked_without_django_s_settings_too(path):
    path.write_text(json.dumps(WELL))
    command = [sys.executable, "-m", "django_pgqueue.health", str(path)]
    bare = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([*command, "--ready"], env=bare, capture_output=True, text=True, check=False)
    words = "ok since 2026-01-01T00:00:00+00:00: 1 processes, 2 jobs running\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, words, "")
    path.unlink()
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.process
def test_a_path_that_cannot_be_written_ends_the_worker_before_it_begins(start, tmp_path):
    worker = start("--health-file", str(tmp_path / "nowhere" / "health.json"))
    assert worker.exit_code() == 1
    assert "--health-file cannot be written" in worker.said


@pytest.mark.process
def test_a_worker_tells_how_it_is_from_its_start_to_its_end(start, path, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    worker = start("--health-file", str(path), "--processes", "2", "--concurrency", "3")
    worker.wait_until(lambda: path.exists() and told(path)["status"] == "ok" and len(told(path)["processes"]) == 2)
    worker.wait_until(lambda: all(one["schedules_age_seconds"] is not None for one in told(path)["processes"]))
    tasks.wait_for_file.enqueue(str(done), started=str(started))
    worker.wait_until(lambda: sum(one["running"] for one in told(path)["processes"]) == 1)
    about = told(path)
    assert about["pid"] == worker.process.pid
    assert [one["pid"] for one in about["processes"]] == worker.children
    for one in about["processes"]:
        assert one["worker_id"] > 0
        assert one["lease_left_seconds"] > 0
        for turn in ("claim", "rescue", "schedules"):
            assert (one[f"{turn}_age_seconds"] or 0.0) >= 0
        assert one["errors"] == 0
    assert "1 jobs running" in django("pgqueue", "health", str(path), "--ready")
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: told(path)["status"] == "stopping")
    done.touch()
    worker.exit_code()
    assert list(tmp_path.glob("health*")) == []


def told(path):
    return json.loads(path.read_text())


@pytest.mark.process
def test_a_worker_that_waits_for_its_database_to_begin_with_is_alive(start, path, unused_port):
    nowhere = {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1", "PORT": str(unused_port)}
    worker = start("--health-file", str(path), database=nowhere)
    worker.wait_until(lambda: "waiting" in worker.said)
    assert told(path)["status"] == "waiting"
    command = [sys.executable, "-m", "django", "pgqueue", "health", str(path)]
    done = subprocess.run([*command, "--ready"], env=environment(nowhere), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:7], done.stderr) == (1, "waiting", "")


@pytest.mark.process
def test_a_killed_worker_s_file_grows_old(start, path):
    worker = start("--health-file", str(path))
    worker.wait_until(lambda: path.exists() and told(path)["status"] == "ok")
    worker.send(signal.SIGKILL)
    worker.exit_code()
    worker.wait_until(lambda: not health.judge(str(path), max_age_seconds=1.5)[0])


@pytest.mark.process
def test_no_statement_is_sent_for_it(start, path, watcher):
    worker = start("--health-file", str(path), "--no-listen", LEASE=60.0, POLL_INTERVAL_WITHOUT_LISTEN=60.0)
    worker.wait_until(lambda: path.exists() and told(path)["status"] == "ok")
    query = (
        "SELECT max(query_start) FROM pg_stat_activity "
        "WHERE application_name = 'pgqueue:supervisor' AND datname = current_database()"
    )
    before, written = scalar(watcher, query), path.stat().st_mtime
    worker.wait_until(lambda: path.stat().st_mtime > written + 2)
    assert scalar(watcher, query) == before
