"""Test when a worker is alive and ready, by the state in its shared memory, and how systemd and the file learn it."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time

import pytest

from django_pgqueue import health
from django_pgqueue.worker.runtime import health_report, shared_memory, worker_memory
from django_pgqueue.worker.runtime.health_report import HealthReport, judge
from django_pgqueue.worker.runtime.shared_memory import ANSWERS_AT, HealthMemory, lease_clock
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from django_pgqueue.worker.supervision import health_thread
from django_pgqueue.worker.supervision.health_thread import HealthFile, SystemdNotifier
from tests.helpers import Clock, wait_until


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Return the clock of this file and of the modules that judge by it. It does not advance by itself."""
    modules = (health_report, shared_memory, health_thread, worker_memory, sys.modules[__name__])
    return Clock(monkeypatch, *modules)


@pytest.fixture
def memory(monkeypatch):
    """Return the memory of a worker with one process that works."""
    monkeypatch.setattr("django_pgqueue.worker.runtime.worker_memory.health_memory", HealthMemory())
    memory = WorkerMemory(1)
    add_process(memory, 11)
    return memory


def add_process(memory, pid):
    process, now = memory.free_place(), time.monotonic()
    process.pid, process.started_at, process.responded_at = pid, now, now
    process.lease_until = lease_clock() + 60.0
    process.answered("claim")
    return process


def age_of_claim(process, seconds):
    """Let the last answer to a claim be this old."""
    struct.pack_into("=d", process.memory, ANSWERS_AT, time.monotonic() - seconds)


def change(memory, **changes):
    """Change fields of the worker or of its process. A number is added to the value that a field has, or to now."""
    [process] = memory.living()
    for name, seconds in changes.items():
        owner = memory if hasattr(memory, name) else process
        if name == "is_foreign":
            memory.is_foreign = True
            continue
        setattr(owner, name, (getattr(owner, name) or time.monotonic()) + seconds)


@pytest.mark.promise("health-names-reasons")
@pytest.mark.parametrize(
    ("changes", "alive", "status", "reason"),
    [
        ({}, True, "ok", ""),
        ({"stopping_since": 0.0}, True, "stopping", "a signal to stop"),
        ({"is_foreign": True}, True, "foreign database", "belongs to another installation"),
        ({"round_finished_at": -299.0}, True, "ok", ""),
        ({"round_finished_at": -301.0}, False, "supervisor stuck", "in one round for 301 s"),
        ({"responded_at": -59.0}, True, "ok", ""),
        ({"responded_at": -61.0}, True, "process stuck", "process 11 has not responded for 61 s"),
        ({"responded_at": -901.0}, False, "process stuck", "901 s"),
        ({"loop_blocked_since": -4.0}, True, "ok", ""),
        (
            {"loop_blocked_since": -6.0},
            True,
            "event loop blocked",
            "event loop of process 11 has been blocked for 6 s",
        ),
        ({"lease_until": -29.0}, True, "ok", ""),
        ({"lease_until": -31.0}, True, "heartbeats late", "process 11 were last extended 31 s ago"),
        ({"outage_since": -3.0}, True, "database away", "failing for 3 s"),
        ({"outage_since": -3.0, "lease_until": -50.0}, True, "database away", "failing for 3 s"),
        ({"completions_behind_since": -1.5}, True, "ok", ""),
        ({"completions_behind_since": -5.0}, True, "completions stuck", "written no result for 5 s"),
        ({"completions_behind_since": -5.0, "outage_since": -3.0}, True, "completions stuck", "for 5 s"),
        ({"completions_behind_since": -5.0, "lease_until": -4.5}, True, "ok", ""),
    ],
)
def test_judge_state_of_worker_gives_status_and_reason(memory, changes, alive, status, reason):
    """The last case: no statement was answered since completions are behind, so the database is away."""
    change(memory, **changes)
    judgement = judge(memory)
    assert (judgement.is_alive, judgement.status, judgement.is_ready) == (alive, status, status == "ok")
    assert reason in (judgement.reasons[0] if judgement.reasons else "")
    assert bool(judgement.reasons) == (status != "ok")


