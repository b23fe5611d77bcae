"""What jobs change for their whole process: when it counts as left behind, and what is said of it."""

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

from django_pgqueue.lifecycle import Claimed
from django_pgqueue.worker.slots import leaks
from django_pgqueue.worker.slots.inflight import InFlight


class Jobs:
    """A hand whose jobs the test starts and ends."""

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
def watch(jobs, monkeypatch):
    """Begins to watch this very process; what a test changes has to be taken back by the test."""
    monkeypatch.setattr(leaks, "YOUNG_SECONDS", 0.0)
    with closing(asyncio.new_event_loop()) as loop:
        yield lambda: leaks.LeakDetector(
            jobs.in_flight, loop
        )  # in the test itself, for pytest changes the output before it


@pytest.fixture
def elsewhere(tmp_path):
    home = os.getcwd()
    yield lambda: os.chdir(tmp_path)
    os.chdir(home)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if " leaked: " in record.getMessage()]


def test_an_idle_process_is_not_even_looked_at(watch, elsewhere, monkeypatch):
    watching = watch()
    monkeypatch.setattr(leaks, "global_state", lambda: pytest.fail("looked"))
    assert not watching.calls_for_another_process()


def test_jobs_that_leave_nothing_are_not_spoken_of(watch, jobs, caplog):
    watching = watch()
    jobs.start(1)
    jobs.end(1)
    assert not watching.calls_for_another_process()
    assert lines(caplog) == []


def test_what_is_left_is_told_with_the_task_s_name_once(watch, jobs, elsewhere, caplog):
    watching = watch()
    jobs.start(1)
    elsewhere()
    jobs.end(1)
    assert watching.calls_for_another_process()
    assert watching.calls_for_another_process()
    [line] = lines(caplog)
    assert line.startswith("task shop.tasks.one leaked: the working directory")
    assert os.getcwd() in line


def test_what_a_running_job_may_take_back_does_not_count_yet(watch, jobs, elsewhere, caplog):
    watching = watch()
    home = os.getcwd()
    jobs.start(1)
    elsewhere()
    assert not watching.calls_for_another_process()
    os.chdir(home)
    jobs.end(1)
    assert not watching.calls_for_another_process()
    assert lines(caplog) == []


def test_a_process_that_is_never_idle_is_judged_too(watch, jobs, elsewhere):
    watching = watch()
    jobs.start(1)
    jobs.start(2, "shop.tasks.two")
    elsewhere()
    assert not watching.calls_for_another_process()
    jobs.start(3, "shop.tasks.three")
    jobs.end(1)
    assert not watching.calls_for_another_process(), "the second may be its author"
    jobs.end(2)
    assert watching.calls_for_another_process()


def test_a_young_process_is_kept(watch, jobs, elsewhere, monkeypatch, caplog):
    watching = watch()
    monkeypatch.setattr(leaks, "YOUNG_SECONDS", 60.0)
    jobs.start(1)
    elsewhere()
    jobs.end(1)
    assert not watching.calls_for_another_process()
    assert len(lines(caplog)) == 1


def test_the_environment_is_told_of_by_names_and_no_reason_to_end(watch, jobs, monkeypatch, caplog):
    watching = watch()
    jobs.start(1)
    monkeypatch.setenv("SECRET_OF_MINE", "hush")
    jobs.end(1)
    assert not watching.calls_for_another_process()
    [line] = lines(caplog)
    assert "environment variables (SECRET_OF_MINE); no action is taken" in line


def test_settings_are_told_of_by_names(watch, jobs, caplog):
    watching = watch()
    jobs.start(1)
    with override_settings(SECRET_OF_MINE="hush"):  # noqa: S106 -- made up
        jobs.end(1)
        assert watching.calls_for_another_process()
    [line] = lines(caplog)
    assert "SECRET_OF_MINE" in line
    assert "hush" not in line


def test_a_setting_changed_by_hand_is_seen(watch, jobs, caplog):
    watching = watch()
    before = settings.LOGIN_URL
    jobs.start(1)
    settings.LOGIN_URL = "elsewhere"
    try:
        jobs.end(1)
        assert watching.calls_for_another_process()
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
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(leaks.MORE_FILES + 10)]
    return lambda: [os.close(file) for file in files]


def many_threads():
    done = threading.Event()
    for _ in range(leaks.MORE_THREADS + 10):
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
def test_what_else_is_seen(watch, jobs, change, caplog):
    watching = watch()
    jobs.start(1)
    undo = change()
    try:
        jobs.end(1)
        assert watching.calls_for_another_process()
    finally:
        undo()
    assert len(lines(caplog)) == 1


def test_subtasks_left_on_the_event_loop_are_counted(watch, jobs):
    watching = watch()

    async def sleep() -> None:
        await asyncio.sleep(60)

    jobs.start(1)
    left = [watching.loop.create_task(sleep()) for _ in range(leaks.MORE_SUBTASKS + 1)]
    jobs.end(1)
    assert watching.calls_for_another_process()
    for task in left:
        task.cancel()
    watching.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def test_a_process_logs_a_limited_number_of_leaks(watch, jobs, elsewhere, monkeypatch, caplog):
    monkeypatch.setattr(leaks, "LOGGED_LIMIT", 1)
    watching = watch()
    jobs.start(1)
    elsewhere()
    undo = changed_umask()
    try:
        jobs.end(1)
        assert watching.calls_for_another_process()
    finally:
        undo()
    assert len(lines(caplog)) == 1
