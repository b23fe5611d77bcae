"""Test when a change that a job makes to its whole process counts as a leak, and what is logged about it."""

from __future__ import annotations

import asyncio
import io
import locale
import os
import socket
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.test import override_settings

from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.slots import leak_detector
from django_pgqueue.worker.slots.inflight import InFlight


class Jobs:
    """Jobs in flight, which the test starts and ends."""

    def __init__(self) -> None:
        self.in_flight = InFlight(4)

    def start(self, key: int, name: str = "shop.tasks.one") -> None:
        self.in_flight.add([Claimed(key, key, name, "default", 0, datetime.now(UTC), "{}", 1, 1, 0, False, None, 0.0)])
        assert self.in_flight.start(key, 0, wait=False) is not None

    def end(self, key: int) -> None:
        self.in_flight.end(key)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def loop():
    with closing(asyncio.new_event_loop()) as loop:
        yield loop


@pytest.fixture
def start_detector(jobs, loop, monkeypatch):
    """Return a function that starts a leak detector for this process. Each test must undo what it changes."""
    monkeypatch.setattr(leak_detector, "YOUNG_SECONDS", 0.0)
    # The test itself must create the detector, because pytest replaces the output after the fixtures have run.
    return lambda: leak_detector.LeakDetector(jobs.in_flight, lambda: loop)


@pytest.fixture
def change_directory(tmp_path):
    home = os.getcwd()
    yield lambda: os.chdir(tmp_path)
    os.chdir(home)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if " leaked: " in record.getMessage()]


def test_leak_detector_idle_process_is_not_checked(start_detector, change_directory, monkeypatch):
    detector = start_detector()
    monkeypatch.setattr(leak_detector, "global_state", lambda: pytest.fail("looked"))
    assert not detector.calls_for_another_process()


def test_leak_detector_job_without_leak_logs_nothing(start_detector, jobs, caplog):
    detector = start_detector()
    jobs.start(1)
    jobs.end(1)
    assert not detector.calls_for_another_process()
    assert lines(caplog) == []


def test_leak_detector_leak_is_logged_once_with_task_name(start_detector, jobs, change_directory, caplog):
    detector = start_detector()
    jobs.start(1)
    change_directory()
    jobs.end(1)
    assert detector.calls_for_another_process()
    assert detector.calls_for_another_process()
    [line] = lines(caplog)
    assert line.startswith("task shop.tasks.one leaked: the working directory")
    assert os.getcwd() in line


def test_leak_detector_change_that_job_undoes_is_no_leak(start_detector, jobs, change_directory, caplog):
    detector = start_detector()
    home = os.getcwd()
    jobs.start(1)
    change_directory()
    assert not detector.calls_for_another_process()
    os.chdir(home)
    jobs.end(1)
    assert not detector.calls_for_another_process()
    assert lines(caplog) == []


def test_leak_detector_process_never_idle_detects_leak(start_detector, jobs, change_directory):
    detector = start_detector()
    jobs.start(1)
    jobs.start(2, "shop.tasks.two")
    change_directory()
    assert not detector.calls_for_another_process()
    jobs.start(3, "shop.tasks.three")
    jobs.end(1)
    assert not detector.calls_for_another_process(), "the second job may have changed the directory, and still runs"
    jobs.end(2)
    assert detector.calls_for_another_process()


def test_leak_detector_young_process_logs_but_is_kept(start_detector, jobs, change_directory, monkeypatch, caplog):
    detector = start_detector()
    monkeypatch.setattr(leak_detector, "YOUNG_SECONDS", 60.0)
    jobs.start(1)
    change_directory()
    jobs.end(1)
    assert not detector.calls_for_another_process()
    assert len(lines(caplog)) == 1


def test_leak_detector_environment_logs_name_and_keeps_process(start_detector, jobs, monkeypatch, caplog):
    detector = start_detector()
    jobs.start(1)
    monkeypatch.setenv("SECRET_OF_MINE", "hush")
    jobs.end(1)
    assert not detector.calls_for_another_process()
    [line] = lines(caplog)
    assert "environment variables (SECRET_OF_MINE); no action is taken" in line


def test_leak_detector_task_factory_is_logged_once(start_detector, jobs, loop, caplog):
    detector = start_detector()
    jobs.start(1)
    loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))
    jobs.end(1)
    assert not detector.calls_for_another_process()
    jobs.start(2, "shop.tasks.two")
    jobs.end(2)
    assert not detector.calls_for_another_process()
    [line] = lines(caplog)
    assert line.startswith("task shop.tasks.one leaked: the task factory of the event loop")
    assert line.endswith("no action is taken")


def test_leak_detector_changed_settings_logs_names_only(start_detector, jobs, caplog):
    detector = start_detector()
    jobs.start(1)
    with override_settings(SECRET_OF_MINE="hush"):  # noqa: S106 -- a made-up value
        jobs.end(1)
        assert detector.calls_for_another_process()
    [line] = lines(caplog)
    assert "SECRET_OF_MINE" in line
    assert "hush" not in line


def test_leak_detector_assigned_setting_is_detected(start_detector, jobs, caplog):
    detector = start_detector()
    before = settings.LOGIN_URL
    jobs.start(1)
    settings.LOGIN_URL = "elsewhere"
    try:
        jobs.end(1)
        assert detector.calls_for_another_process()
    finally:
        settings.LOGIN_URL = before
    assert "Django's settings (LOGIN_URL)" in lines(caplog)[0]


def changed_umask():
    before = os.umask(0o077)
    return lambda: os.umask(before)


def changed_recursion_limit():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 1)
    return lambda: sys.setrecursionlimit(before)


def changed_locale():
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C" if before != "C" else "C.UTF-8")
    return lambda: locale.setlocale(locale.LC_CTYPE, before)


def changed_timeout():
    socket.setdefaulttimeout(7)
    return lambda: socket.setdefaulttimeout(None)


def changed_output():
    before, sys.stdout = sys.stdout, io.StringIO()
    return lambda: setattr(sys, "stdout", before)


def open_many():
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(leak_detector.MORE_FILES + 10)]
    return lambda: [os.close(file) for file in files]


def many_threads():
    done = threading.Event()
    for _ in range(leak_detector.MORE_THREADS + 10):
        threading.Thread(target=done.wait, daemon=True).start()
    return done.set


@pytest.mark.parametrize(
    "change",
    [
        changed_umask,
        changed_recursion_limit,
        changed_locale,
        changed_timeout,
        changed_output,
        open_many,
        many_threads,
    ],
)
def test_leak_detector_other_process_state_is_detected(start_detector, jobs, change, caplog):
    detector = start_detector()
    jobs.start(1)
    undo = change()
    try:
        jobs.end(1)
        assert detector.calls_for_another_process()
    finally:
        undo()
    assert len(lines(caplog)) == 1


def test_leak_detector_subtasks_left_on_loop_are_detected(start_detector, jobs, loop):
    detector = start_detector()

    async def sleep() -> None:
        await asyncio.sleep(60)

    jobs.start(1)
    left = [loop.create_task(sleep()) for _ in range(leak_detector.MORE_SUBTASKS + 1)]
    jobs.end(1)
    assert detector.calls_for_another_process()
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def test_leak_detector_many_leaks_logs_up_to_the_limit(start_detector, jobs, change_directory, monkeypatch, caplog):
    monkeypatch.setattr(leak_detector, "LOGGED_LIMIT", 1)
    detector = start_detector()
    jobs.start(1)
    change_directory()
    undo = changed_umask()
    try:
        jobs.end(1)
        assert detector.calls_for_another_process()
    finally:
        undo()
    assert len(lines(caplog)) == 1
