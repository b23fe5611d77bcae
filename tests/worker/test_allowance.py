"""Test how many jobs a process may run beside the process that it replaces, and when it may retire itself."""

from __future__ import annotations

import pytest

from django_pgqueue.lifecycle.types import EPOCH, Claimed
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots.inflight import Full, InFlight
from django_pgqueue.worker.slots.queue_slots import Allowance
from tests import helpers


def jobs(count):
    return [Claimed(n, n, "t", "q", 0, EPOCH, "{}", 1, 1, 0, False, None, 0.0) for n in range(1, count + 1)]


def test_allowance_without_predecessor_is_concurrency():
    allowance = Allowance(4)
    assert (allowance.places, allowance.may_retire) == (4, True)


def test_allowance_grows_as_predecessor_jobs_end():
    process_state = ProcessState(8)
    for slot in range(3):
        process_state.started(slot, 100 + slot)
    allowance = Allowance(4, process_state)
    assert (allowance.places, allowance.may_retire) == (1, False)
    process_state.ended(1)
    assert allowance.places == 2


def test_allowance_after_predecessor_crashed_is_concurrency():
    """The slots of a crashed process still show the jobs that ran there. These jobs must not count."""
    process_state = ProcessState(8)
    process_state.started(0, 100)
    allowance = Allowance(4, process_state)
    process_state.is_gone = True
    assert (allowance.places, allowance.may_retire) == (4, True)


def test_in_flight_start_beyond_open_places_waits_or_raises():
    in_flight = InFlight(3, opened=1)
    in_flight.add(jobs(3))
    assert in_flight.start(1, 0, wait=False) is not None
    assert in_flight.free_slots == 0
    with pytest.raises(Full):
        in_flight.start(2, 1, wait=False)
    waiting = helpers.Background(lambda: in_flight.start(2, 1, wait=True))
    assert in_flight.open_places(2)
    assert waiting.result() is not None
    with pytest.raises(Full):
        in_flight.start(3, 2, wait=False)


def test_in_flight_open_places_stops_at_capacity():
    in_flight = InFlight(3, opened=1)
    assert in_flight.open_places(7)
    assert in_flight.free_slots == 3
    assert not in_flight.open_places(7)
    assert not in_flight.open_places(1)
    assert in_flight.free_slots == 3
