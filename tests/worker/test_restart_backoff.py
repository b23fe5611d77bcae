"""The delays before a supervisor replaces processes that have died."""

from __future__ import annotations

import pytest

from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.supervision import supervisor
from django_pgqueue.worker.supervision.heartbeat import ChildProcess
from django_pgqueue.worker.supervision.supervisor import HEALTHY_SECONDS, RESTART_BACKOFF_SECONDS, RestartBackoff


class Clock:
    """A monotonic clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def born(self, pid: int = 1) -> ChildProcess:
        return ChildProcess(ProcessState(1), pid=pid, orders=-1, born_at=self.now)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(supervisor, "time", clock)
    return clock


def test_replacements_that_die_wait_longer_and_longer(clock):
    backoff, waited = RestartBackoff(), []
    for _ in range(7):
        process = clock.born()
        clock.now += 0.1
        waited.append(backoff.seconds_after(process))
        clock.now += waited[-1]
    assert waited == [*RESTART_BACKOFF_SECONDS, 15.0, 15.0]


def test_processes_that_die_together_take_one_step(clock):
    backoff = RestartBackoff()
    together = [clock.born(pid) for pid in range(10)]
    clock.now += 5.0
    for process in together:
        clock.now += 0.01
        assert backoff.seconds_after(process) == 0.0


def test_second_generation_waits_until_its_first_step_is_over(clock):
    backoff = RestartBackoff()
    backoff.seconds_after(clock.born())
    clock.now += 0.1
    second = [clock.born(pid) for pid in range(3)]
    clock.now += 0.1
    assert backoff.seconds_after(second[0]) == RESTART_BACKOFF_SECONDS[1]
    clock.now += 0.05
    assert backoff.seconds_after(second[1]) == pytest.approx(RESTART_BACKOFF_SECONDS[1] - 0.05)
    clock.now += 1.0
    assert backoff.seconds_after(second[2]) == 0.0


def test_process_that_lived_long_resets_the_backoff(clock):
    backoff, old = RestartBackoff(), clock.born()
    for _ in range(3):
        process = clock.born()
        clock.now += 0.1
        backoff.seconds_after(process)
    clock.now += HEALTHY_SECONDS
    assert backoff.seconds_after(old) == 0.0
