"""The checker on what changes while jobs run: overrides, pauses of keys, circuit breakers; and on chunks.

The histories are written by hand: they break a rule, or just keep it. `test_checker_limits` has limits without changes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.faults import checker
from tests.tools.faults.history import Stop
from tests.tools.faults.limits import BREAKER, CHUNK
from tests.tools.faults.story import Story, broken

SLOTS = {"limit_key": "slots:a"}
RATED = {"limit_key": "tokens:a"}
SERVICE = {"limit_key": "service:a"}
CHUNKED = {"limit_key": "+tests.chunked", "task": "tests.chunked"}
KNOWN = 9.0
"""Seconds after which every worker knows of a change."""


@pytest.fixture
def story() -> Story:
    return Story()


def enqueue(story: Story, count: int, first: int = 1, **changes: Any) -> None:
    for job in range(first, first + count):
        story.enqueue(job, **changes)


def claim_all(story: Story, *jobs: int) -> None:
    for job in jobs:
        story.claim(job, job)


def end(story: Story, *jobs: int, outcome: str = "succeeded") -> None:
    """End executions that have the numbers of their jobs."""
    for job in jobs:
        act = "succeed" if outcome == "succeeded" else "fail"
        story.run(job, job)
        story.close(job, job, outcome, "succeeded" if outcome == "succeeded" else "dead", act)


# ------------------------------------------------------------------ overrides of slots


@pytest.mark.parametrize("name", ["slots", "slots:a"])
def test_checker_raised_slots_admit_more_from_then_on(story, name):
    enqueue(story, 6, **SLOTS)
    claim_all(story, 1, 2, 3)
    story.override(name, concurrency=5)
    claim_all(story, 4, 5)
    assert broken(story) == set()
    story.claim(6, 6)
    assert broken(story) == {"I11"}


def test_checker_start_above_lowered_slots_reports_i11(story):
    """What runs already goes on. A claim just after the change need not know of it."""
    enqueue(story, 5, **SLOTS)
    claim_all(story, 1, 2)
    story.override("slots", concurrency=1)
    story.claim(3, 3)
    story.now += KNOWN
    assert broken(story) == set()
    end(story, 1, 2)
    story.claim(4, 4)
    assert broken(story) == {"I11"}


def test_checker_start_after_the_others_ended_obeys_lowered_slots(story):
    enqueue(story, 4, **SLOTS)
    claim_all(story, 1, 2)
    story.override("slots", concurrency=1)
    story.now += KNOWN
    end(story, 1, 2)
    story.claim(3, 3)
    assert broken(story) == set()


def test_checker_override_of_the_key_counts_before_that_of_the_limit(story):
    story.override("slots:a", concurrency=4)
    story.override("slots", concurrency=1)
    story.now += KNOWN
    enqueue(story, 5, **SLOTS)
    claim_all(story, 1, 2, 3, 4)
    assert broken(story) == set()
    story.claim(5, 5)
    assert broken(story) == {"I11"}


@pytest.mark.parametrize("ends", ["by itself", "by hand"])
def test_checker_slots_after_the_end_of_an_override_report_i11(story, ends):
    enqueue(story, 5, **SLOTS)
    story.override("slots:a", 1.0 if ends == "by itself" else None, concurrency=5)
    claim_all(story, 1, 2, 3, 4)
    if ends == "by hand":
        story.override("slots:a")
    story.now += KNOWN
    assert broken(story) == set()
    story.claim(5, 5)
    assert broken(story) == {"I11"}


def test_checker_job_heavier_than_lowered_slots_runs_alone(story):
    story.override("slots", concurrency=2)
    story.now += KNOWN
    enqueue(story, 2, weight=3, **SLOTS)
    story.claim(1, 1)
    assert broken(story) == set()
    story.claim(2, 2)
    assert broken(story) == {"I11"}


def test_checker_override_gives_a_limit_the_slots_it_had_not(story):
    enqueue(story, 3, **RATED)
    story.override("tokens", concurrency=1)
    story.now += KNOWN
    story.claim(1, 1)
    assert broken(story) == set()
    story.claim(2, 2)
    assert broken(story) == {"I11"}


# ------------------------------------------------------------------ overrides of rates


def start_at(story: Story, first: int, *seconds: float) -> None:
    """Start a job at each of these times after 5000 s, and let it end at once."""
    for job, at in enumerate(seconds, first):
        story.enqueue(job, **RATED)
        story.now = 5000.0 + at - 0.1
        story.claim(job, job)
        end(story, job)


@pytest.mark.parametrize(("more", "violations"), [([], set()), ([25.0], {"I11"})])
def test_checker_lower_rate_holds_after_it_is_known(story, more, violations):
    """Two starts of 5 s each, and a burst of 1: a window of 10 s has two."""
    story.now = 4000.0
    story.override("tokens:a", rate="2/10s", burst=1)
    start_at(story, 1, 20.0, *more, 30.0, 35.0)
    assert broken(story) == set()
    start_at(story, 10, 36.0) if more else None
    assert broken(story) == violations


def test_checker_raised_rate_admits_more(story):
    story.now = 4000.0
    story.override("tokens", rate="4/s", burst=8)
    start_at(story, 1, *[0.0] * 8, 0.25, 0.5, 0.75)
    assert broken(story) == set()
    start_at(story, 20, 0.9)
    assert broken(story) == {"I11"}


def test_checker_each_rate_of_a_window_admits_its_burst(story):
    """The code admits 5 at once and 2 a second; the lower rate admits one more when it begins."""
    start_at(story, 1, *[0.0] * 5)
    story.now = 5000.2
    story.override("tokens", rate="1/s", burst=1)
    start_at(story, 10, 0.5, 0.7)
    assert broken(story, obey_seconds=0.2) == set()
    start_at(story, 20, 0.8)
    assert broken(story, obey_seconds=0.2) == {"I11"}


# ------------------------------------------------------------------ pauses of keys


@pytest.mark.parametrize("name", ["slots", "slots:a"])
def test_checker_claim_of_a_paused_key_reports_i9(story, name):
    enqueue(story, 2, **SLOTS)
    story.pause(name)
    story.now += 1.0
    story.claim(1, 1)
    assert broken(story) == set()
    story.now += KNOWN
    story.claim(2, 2)
    assert broken(story) == {"I9"}


def test_checker_claim_beside_or_after_a_pause_of_a_key_passes(story):
    enqueue(story, 3, **SLOTS)
    story.pause("slots:b")
    story.pause("held")
    story.now += KNOWN
    story.claim(1, 1)
    story.pause("slots:a", 5.0)
    story.now += 6.0
    story.claim(2, 2)
    story.pause("slots:a")
    story.now += KNOWN
    story.pause("slots:a", paused=False)
    story.claim(3, 3)
    assert broken(story) == set()


def pass_over(story: Story, seconds: int = 7, first: int = 100) -> None:
    """Let a worker claim a job without a limit each second."""
    for number in range(first, first + seconds):
        story.enqueue(number)
        story.now += 1.0
        story.claim(number, number)
        end(story, number)


@pytest.mark.parametrize("why", ["paused key", "paused limit", "override", "breaker"])
def test_checker_key_that_may_not_start_may_wait(story, why):
    enqueue(story, 2, **(SERVICE if why == "breaker" else SLOTS))
    if why == "paused key":
        story.pause("slots:a", 60.0)
    elif why == "paused limit":
        story.pause("slots", 60.0)
    elif why == "override":
        story.override("slots", 60.0, concurrency=1)
        story.claim(1, 1)
    else:
        fail(story, BREAKER.attempts, first=50)
        story.break_key("service:a", 60.0)
    pass_over(story)
    assert broken(story) == set()
    story.now += 60.0
    if why == "breaker":
        story.claim(1, 900)
        story.close(1, 900, "succeeded", "succeeded")
        story.close_breaker("service:a")
    pass_over(story, 16, first=200)
    assert broken(story) == {"I21"}


# ------------------------------------------------------------------ circuit breakers


def fail(story: Story, count: int, first: int = 1, outcome: str = "failed") -> None:
    enqueue(story, count, first, **SERVICE)
    for job in range(first, first + count):
        story.claim(job, job)
        end(story, job, outcome=outcome)


def half_open(story: Story, waiting: int = 3) -> None:
    """Open the breaker, and let its pause pass. Jobs 11, 12, … wait."""
    enqueue(story, waiting, 11, **SERVICE)
    fail(story, 3)
    story.break_key("service:a", 1.0)
    story.now += 1.1


def test_checker_breaker_that_opens_probes_and_closes_passes(story):
    half_open(story)
    story.claim(11, 11)
    end(story, 11, outcome="failed")
    story.break_key("service:a", 1.0)
    story.now += 1.1
    story.claim(12, 12)
    end(story, 12)
    story.close_breaker("service:a")
    story.claim(13, 13)
    assert broken(story) == set()
    assert checker.summary(story.history)["breakers"] == {"opened": 2, "closed": 1}


def test_checker_claim_of_a_key_whose_breaker_opened_reports_i22(story):
    """There is no second in which the claim need not know of it."""
    enqueue(story, 2, 11, **SERVICE)
    fail(story, 3)
    story.break_key("service:a", 1.0)
    story.claim(11, 11)
    assert broken(story) == {"I22"}


@pytest.mark.parametrize("resumed", [True, False])
def test_checker_operator_ends_the_pause_of_a_breaker(story, resumed):
    enqueue(story, 2, 11, **SERVICE)
    fail(story, 3)
    story.break_key("service:a", 60.0)
    if resumed:
        story.now += 0.1
        story.pause("service:a", paused=False)
    story.claim(11, 11)
    assert broken(story) == (set() if resumed else {"I22"})


@pytest.mark.parametrize("earlier", [True, False])
def test_checker_two_open_executions_while_half_open_report_i22(story, earlier):
    """The other one may be an earlier job, or another probe."""
    if earlier:
        story.enqueue(30, **SERVICE)
        story.claim(30, 30)
    half_open(story)
    story.claim(11, 11)
    assert broken(story) == ({"I22"} if earlier else set())
    story.claim(12, 12)
    assert broken(story) == {"I22"}


@pytest.mark.parametrize(("outcome", "count"), [("failed", 2), ("succeeded", 9)])
def test_checker_breaker_without_enough_failures_reports_i22(story, outcome, count):
    fail(story, count, outcome=outcome)
    story.break_key("service:a")
    assert broken(story) == {"I22"}


def test_checker_failures_of_long_ago_open_no_breaker(story):
    fail(story, 3)
    story.now += BREAKER.seconds + KNOWN
    story.break_key("service:a")
    assert broken(story) == {"I22"}


@pytest.mark.parametrize("act", ["open", "close"])
def test_checker_breaker_that_changes_without_a_probe_reports_i22(story, act):
    """The job that ends meanwhile was claimed before."""
    story.enqueue(30, **SERVICE)
    story.claim(30, 30)
    half_open(story)
    end(story, 30, outcome="failed" if act == "open" else "succeeded")
    assert broken(story) == set()
    story.break_key("service:a") if act == "open" else story.close_breaker("service:a")
    assert broken(story) == {"I22"}


@pytest.mark.parametrize("act", ["open", "close"])
def test_checker_probe_with_the_other_end_reports_i22(story, act):
    half_open(story)
    story.claim(11, 11)
    end(story, 11, outcome="succeeded" if act == "open" else "failed")
    story.break_key("service:a") if act == "open" else story.close_breaker("service:a")
    assert broken(story) == {"I22"}


@pytest.mark.parametrize("by_operator", [True, False])
def test_checker_breaker_without_any_pause_reports_i22(story, by_operator):
    fail(story, 3)
    if by_operator:
        story.pause("service:a")
    story.break_key("service:a")
    story.history.pauses.pop()
    assert broken(story) == (set() if by_operator else {"I22"})


# ------------------------------------------------------------------ chunks


def test_checker_chunks_with_failed_jobs_pass(story):
    enqueue(story, 4, **CHUNKED)
    story.claim_chunk(1, 2)
    story.call(1, 2, failing=(2,))
    story.close(1, 1, "succeeded", "succeeded", "succeed")
    story.close(2, 2, "failed", "dead", "fail")
    story.claim_chunk(3, 4)
    story.call(3, 4, kind="atomic chunk", failing=(3,), number=2)
    story.close(3, 3, "failed", "dead", "fail")
    story.close(4, 4, "succeeded", "succeeded", "succeed")
    assert broken(story) == set()
    assert checker.summary(story.history)["chunks"] == {2: 2}


def test_checker_chunk_with_too_many_jobs_reports_i23(story):
    jobs = range(1, CHUNK + 2)
    enqueue(story, len(jobs), **CHUNKED)
    story.claim_chunk(*jobs)
    assert [violation.what for violation in checker.check(story.history)] == ["6 jobs claimed for a chunk, 5 may"]
    story.call(*jobs)
    assert len(checker.check(story.history)) == 2


def test_checker_chunk_that_was_not_claimed_together_reports_i23(story):
    enqueue(story, 2, **CHUNKED)
    story.claim_chunk(1)
    story.claim_chunk(2)
    story.call(1, 2)
    assert broken(story) == {"I23"}


def test_checker_two_chunks_of_one_transaction_pass(story):
    jobs = [*range(1, 2 * CHUNK + 1)]
    enqueue(story, len(jobs), **CHUNKED)
    story.claim_chunk(*jobs)
    for event in story.history.events:
        if event.place == "execution" and event.job > CHUNK and event.new:
            event.new["claimed_at"] += 0.001
    story.call(*jobs[:CHUNK])
    story.call(*jobs[CHUNK:], number=2)
    assert broken(story) == set()


@pytest.mark.parametrize("other", [{"task": "tests.other"}, {"queue": "other"}, {"priority": 1}])
def test_checker_chunk_of_several_lanes_reports_i23(story, other):
    story.enqueue(1, **CHUNKED)
    story.enqueue(2, **CHUNKED | other)
    story.claim_chunk(1, 2)
    story.call(1, 2)
    assert broken(story) == {"I23"}


@pytest.mark.parametrize("alone", [True, False])
def test_checker_job_that_crashed_a_process_is_alone(story, alone):
    enqueue(story, 2, **CHUNKED)
    story.claim(1, 9)
    story.close(1, 9, "crashed", "ready", "rescue", crashes=1)
    story.claim_chunk(*((1,) if alone else (1, 2)))
    story.call(*((1,) if alone else (1, 2)))
    assert broken(story) == (set() if alone else {"I23"})


def test_checker_atomic_chunk_that_succeeded_in_part_reports_i23(story):
    enqueue(story, 2, **CHUNKED)
    story.claim_chunk(1, 2)
    story.call(1, 2, kind="atomic chunk")
    story.close(1, 1, "succeeded", "succeeded", "succeed")
    del story.history.effects[1]
    story.close(2, 2, "crashed", "ready", "rescue", crashes=1)
    assert broken(story) == {"I23"}


def test_checker_atomic_chunk_that_is_rolled_back_passes(story):
    enqueue(story, 2, **CHUNKED)
    story.claim_chunk(1, 2)
    story.call(1, 2, kind="atomic chunk")
    story.history.effects.clear()
    for job in (1, 2):
        story.close(job, job, "crashed", "ready", "rescue", crashes=1)
    assert broken(story) == set()


def test_checker_job_of_a_chunk_that_is_lost_reports_i19(story):
    enqueue(story, 2, **CHUNKED)
    story.claim_chunk(1, 2)
    story.call(1, 2)
    story.close(1, 1, "succeeded", "succeeded", "succeed")
    story.close(2, 2, "crashed", "ready", "rescue", crashes=1)
    assert broken(story, finished=True) == {"I19"}


def test_checker_held_key_of_a_service_is_no_breaker(story):
    """A hold and a breaker differ: the hold gives workers a moment to know of it."""
    enqueue(story, 1, **SERVICE)
    story.history.stops.append(Stop(story.now, "service:a", True, story.now + 60.0))
    story.claim(1, 1)
    assert broken(story) == set()
