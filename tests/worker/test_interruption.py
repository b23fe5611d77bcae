"""Test where an exception may be raised in a thread: waits can be interrupted, and no lock stays locked."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from django_pgqueue.worker.slots import interruption
from tests.helpers import wait_until

PROGRAM = Path(__file__).with_name("interruptions.py")
OTHERS = sorted(Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python"))


@pytest.mark.slow
@pytest.mark.promise("defect-interrupted-lock")
@pytest.mark.parametrize(
    "python", [sys.executable, *map(str, OTHERS)], ids=["own", *(path.parent.parent.name for path in OTHERS)]
)
def test_interrupted_threads_leave_no_lock_locked(python):
    run = [python, str(PROGRAM), interruption.__file__, "100"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr


class Slow:
    """A context manager whose slow `__enter__` calls a Python function of another name, as one in C code might."""

    def __init__(self) -> None:
        self.entering, self.may_go_on = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self.entering.set()
        while not self.may_go_on.is_set():
            pass

    def __exit__(self, *args: object) -> None:
        pass


def frame_of(thread: threading.Thread):
    return sys._current_frames()[thread.ident or 0]


def started(function) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_thread_that_enters_lock_may_not_be_interrupted():
    """The thread waits inside the `with` statement itself."""
    lock = threading.Lock()

    def take():
        with lock:
            pass

    with lock:
        thread = started(take)
        wait_until(lambda: frame_of(thread).f_code.co_name == "take")
        wait_until(lambda: not interruption.may_interrupt(frame_of(thread)))
    thread.join(10)


def test_thread_in_enter_function_may_not_be_interrupted():
    slow = Slow()

    def take():
        with slow:
            pass

    thread = started(take)
    slow.entering.wait(10)
    wait_until(lambda: frame_of(thread).f_code.co_name == "__enter__")
    assert not interruption.may_interrupt(frame_of(thread))
    slow.may_go_on.set()
    thread.join(10)


@pytest.mark.parametrize("kind", ["event", "polling", "queue", "join", "condition"])
def test_thread_that_waits_may_be_interrupted(kind):
    event, items, condition, end = threading.Event(), queue.Queue(), threading.Condition(), threading.Event()

    def wait():
        if kind == "event":
            event.wait()
        elif kind == "polling":
            while not event.wait(0.01):
                pass
        elif kind == "queue":
            items.get()
        elif kind == "condition":
            with condition:
                condition.wait()
        else:
            started(end.wait).join()

    thread = started(wait)
    wait_until(lambda: interruption.may_interrupt(frame_of(thread)) and frame_of(thread).f_code.co_name != "wait_until")
    event.set()
    items.put(1)
    end.set()
    with condition:
        condition.notify_all()
    thread.join(10)
