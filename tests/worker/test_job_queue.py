"""Test that each job wakes one thread of the pool, and that no job and no wake-up is lost."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from queue import Empty

import pytest

from django_pgqueue.worker.slots.inflight import JobQueue
from tests import helpers

THREADS = 4


class Getter(threading.Thread):
    """A thread that gets executions until it gets None."""

    def __init__(self, jobs, got, timeout_seconds=-1):
        super().__init__()
        self.jobs, self.got, self.timeout_seconds = jobs, got, timeout_seconds
        self.lock = threading.Lock()
        self.lock.acquire()

    def run(self):
        while (execution_id := self._next()) is not None:
            self.got.append((self.name, execution_id))

    def _next(self):
        while True:
            try:
                return self.jobs.get(self.lock, self.timeout_seconds)
            except Empty:
                continue

    @property
    def sleeps(self):
        """How often the thread has fallen asleep, as the kernel counts."""
        status = Path(f"/proc/self/task/{self.native_id}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.fixture
def start():
    """Start threads that get from a queue. All end after the test."""
    started = []

    def start(jobs, got, **options):
        getter = Getter(jobs, got, **options)
        getter.start()
        started.append(getter)
        return getter

    yield start
    for getter in started:
        getter.jobs.put([None])
    for getter in started:
        getter.join(20)
        assert not getter.is_alive()


def wait_until_idle(jobs, count):
    helpers.wait_until(lambda: len(jobs._idle) == count)


def test_put_wakes_the_thread_that_slept_last_and_no_other(start):
    jobs, got = JobQueue(), []
    getters = []
    for number in range(THREADS):
        getters.append(start(jobs, got))
        wait_until_idle(jobs, number + 1)
    *others, last = getters
    slept = [getter.sleeps for getter in others]
    for execution_id in range(100):
        jobs.put([execution_id])
        helpers.wait_until(lambda: len(jobs._idle) == THREADS and not jobs.queued)
    assert got == [(last.name, execution_id) for execution_id in range(100)]
    # On a busy host, a thread that is idle can still be on its way into the sleep that the kernel counts.
    assert all(0 <= getter.sleeps - before <= 1 for getter, before in zip(others, slept, strict=True))


def test_put_of_many_wakes_as_many_threads(start):
    jobs, got = JobQueue(), []
    for _ in range(THREADS):
        start(jobs, got)
    wait_until_idle(jobs, THREADS)
    jobs.put(range(3))
    helpers.wait_until(lambda: len(got) == 3)
    jobs.put(range(3, 20))
    helpers.wait_until(lambda: len(got) == 20)
    assert sorted(execution_id for _, execution_id in got) == list(range(20))


@pytest.mark.parametrize("timeout_seconds", [-1, 0.0005])
def test_jobs_of_several_putters_are_each_taken_once(start, timeout_seconds):
    """Threads whose time ends just when a job is put must take it, or leave it to a thread that is awake."""
    jobs, got, per_putter, putters = JobQueue(), [], 3_000, 2
    for _ in range(THREADS):
        start(jobs, got, timeout_seconds=timeout_seconds)

    def put(first):
        for execution_id in range(first, first + per_putter):
            jobs.put([execution_id])
            if execution_id % 50 == 0:  # let the threads fall asleep
                helpers.wait_until(lambda: not jobs.queued)

    running = [helpers.Background(lambda first=n * per_putter: put(first)) for n in range(putters)]
    for each in running:
        each.result(60)
    helpers.wait_until(lambda: len(got) == putters * per_putter)
    assert set(Counter(execution_id for _, execution_id in got).values()) == {1}


def test_job_put_before_the_thread_sleeps_is_found():
    """The job is put after the thread has found none, and before the thread can be woken."""
    lock = threading.Lock()
    lock.acquire()

    class Late(list):
        def append(self, lock):
            if not jobs.queued:
                jobs.put([7])
            super().append(lock)

    jobs = JobQueue()
    jobs._idle = Late()
    assert helpers.Background(lambda: jobs.get(lock)).result(20) == 7


def test_get_after_its_time_raises_empty_and_is_not_woken():
    jobs, lock = JobQueue(), threading.Lock()
    lock.acquire()
    with pytest.raises(Empty):
        jobs.get(lock, 0.001)
    jobs.put([1])
    assert not lock.acquire(blocking=False)
    assert jobs.get(lock) == 1


def test_get_chosen_at_the_end_of_its_time_takes_the_job():
    """Another thread has removed this one from the idle threads, and releases its lock only later."""
    jobs, lock = JobQueue(), threading.Lock()
    lock.acquire()

    class Chosen(list):
        def remove(self, lock):
            jobs.queued.append(8)
            super().remove(lock)
            lock.release()
            raise ValueError

    jobs._idle = Chosen()
    assert jobs.get(lock, 0.001) == 8
    assert lock.locked()
