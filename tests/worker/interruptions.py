"""A stress program: its threads use all locks of the standard library that logging needs, and are often interrupted.

`test_interruption.py` starts it with the path of `interruption.py` and a number of interruptions. The additional
argument `anywhere` disables the rule of `may_interrupt()`. The program does not need Django, so every Python can run
it. It prints how many exceptions arrived. The exit code is 1 if a lock stayed locked or if fewer than `LEAST`
exceptions arrived.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import logging.handlers
import os
import queue
import sys
import threading
import time

SECONDS = 12.0
END_SECONDS = 30.0
"""How long the threads may take to end. A thread that waits for a locked lock never ends."""
LEAST = 20
REST = 400
"""Work of a thread after each fourth use of the locks. With less, all threads wait for locks most of the time on an
idle machine, and hardly any may be interrupted."""


def load(path):
    spec = importlib.util.spec_from_file_location("interruption", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stop(BaseException):
    """The exception that is raised in the threads."""


class Shared:
    """The objects whose locks all threads use."""

    def __init__(self):
        self.records = queue.Queue()
        self.listener = logging.handlers.QueueListener(self.records, logging.NullHandler())
        self.listener.start()
        self.logger = logging.getLogger("shared")
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False
        self.logger.addHandler(logging.handlers.QueueHandler(self.records))
        self.condition = threading.Condition(threading.Lock())
        self.items = queue.Queue()

    def use(self):
        self.logger.info("a line")
        with self.condition:
            self.condition.notify()
        self.items.put(1)
        self.items.get_nowait()


class Worker(threading.Thread):
    """A thread that uses the shared locks in a loop. At most one exception is on its way to it at a time."""

    def __init__(self, shared):
        super().__init__(daemon=True)
        self.shared, self.guard = shared, threading.Lock()
        self.is_running, self.arrived, self.ended = False, 0, False

    def run(self):
        while not self.ended:
            try:
                try:
                    self.is_running = True
                    for number in range(1000):
                        if self.ended:  # on a busy machine, the rest would take longer than the limit below
                            break
                        self.shared.use()
                        for _ in range(REST if number % 4 == 3 else 0):
                            sum(range(500))
                    self.leave()
                except Stop:
                    self.leave()
                    self.arrived += 1
                except queue.Empty:  # the exception arrived in another thread between its put and its get
                    self.leave()
            except Stop:  # the exception arrived during `leave()`
                self.leave()
                self.arrived += 1

    def leave(self):
        with self.guard:
            self.is_running = False


def throw_into(worker, rule):
    with worker.guard:
        if not worker.is_running:
            return False
        rule.begin_time_slice()
        if not rule.may_interrupt(sys._current_frames().get(worker.ident)):
            return False
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(Stop))
        return True


def interrupt(workers, rule, count):
    """Raise up to `count` exceptions, one at a time in each thread, until the time is over. Return their number."""
    thrown, stop_at = 0, time.monotonic() + SECONDS
    while thrown < count and time.monotonic() < stop_at:
        for worker in workers:
            before = worker.arrived
            if throw_into(worker, rule):
                thrown += 1
                while worker.arrived == before and worker.is_running and time.monotonic() < stop_at:
                    time.sleep(0.0002)
        time.sleep(0.0005)
    return thrown


def main(path, count, *words):
    sys.setswitchinterval(0.001)
    rule = load(path)
    if "anywhere" in words:
        rule.may_interrupt = lambda frame: True
    shared = Shared()
    workers = [Worker(shared) for _ in range(4)]
    for worker in workers:
        worker.start()
    thrown = interrupt(workers, rule, count)
    for worker in workers:
        worker.ended = True
    check = threading.Thread(target=shared.use, daemon=True)
    check.start()
    stop_at = time.monotonic() + END_SECONDS
    for thread in (*workers, check):
        thread.join(max(0.0, stop_at - time.monotonic()))
    arrived, stuck = (
        sum(worker.arrived for worker in workers),
        [thread for thread in (*workers, check) if thread.is_alive()],
    )
    sys.stdout.write(f"{arrived} of {thrown} arrived, {len(stuck)} threads stuck\n")
    sys.stdout.flush()
    os._exit(1 if stuck or arrived < LEAST else 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