@pytest.mark.promise("health-names-reasons")
@pytest.mark.parametrize(
    ("room_for", "claimed_ago", "status"),
    [(46.0, 46.0, "claims stuck"), (46.0, 44.0, "ok"), (44.0, 46.0, "ok"), (None, 1000.0, "ok")],
)
def test_judge_free_slots_without_claim_is_not_ready(memory, room_for, claimed_ago, status):
    """An idle process polls at least every 30 s. A process without free slots claims nothing, for however long."""
    [process] = memory.living()
    age_of_claim(process, claimed_ago)
    process.claims_expected_since = 0.0 if room_for is None else time.monotonic() - room_for
    assert judge(memory).status == status


def test_judge_before_first_claim_is_waiting(memory):
    [process] = memory.living()
    struct.pack_into("=d", process.memory, ANSWERS_AT, 0.0)
    assert judge(memory)[:2] == (True, "waiting")
    process.pid = 0
    assert judge(memory)[:2] == (True, "waiting"), "no process lives"


def test_worker_memory_place_of_ended_process_is_used_again(memory):
    [first] = memory.living()
    second = add_process(memory, 12)
    assert [process.pid for process in memory.living()] == [11, 12]
    spare = add_process(memory, 13)
    assert [process.pid for process in memory.living()] == [11, 12], "there are twice as many places as processes"
    assert spare not in memory.places
    first.errors, first.pid = 7, 0
    third = memory.free_place()
    assert third is first
    assert third.errors == 0
    assert memory.living() == [second]


# ------------------------------------------------------------------------------- the health file


@pytest.mark.parametrize(
    ("changes", "exit_alive", "exit_ready", "text"),
    [({}, True, True, "ok since"), ({"outage_since": -3.0}, True, False, "(statements have been failing for 3 s)")],
)
def test_health_file_says_what_the_judgement_says(memory, tmp_path, changes, exit_alive, exit_ready, text):
    path = str(tmp_path / "health.json")
    change(memory, **changes)
    HealthFile(path, HealthReport(memory)).write_if_alive()
    assert health.judge(path)[0] is exit_alive
    is_ready, summary = health.judge(path, ready=True)
    assert is_ready is exit_ready
    assert text in summary


def test_health_file_of_stuck_supervisor_is_not_written(memory, tmp_path):
    file = HealthFile(str(tmp_path / "health.json"), HealthReport(memory))
    change(memory, round_finished_at=-301.0)
    file.write_if_alive()
    assert list(tmp_path.iterdir()) == []
    memory.round_finished_at = time.monotonic()
    file.write_if_alive()
    assert json.loads((tmp_path / "health.json").read_text())["alive"] is True


@pytest.mark.parametrize("is_unfinished", [True, False])
def test_health_file_overwrites_no_file_behind_a_link(memory, tmp_path, is_unfinished):
    """Somebody who may write to the directory must not choose which file the worker overwrites."""
    path, other = tmp_path / "health.json", tmp_path / "other"
    other.write_text("kept")
    link = tmp_path / f"health.json.{os.getpid()}" if is_unfinished else path
    link.symlink_to(other)
    HealthFile(str(path), HealthReport(memory)).write()
    assert other.read_text() == "kept"
    assert not path.is_symlink() and json.loads(path.read_text())["alive"] is True
    assert {each.name for each in tmp_path.iterdir()} == {"health.json", "other"}


def test_health_file_replaces_what_a_killed_worker_left(memory, tmp_path):
    path, unfinished = tmp_path / "health.json", tmp_path / f"health.json.{os.getpid()}"
    unfinished.write_text('{"alive": fal')
    HealthFile(str(path), HealthReport(memory)).write()
    assert json.loads(path.read_text())["alive"] is True and not unfinished.exists()


# ------------------------------------------------------------------------------- systemd


