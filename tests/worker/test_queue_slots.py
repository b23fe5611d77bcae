"""Test `runworker --queue NAME=N` in one process: how many jobs of each queue are in flight, and what the fetcher does.

`tests/process/test_queue_concurrency.py` runs it in a real worker.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from types import MappingProxyType, SimpleNamespace

import pytest

from django_pgqueue.declared.limits import Limit
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.lifecycle import claims, completions
from django_pgqueue.lifecycle.types import EPOCH, Claimed, Lane
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import lanes as lanes_module
from django_pgqueue.worker.claiming.claimer import Claimer
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots import pool as pools
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.queue_slots import UNLIMITED, Allowance, QueueSlots
from django_pgqueue.worker.supervision import startup
from tests import helpers
from tests.concurrency.limits import add
from tests.worker.test_fetcher import make_fetcher
from tests.worker.test_shared_scans import siblings

__all__ = ["make_fetcher"]


def slots_of(running_before=lambda number: 0, **concurrency):
    others = {"*": concurrency.pop("others")} if "others" in concurrency else {}
    return QueueSlots(ServedQueues.of_queue_options({**concurrency, **others}), running_before)


def job(number, queue_name):
    return Claimed(number, number, "t", queue_name, 0, EPOCH, "{}", 1, 1, 0, False, None, 0.0)


def start(fetcher):
    """Start all submitted jobs, and return their executions by queue."""
    found = {}
    while fetcher.pool.submitted:
        claimed = fetcher.pool.submitted.popleft()
        assert fetcher.in_flight.start(claimed.execution_id, 0, wait=False), "a free slot was claimed for it"
        found.setdefault(claimed.queue_name, []).append(claimed)
    return found


def running(fetcher):
    return Counter(entry.claimed.queue_name for entry in fetcher.in_flight.running.values())


def end(fetcher, engine, jobs):
    completions.succeed(engine, helpers.succeeded(*(job.key for job in jobs)))
    for each in jobs:
        fetcher.in_flight.end(each.execution_id)


# ------------------------------------------------------------------ counting


def test_jobs_in_flight_take_slots_until_they_end_or_are_released():
    slots = slots_of(mail=2, default=None)
    in_flight = InFlight(5, queue_slots=slots)
    in_flight.add([job(1, "mail"), job(2, "mail"), job(3, "default")])
    assert (slots.room("mail"), slots.room("default")) == (0, UNLIMITED)
    in_flight.start(1, 0, wait=False)
    assert slots.room("mail") == 0
    in_flight.end(1)
    assert slots.room("mail") == 1
    in_flight.take([2, 3])
    assert slots.room("mail") == 2
    in_flight.end(2)  # it is not known any more
    assert slots.room("mail") == 2


def test_all_other_queues_share_the_slots_of_the_star():
    slots = slots_of(mail=2, default=None, others=3)
    slots.take([job(1, "pdf"), job(2, "export"), job(3, "default"), job(4, "mail")])
    assert [slots.room(name) for name in ("pdf", "new", "default", "mail")] == [1, 1, UNLIMITED, 1]
    assert [slots.number_of(name) for name in ("mail", "pdf", "new", "default")] == [1, 2, 2, 0]


def test_full_queue_is_awaited_until_it_has_room():
    slots = slots_of(mail=1, default=None)
    assert not slots.is_full("mail")
    assert not slots.is_awaited("mail")
    slots.take([job(1, "mail")])
    assert slots.is_full("mail")
    assert slots.is_awaited("mail")
    assert not slots.is_full("default")
    assert not slots.is_awaited("default")
    slots.free("mail")
    assert slots.is_awaited("mail")  # until the fetcher has seen it
    assert not slots.is_full("mail")
    assert not slots.is_awaited("mail")


def test_slots_of_the_replaced_process_are_left_free():
    state = ProcessState(8)
    allowance = Allowance(4, state)
    slots = slots_of(allowance.running_before, mail=2, default=2)
    state.started(0, 100, group=slots.number_of("mail"))
    state.started(1, 101, group=slots.number_of("default"))
    state.started(2, 102, group=slots.number_of("default"))
    assert (slots.room("mail"), slots.room("default")) == (1, 0)
    state.ended(1)
    assert (slots.room("mail"), slots.room("default")) == (1, 1)
    state.is_gone = True  # its slots may still list what ran there when it was killed
    assert (slots.room("mail"), slots.room("default")) == (2, 2)


def test_pool_records_groups_and_reports_awaited_slots():
    slots = slots_of(mail=1, default=None)
    in_flight, state, woken = InFlight(2, queue_slots=slots), ProcessState(4), []
    options = Options(database="default", concurrency=2)
    pool = pools.Pool(options, in_flight, state, None, lambda report: None, None, lambda: woken.append(1))
    jobs = [job(1, "mail"), job(2, "default"), job(3, "default")]
    in_flight.add(jobs)
    for slot, claimed in enumerate(jobs[:2]):
        in_flight.start(claimed.execution_id, slot, wait=False)
        pool.started(attempt_of(claimed, "default", None), slot)
    assert [state.running_of(group) for group in (0, 1)] == [1, 1]
    assert state.running() == state.suspects() == [1, 2]
    assert slots.is_full("mail")
    pool.finished(SimpleNamespace(claimed=jobs[1], others=(), ending=Ending.SUCCEEDED), 1)
    assert woken == []  # job 3 waits for the slot, and no job for this queue
    pool.finished(SimpleNamespace(claimed=jobs[0], others=(), ending=Ending.RELEASED), 0)
    assert woken == [1]
    pool.loop.loop.close()


def test_pool_lists_only_attempts_that_count_as_ended():
    """Nothing of a job has begun if its task is unknown, for example. A crash of the process must not charge it."""
    state = ProcessState(4)
    in_flight = InFlight(2)
    pool = pools.Pool(
        Options(database="default", concurrency=2), in_flight, state, None, lambda report: None, None, lambda: None
    )
    endings = dict(enumerate(Ending, start=1))
    for number, ending in endings.items():
        in_flight.add([job(number, "mail")])
        claimed = in_flight.start(number, 0, wait=False)
        pool.started(attempt_of(claimed, "default", None), 0)
        pool.finished(SimpleNamespace(claimed=claimed, others=(), ending=ending), 0)
    here, elsewhere = state.ended_last()
    uncounted = {Ending.RELEASED, Ending.UNKNOWN, Ending.POSTPONED, Ending.SNOOZED, Ending.SUSPENDED}
    assert {endings[number] for number in here - {0}} == set(Ending) - uncounted
    assert not elsewhere
    pool.loop.loop.close()


def test_startup_warns_about_a_mistyped_queue_option(monkeypatch, caplog):
    monkeypatch.setattr(startup.queues, "mistyped", lambda name, database: f"did you mean {name[:4]}?")
    monkeypatch.setattr(startup.django_connections, "close_for_good", lambda: None)
    served = {"mailx": 2, "*": None}
    startup._warn_about_queues(Options(database="default", queue_concurrency=served))
    startup._warn_about_queues(Options(database="default", queue_names=("mailx",)))
    assert [record.getMessage() for record in caplog.records] == [
        "--queue: did you mean mail?",
        "--queues: did you mean mail?",
    ]


# ------------------------------------------------------------------ claiming


def test_full_queue_leaves_the_slots_to_the_others(engine, make_fetcher):
    helpers.make_jobs(engine, 20, queue_name="mail", priority=5)
    helpers.make_jobs(engine, 20, queue_name="default")
    fetcher = make_fetcher("mail", "default", capacity=10, queue_slots=slots_of(mail=2, default=None))
    fetcher.tick()
    start(fetcher)
    assert running(fetcher) == {"mail": 2, "default": 8}


def test_jobs_of_a_queue_beyond_its_slots_are_not_prefetched(engine, make_fetcher):
    helpers.make_jobs(engine, 50, queue_name="mail", priority=1)
    helpers.make_jobs(engine, 50, queue_name="default")
    fetcher = make_fetcher("mail", "default", capacity=4, queue_slots=slots_of(mail=2, default=None))
    fetcher.claim_size.rate.per_second = lambda: 100.0  # so that the fetcher prefetches 10 jobs
    for _ in range(3):
        fetcher.tick()
    assert Counter(each.queue_name for each in fetcher.pool.submitted) == {"mail": 2, "default": 12}


@pytest.mark.promise("queue-option-order")
def test_queues_of_one_priority_take_turns_whatever_the_order_of_the_options(engine, make_fetcher):
    for name, priority in (("a", 0), ("b", 0), ("c", 7)):
        helpers.make_jobs(engine, 4, queue_name=name, priority=priority)
    fetcher = make_fetcher("a", "b", "c", capacity=1, queue_slots=slots_of(a=1, b=None, c=1))
    fetcher.claim_size.rate.per_second = lambda: 0.0  # so that it prefetches nothing
    order = []
    while len(order) < 12:
        fetcher.tick()
        for name, jobs in start(fetcher).items():
            order.append(name)
            end(fetcher, engine, jobs)
    assert order[:4] == ["c"] * 4
    assert sorted(order[4:6]) == sorted(order[6:8]) == sorted(order[8:10]) == ["a", "b"]


def test_queue_that_no_option_names_is_not_served(engine, make_fetcher):
    helpers.make_jobs(engine, 3, queue_name="ignored")
    [wanted] = helpers.make_jobs(engine, 1, queue_name="mail")
    fetcher = make_fetcher("mail", queue_slots=slots_of(mail=2))
    fetcher.tick()
    fetcher.tick()
    assert [each.job_id for each in fetcher.pool.submitted] == [wanted]


def test_full_queue_lets_the_fetcher_sleep_and_is_claimed_when_a_job_ends(engine, make_fetcher, monkeypatch):
    helpers.make_jobs(engine, 9, queue_name="mail")
    fetcher = make_fetcher("mail", capacity=5, queue_slots=slots_of(mail=2))
    fetcher.may_sleep(30.0)
    fetcher.tick()
    [first, second] = start(fetcher)["mail"]
    assert [fetcher.tick() for _ in range(4)] == [0.005, 0.015, 0.06, 0.24]
    assert fetcher.tick() > 20
    end(fetcher, engine, [first])
    fetcher.lanes._scanned_at = time.monotonic() + 60.0
    with monkeypatch.context() as without_scans:
        without_scans.delattr(claims, "scan_lanes")
        assert fetcher.tick() == 0.0
    [third] = start(fetcher)["mail"]
    assert running(fetcher) == {"mail": 2}
    assert {second.job_id, third.job_id} == {running.claimed.job_id for running in fetcher.in_flight.running.values()}


def test_freed_slot_goes_to_the_highest_priority(engine, make_fetcher):
    low, high = (helpers.make_jobs(engine, 3, queue_name="mail", priority=priority) for priority in (-5, 5))
    fetcher = make_fetcher("mail", capacity=5, queue_slots=slots_of(mail=1))
    claimed = []
    while len(claimed) < 6:
        fetcher.tick()
        fetcher.tick()  # the queue is full
        jobs = start(fetcher)["mail"]
        claimed += [each.job_id for each in jobs]
        end(fetcher, engine, jobs)
    assert claimed == [*high, *low]


def test_new_job_of_another_queue_is_found_beside_a_full_one(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(lanes_module, "AGE_LIMIT_SECONDS", 60.0)
    helpers.make_jobs(engine, 9, queue_name="mail")
    fetcher = make_fetcher("mail", "default", capacity=5, queue_slots=slots_of(mail=2, default=None))
    monkeypatch.setattr(fetcher.lanes._rest, "after", lambda seconds: 0.0)
    fetcher.tick()
    start(fetcher)
    fetcher.tick()
    helpers.make_job(engine, queue_name="default")
    fetcher.polls.poll_soon()
    fetcher.tick()
    assert set(start(fetcher)) == {"default"}


@pytest.mark.promise("queue-option-independent")
def test_job_is_found_while_another_queue_is_always_busy(engine, make_fetcher, monkeypatch):
    """Each claim finds jobs of the busy queue, and no notification announces the other job.

    A process without `--queue` scans once a second while claims find jobs. By the test's clock, a scan takes some
    milliseconds.
    """
    clock = helpers.Clock(monkeypatch, lanes_module, reading_seconds=0.001)
    helpers.make_jobs(engine, 3000, queue_name="mail", priority=5)
    fetcher = make_fetcher("mail", "default", capacity=5, queue_slots=slots_of(mail=2, default=3))
    fetcher.tick()
    began, found = clock.now, start(fetcher)
    [wanted] = helpers.make_jobs(engine, 1, queue_name="default")
    while "default" not in found:
        end(fetcher, engine, found.get("mail", []))
        fetcher.tick()
        found = start(fetcher)
    assert found["default"][0].job_id == wanted
    assert clock.now - began < 0.5
    assert helpers.state_of(engine, wanted) == "running"


def test_until_empty_counts_jobs_of_a_full_queue_as_waiting(engine, make_fetcher):
    """Otherwise a process that replaces another would end while the jobs of that one fill the queue."""
    helpers.make_job(engine, queue_name="mail")
    taken = {"number": 1}
    slots = slots_of(lambda number: taken["number"], mail=1)
    fetcher = make_fetcher("mail", queue_slots=slots)
    for _ in range(3):
        fetcher.restart_scans()
        fetcher.tick()
        assert fetcher.empty_scans == 0
    taken["number"] = 0
    fetcher.tick()
    assert len(start(fetcher)["mail"]) == 1


def test_freed_slot_is_used_although_a_sibling_scans(engine, make_fetcher):
    helpers.make_jobs(engine, 3, queue_name="mail")
    fetcher = make_fetcher("mail", capacity=5, queue_slots=slots_of(mail=1))
    fetcher.lanes.shared = siblings(2)[1]
    fetcher.tick()
    jobs = start(fetcher)["mail"]
    fetcher.tick()
    fetcher._follow_up.moment = time.monotonic() + 60.0  # this process leaves the next scan to its sibling
    assert fetcher.tick() > 50
    end(fetcher, engine, jobs)
    fetcher.tick()
    assert len(start(fetcher)["mail"]) == 1


def test_limited_jobs_take_the_slots_of_their_queue(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"fair": Limit("fair", key="{key}")}))
    add(engine, "fair:a", 6)
    add(engine, "fair:b", 6)
    engine.execute("UPDATE pgqueue_job SET queue_name = 'mail'")
    fetcher = make_fetcher("mail", capacity=10, queue_slots=slots_of(mail=3))
    seen = 0
    for _ in range(30):
        fetcher.tick()
        jobs = start(fetcher).get("mail", [])
        assert running(fetcher)["mail"] <= 3
        seen += len(jobs)
        end(fetcher, engine, jobs)
        fetcher.lanes.limited.note_ended({each.limit_key for each in jobs})
        if seen == 12:
            break
    assert seen == 12


def test_lanes_of_one_claim_share_the_slots_of_their_queues():
    cursors = helpers.lanes_from_start(*(Lane(name, 0) for name in ("a", "b", "mail", "c", "d")), Lane("d", -1))

    def groups_with(slots):
        in_flight = InFlight(1, queue_slots=slots)
        return [group for _, group in Claimer(in_flight, Lanes([]), 7, FOREGROUND)._groups(cursors)]

    assert [len(group) for group in groups_with(None)] == [6]
    groups = groups_with(slots_of(mail=1, a=None, b=None, others=5))
    assert [[lane.queue_name for lane in group] for group in groups] == [["a", "b"], ["mail"], ["c", "d", "d"]]


@pytest.mark.promise("queue-option-limits")
@pytest.mark.parametrize("seed", range(6))
def test_no_queue_ever_has_more_jobs_in_flight_than_its_slots(engine, make_fetcher, seed):
    """Jobs start, end and are released in any order. At the end, all jobs have run."""
    chance = random.Random(seed)
    limits = {"a": chance.randint(1, 3), "b": chance.randint(1, 6), "c": None}
    slots = slots_of(**limits, others=chance.randint(1, 3))
    fetcher = make_fetcher(capacity=8, queue_slots=slots)
    fetcher.claim_size.rate.per_second = lambda: chance.choice([0.0, 60.0])
    for name in ("a", "b", "c", "x", "y"):
        for priority in (0, 3):
            helpers.make_jobs(engine, 6, queue_name=name, priority=priority)
    done = 0
    while done < 60:
        fetcher.tick()
        if chance.random() < 0.3:
            fetcher._release_waiting(float("inf"))
            fetcher.pool.submitted.clear()
            fetcher.restart_scans()
        while fetcher.pool.submitted and fetcher.in_flight.free_slots + len(fetcher.in_flight.waiting) > 0:
            if len(fetcher.in_flight.running) == 8:
                break
            fetcher.in_flight.start(fetcher.pool.submitted.popleft().execution_id, 0, wait=False)
        entries = [*fetcher.in_flight.running.values(), *fetcher.in_flight.waiting.values()]
        counts = Counter(slots.group_of(entry.claimed.queue_name) for entry in entries)
        assert all(counts[group] <= capacity for group, capacity in slots._capacity.items()), counts
        claimed = [entry.claimed for entry in fetcher.in_flight.running.values()]
        ending = chance.sample(claimed, min(len(claimed), chance.randint(1, 4)))
        end(fetcher, engine, ending)
        done += len(ending)
    assert all(slots.room(name) == slots._capacity[slots.group_of(name)] for name in ("a", "b", "x"))