@pytest.fixture(params=["path", "abstract"])
def service_manager(request, tmp_path):
    """Return a socket that receives notifications, and its address as in NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"pgqueue-test-{os.getpid()}"
        address = str(tmp_path / "n") if request.param == "path" else f"\0{name}"
        receiver.bind(address)
        receiver.settimeout(5.0)
        yield receiver, address.replace("\0", "@")


def test_systemd_notifier_sends_each_state_to_the_socket(memory, service_manager):
    receiver, address = service_manager
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "4000000", "OTHER": "kept"}
    notifier = SystemdNotifier(HealthReport(memory), environment)
    assert environment == {"OTHER": "kept"}
    assert notifier.interval_seconds == 1.0
    notifier.notify()
    assert receiver.recv(1000) == b"READY=1\nSTATUS=ok: 1 process is ready\nWATCHDOG=1"
    change(memory, stopping_since=0.0)
    notifier.notify()
    assert receiver.recv(1000) == b"STOPPING=1\nSTATUS=stopping: the worker received a signal to stop"


def notifier_of(memory, **environment):
    return SystemdNotifier(HealthReport(memory), {"NOTIFY_SOCKET": "/nowhere", **environment})


def test_systemd_notifier_in_outage_is_started_after_a_while(memory, monkeypatch):
    """A boot that waits for the unit must not wait for the database."""
    change(memory, outage_since=-3.0)
    notifier = notifier_of(memory)
    assert notifier.lines(judge(memory)) == ["STATUS=database away: statements have been failing for 3 s"]
    monkeypatch.setattr(health_thread, "START_SECONDS", -1.0)
    assert notifier.lines(judge(memory)) == ["READY=1"]
    assert notifier.lines(judge(memory)) == []


def test_systemd_watchdog_is_fed_only_while_alive(memory):
    notifier = notifier_of(memory, WATCHDOG_USEC="1000000", WATCHDOG_PID=str(os.getpid()))
    assert notifier.interval_seconds == 0.25
    assert "WATCHDOG=1" in notifier.lines(judge(memory))
    assert "WATCHDOG=1" not in notifier.lines(judge(memory)), "it was sent less than half a second ago"
    notifier._watchdog_at -= 0.5
    change(memory, outage_since=-3.0)
    assert "WATCHDOG=1" in notifier.lines(judge(memory)), "a restart would not help"
    notifier._watchdog_at -= 0.5
    change(memory, round_finished_at=-301.0)
    assert "WATCHDOG=1" not in notifier.lines(judge(memory))


def test_systemd_watchdog_of_another_process_is_not_fed(memory):
    notifier = notifier_of(memory, WATCHDOG_USEC="1000000", WATCHDOG_PID=str(os.getpid() + 1))
    assert "WATCHDOG=1" not in notifier.lines(judge(memory))


def test_systemd_notifier_without_socket_sends_again_later(memory, service_manager):
    receiver, address = service_manager
    notifier = notifier_of(memory)
    notifier.notify()
    notifier._address = address.replace("@", "\0")
    notifier.notify()
    assert receiver.recv(1000).startswith(b"READY=1")


def status_in(path):
    return json.loads(path.read_text())["status"] if path.exists() else ""


def test_health_thread_reports_readiness_before_its_interval(memory, tmp_path):
    [process] = memory.living()
    struct.pack_into("=d", process.memory, ANSWERS_AT, 0.0)
    path = tmp_path / "health.json"
    report = HealthReport(memory)
    thread = health_thread.health_thread(HealthFile(str(path), report), report)
    thread.interval_seconds = 3600.0
    thread.start()
    wait_until(lambda: status_in(path) == "waiting")
    with thread.paused():  # for a fork, as at the start of a worker process
        process.answered("claim")
    wait_until(lambda: status_in(path) == "ok")
    assert thread.close()


@pytest.mark.parametrize(("outage", "pause_seconds"), [(False, 3600.0), (True, 0.05)])
def test_health_thread_checks_often_while_not_ready(memory, tmp_path, outage, pause_seconds):
    path = tmp_path / "health.json"
    report = HealthReport(memory)
    thread = health_thread.health_thread(HealthFile(str(path), report), report)
    thread.interval_seconds = 3600.0
    if outage:
        change(memory, outage_since=-3.0)
    thread.report_if_due()
    assert status_in(path) == ("database away" if outage else "ok")
    assert thread.pause_seconds() == pytest.approx(pause_seconds, rel=0.01)
    path.unlink()
    thread.report_if_due()
    assert not path.exists(), "nothing has changed, and the interval is not over"


def test_health_thread_without_file_and_systemd_is_not_started(memory, monkeypatch, tmp_path):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    report = HealthReport(memory)
    thread = health_thread.health_thread(HealthFile(None, report), report)
    thread.start()
    assert not thread.close()
    thread = health_thread.health_thread(HealthFile(str(tmp_path / "health.json"), report), report)
    thread.start()
    with thread.paused():
        assert thread._thread is None
    assert thread.close()
